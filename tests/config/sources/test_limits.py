"""Texts too large, too deep or self-referential: one clear error, in bounded time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from assay.config import check_shape, open_config
from assay.config.loading import READERS
from assay.config.sources.positions import MAX_VALUES
from assay.config.tree import MAX_DEPTH

SUFFIXES = [".toml", ".json", ".yaml", ".ini", ".py"]
DEEP = 10_000
HOSTILE = {
    "deep list": {
        ".toml": "a = " + "[" * DEEP + "]" * DEEP,
        ".json": '{"a": ' + "[" * DEEP + "]" * DEEP + "}",
        ".yaml": "a: " + "[" * DEEP + "]" * DEEP,
        ".ini": "a = " + "[" * DEEP + "]" * DEEP,
        ".py": "a = []\nfor _ in range(10_000):\n    a = [a]\nmodel = {'x': a}\n",
    },
    "deep table": {
        ".toml": "a = " + "{x = " * DEEP + "1" + "}" * DEEP,
        ".json": '{"a": ' * DEEP + "1" + "}" * DEEP,
        ".yaml": "{a: " * DEEP + "1" + "}" * DEEP,
        ".ini": "a = " + "{x = " * DEEP + "1" + "}" * DEEP,
        ".py": "model = {}\nfor _ in range(10_000):\n    model = {'x': model}\n",
    },
    "deep name": {
        ".toml": "a" + ".a" * DEEP + " = 1",
        ".yaml": "".join(" " * i + "a:\n" for i in range(3000)),
        ".ini": "[" + "a." * 300 + "a]\nx = 1\n",
        ".py": "model = " + "[" * DEEP + "]" * DEEP,
    },
    "aliases": {
        ".yaml": "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
        ".ini": "[s]\na0 = xxxxxxxxx\n"
        + "".join(f"a{i} = {f'%(a{i - 1})s' * 9}\n" for i in range(1, 30)),
        ".py": "a = ['x'] * 9\nfor _ in range(30):\n    a = [a] * 9\nmodel = {'x': a}\n",
    },
    "circle": {
        ".yaml": "a: &a {b: *a}\n",
        ".ini": "a = %(b)s\nb = %(a)s\n",
        ".py": "model = {}\nmodel['x'] = model\n",
    },
    "values": {
        ".toml": "a = [" + "0," * (2 * MAX_VALUES + 2) + "]",
        ".json": '{"a": [' + "0," * MAX_VALUES + "0]}",
        ".yaml": "a: [" + "0," * MAX_VALUES + "0]",
        ".ini": "a = [" + "0," * (2 * MAX_VALUES + 2) + "]",
        ".py": f"model = {{'a': [0] * {MAX_VALUES + 1}}}\n",
    },
    "word": {
        ".toml": "a = " + "9" * 5000,
        ".json": '{"a": ' + "9" * 5000 + "}",
        ".yaml": "a: " + "9" * 5000,
        ".ini": "a = " + "9" * 5000,
    },
}
CASES = [(case, suffix) for case, texts in HOSTILE.items() for suffix in texts]

BOUND = """
import resource, sys, time
from assay.config import open_config
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
config = open_config(sys.argv[1])
print(len(config.problems), config.problems[0].kind, len(config.problems[0].message))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "suffix"), CASES)
def test_a_hostile_text_gives_one_clear_error(tmp_path: Path, case: str, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_text(HOSTILE[case][suffix])

    config = open_config(file)
    problems = config.problems

    assert len(problems) == 1
    assert problems[0].kind in ("too-deep", "too-large", "syntax")
    assert len(problems[0].message) < 150
    assert check_shape(config)[0] == problems[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_50_mb_is_refused_before_it_is_parsed(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    line = {".json": '{"a": "' + "x" * 1000 + '"}\n'}.get(suffix, "k = [1, 2, 3]\n")
    file.write_bytes(line.encode() * (50 * 2**20 // len(line)))

    done = subprocess.run([sys.executable, "-c", BOUND, str(file)], capture_output=True, text=True)

    assert done.stdout.split() == ["1", "too-large", str(len("the config is larger than 8 MB"))], (
        done.stderr
    )


def test_what_is_just_within_the_limits_is_read(tmp_path: Path) -> None:
    deep = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    texts = {
        ".toml": f"a = {deep}",
        ".json": f'{{"a": {deep}}}',
        ".yaml": f"a: {deep}",
        ".ini": f"a = {deep}",
    }
    wanted = json.loads(deep)
    for suffix, text in texts.items():
        root, problems = READERS[suffix](text, f"a{suffix}")
        assert problems == []
        node = root.items["a"]
        value = wanted
        while isinstance(value, list):
            node, value = node.items[0], value[0]  # type: ignore[union-attr,index]
