"""A large or thoroughly wrong config is checked in linear time, and reported in a few lines."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from assay.config import check_shape, open_config, open_text
from assay.config.expansion import MAX_TOLD, problems_of_sections, unique_problems, variations
from assay.config.variants import MAX_VARIANTS
from assay.core.diagnostics import MAX_FOUND, MAX_SHOWN, Origin, Problem, render, summary
from assay.core.errors import MAX_WORD, ConfigError, InputError, few_suggestions, nearest

BASE = """
[model]
type = "torch.nn.Linear"
in_features = 1
out_features = 1
[optimizer]
type = "torch.optim.SGD"
lr = 0.1
[train]
steps = 1
"""

# Each makes a config of about `n` parts.
GROWING: dict[str, Callable[[int], str]] = {
    "variants": lambda n: "".join(f'[variants.v{i}]\n"optimizer.lr" = {i}.5\n' for i in range(n)),
    "variants that name values": lambda n: (
        "[lr]\nr = 0.5\n"
        + "".join(f"[variants.v{i}]\n'optimizer.lr' = '${{lr.r}}'\n" for i in range(n))
    ),
    "values of a sweep": lambda n: (
        f'[sweep]\n"optimizer.lr" = [{", ".join(f"{i}.5" for i in range(n))}]\n'
    ),
    "sections that nothing uses": lambda n: "".join(f"[section{i}]\na = 1\n" for i in range(n)),
    "sections that are used": lambda n: (
        "".join(f"[section{i}]\na = 1\n" for i in range(n))
        + "[use]\n"
        + "".join(f"a{i} = '${{section{i}.a}}'\n" for i in range(n))
    ),
    "keys that nothing uses": lambda n: (
        "[part]\nused = 1\n"
        + "".join(f"a{i} = 1\n" for i in range(n))
        + "[use]\na = '${part.used}'\n"
    ),
    "unknown keys of a section": lambda n: (
        "[data.train]\n" + "".join(f"shufle{i} = 1\n" for i in range(n))
    ),
    "keys at the top": lambda n: "".join(f"k{i} = 1\n" for i in range(n)),
    "a long reference": lambda n: f'[use]\na = "${{{".".join("a" * 5 * n)}}}"\n',
    "unknown targets": lambda n: "".join(
        f'[m{i}]\ntype = "torch.nn.Lineer{i}"\n' for i in range(n)
    ),
    "references to nothing": lambda n: (
        "[use]\n" + "".join(f'a{i} = "${{modle.width{i}}}"\n' for i in range(n))
    ),
    "objects that are not there": lambda n: (
        "[use]\n" + "".join(f'a{i} = "@modle{i}"\n' for i in range(n))
    ),
    "a chain of references": lambda n: (
        "[c]\na0 = 1\n" + "".join(f'a{i} = "${{c.a{i - 1}}}"\n' for i in range(1, n))
    ),
}


def calls_of(what: Callable[[], object]) -> int:
    """How many functions are called: a measure of work that is the same on every machine."""
    count = 0

    def listen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(listen)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", GROWING)
def test_twice_as_many_take_twice_as_long(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def check(n: int) -> list[Problem]:
        config = open_text(GROWING[name](n) + BASE)
        assert not any(problem.kind == "syntax" for problem in config.problems)
        return [*unique_problems(variations(config), check_shape), *problems_of_sections(config)]

    check(50)  # what is imported late
    small, large = calls_of(lambda: check(200)), calls_of(lambda: check(400))

    assert large < 2.5 * small


def test_more_variants_than_anybody_runs_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = open_text("[variants]\n" + "".join(f"v{i} = {{}}\n" for i in range(MAX_VARIANTS + 1)))

    (problem,) = problems_of_sections(config)

    assert problem.kind == "too-large"
    assert "2,001 variants" in problem.message
    assert list(variations(config)) == [config]


@pytest.mark.thorough
def test_of_many_configs_that_are_large_some_are_checked_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = "".join(f"k{i} = 1\n" for i in range(1_000))
    config = open_text(
        f"[model]\ntype = 'm.Net'\n{keys}"
        + "".join(f"[variants.v{i}]\nseed = 1\n" for i in range(400))
    )

    (problem,) = problems_of_sections(config)

    assert len(list(variations(config))) < 202
    assert problem.severity == "warning"
    assert problem.message.startswith("of the 400 configs of this file 1")
    small = open_text(BASE + "".join(f"[variants.v{i}]\nseed = 1\n" for i in range(400)))
    assert problems_of_sections(small) == [] and len(list(variations(small))) == 401


def test_of_many_configs_that_are_wrong_no_more_are_looked_at_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = open_text(
        BASE + "".join(f"[variants.v{i}]\n'optimzer.lr' = {i}\n" for i in range(1_000))
    )

    found = unique_problems(variations(config), check_shape)

    assert len(found) == MAX_TOLD + 2
    assert found[-1].kind == "too-many"
    assert (
        found[-1].message
        == "more than 400 mistakes: configs of this file after v400 were not looked at"
    )


def test_after_two_thousand_wrong_targets_no_more_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = open_text(BASE + "[[plugins]]\ntype = 'modle.Net'\n" * 5_000)

    found = check_shape(config)

    assert len([problem for problem in found if problem.kind == "target-not-allowed"]) == MAX_FOUND
    assert [problem.message for problem in found if problem.kind == "too-many"] == [
        "more than 2,000 mistakes: what comes after this one was not looked at"
    ]


def test_no_number_is_larger_than_what_a_machine_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "threads = 5000": "4096",
        f"seed = {2**63}": str(2**63 - 1),
        "data.train.workers = 99999": "4096",
    }

    for text, limit in texts.items():
        (problem,) = (
            each for each in check_shape(open_text(text + BASE)) if each.kind == "wrong-value"
        )
        assert f"must be at most {limit}, not " in problem.message


@pytest.mark.parametrize("kind", ["a named pipe", "a folder", "a device", "a socket"])
@pytest.mark.parametrize("suffix", [".toml", ".py"])
def test_what_is_no_file_is_refused_before_it_is_read(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    with socket.socket(socket.AF_UNIX) as made:
        match kind:
            case "a named pipe":
                os.mkfifo(path)
            case "a folder":
                path.mkdir()
            case "a device":
                path.symlink_to("/dev/zero")
            case _:
                made.bind(str(path))
        with pytest.raises(InputError, match=f"a{suffix} is {kind}, not a config file"):
            open_config(path)


def test_a_pipe_among_the_modules_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nets.py")
    (tmp_path / "a.toml").write_text(
        '[model]\ntype = "nets.Net"\n[process]\ntype = "short"\n[train]\nsteps = 1\n'
    )

    kinds = {problem.key: problem.kind for problem in check_shape(open_config(tmp_path / "a.toml"))}

    assert kinds["process.type"] == "unknown-target"


def problems(count: int, *, severity: str = "error") -> list[Problem]:
    origin = Origin(source="a.toml")
    return [
        Problem(kind="k", message=f"m{i}", origin=origin, severity=severity) for i in range(count)
    ]  # type: ignore[arg-type]


def test_fifty_mistakes_are_shown_and_the_others_counted() -> None:
    many = problems(16_000)

    text = render(many, color=False)

    assert text.count("[k]") == MAX_SHOWN == 50
    assert text.endswith("\n\n... and 15,950 more")
    assert summary(many) == "16000 errors"
    assert "m49" in text and "m50 " not in text
    assert render(problems(50), color=False).count("[k]") == 50
    assert "more" not in render(problems(50), color=False)
    assert len(str(ConfigError(many))) < 5_000


def test_of_many_the_errors_are_shown_before_the_warnings() -> None:
    text = render([*problems(60, severity="warning"), *problems(10)], color=False)

    assert text.count("error:") == 10
    assert text.count("warning:") == 40
    assert text.endswith("... and 20 more")


def test_a_message_and_a_line_of_megabytes_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("x = " + "y" * 3_000_000)
    origin = Origin(source=str(file), line=1, column=2_000_000, end_line=1, end_column=2_000_010)

    text = render(
        [Problem(kind="k", message="z" * 3_000_000, origin=origin, fix="f")], color=False, width=80
    )

    assert len(text) < 5_000
    assert "yyyyyyyyyy" in text and "^^^^^^^^^^" in text


def test_what_was_meant_is_looked_for_in_a_bounded_number_of_words() -> None:
    with few_suggestions(25):
        found = [nearest("trian", ["train", *map(str, range(9))]) for _ in range(5)]
        with few_suggestions(1000):  # the bound around it holds
            assert nearest("trian", ["train"]) == []

    assert found == [["train"], ["train"], ["train"], [], []]
    assert nearest("trian", ["train"]) == ["train"]


def test_no_word_of_megabytes_is_compared_with_another() -> None:
    long = "a" * (MAX_WORD + 1)

    assert nearest(long, [long]) == []
    assert nearest("train", [long, "trian"]) == ["trian"]
