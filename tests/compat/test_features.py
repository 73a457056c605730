"""Features made once, whoever asks, and feature objects as tensors."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.compat.parts.features import Fields, load_or_build, to_tensors
from assay.core.errors import InputError
from assay.engine import Loader

SRC = Path(__file__).resolve().parents[2] / "src"

BUILDER = """
import os, sys, time
from pathlib import Path
import torch
from assay.compat.parts.features import load_or_build

def build(text, scale):
    with open("calls.txt", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(float(os.environ.get("SLOW", "0")))
    return {"lengths": torch.tensor([len(line) * scale for line in Path(text).read_text().splitlines()])}

if __name__ == "__main__":
    made = load_or_build(build, "text.txt", 2, folder="cache")
    if len(sys.argv) > 1:  # a run on several ranks, in evaluation or not: no barrier is asked for
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=int(sys.argv[1]), world_size=2)
        dist.barrier()
        dist.destroy_process_group()
    print(made["lengths"].tolist())
"""


@pytest.fixture
def place(forking: None, tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("a\nbb\nccc\n")
    (tmp_path / "builder.py").write_text(BUILDER)
    return tmp_path


def start(place: Path, *arguments: str, slow: float = 0.0) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "SLOW": str(slow),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "builder.py", *arguments]
    return subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)


def calls(place: Path) -> int:
    path = place / "calls.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def until_called(place: Path, times: int) -> None:
    for _ in range(600):
        if calls(place) >= times:
            return
        time.sleep(0.05)
    pytest.fail("the builder was never called")


@pytest.mark.thorough
@pytest.mark.row("B08", "B09")
@pytest.mark.parametrize("ranks", [0, 2])
def test_features_are_built_once_by_two_processes_with_or_without_ranks(
    place: Path, ranks: int
) -> None:
    both = [start(place, *([str(i)] if ranks else []), slow=0.3) for i in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    again = start(place)  # later, alone: an evaluation

    assert outputs == ["[2, 4, 6]\n"] * 2
    assert again.communicate(timeout=60)[0] == "[2, 4, 6]\n"
    assert calls(place) == 1


@pytest.mark.thorough
@pytest.mark.row("B08")
def test_a_killed_builder_leaves_nothing_half_made_and_another_builds(place: Path) -> None:
    first = start(place, slow=60)
    until_called(place, 1)
    second = start(place)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)

    assert second.communicate(timeout=60)[0] == "[2, 4, 6]\n"
    assert calls(place) == 2
    assert sorted(path.suffix for path in (place / "cache").iterdir()) == [".lock", ".safetensors"]


@pytest.mark.row("B08")
def test_features_are_made_anew_when_data_arguments_or_code_change(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)

    def made(scale: int = 2) -> list[int]:
        builder = importlib.import_module("builder")
        return load_or_build(builder.build, "text.txt", scale, folder="cache")["lengths"].tolist()  # type: ignore[no-any-return]

    monkeypatch.setitem(sys.modules, "builder", importlib.import_module("builder"))
    assert [made(), made(), calls(place)] == [[2, 4, 6], [2, 4, 6], 1]
    assert [made(3), calls(place)] == [[3, 6, 9], 2]
    (place / "text.txt").write_text("a\n")
    assert [made(), calls(place)] == [[2], 3]
    (place / "builder.py").write_text(BUILDER.replace("len(line) * scale", "len(line) + scale"))
    monkeypatch.delitem(sys.modules, "builder")
    shutil.rmtree(place / "__pycache__", ignore_errors=True)

    assert [made(), calls(place)] == [[3], 4]


def test_features_are_kept_where_python_has_no_fcntl(place: Path) -> None:
    """On Windows: the module does not import it, and makes its files without a lock."""
    script = (
        "import assay.engine, safetensors.torch  # before Python says that it is on Windows\n"
        "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None\n"
        "from assay.compat.parts import text\n"
        "from assay.compat.parts.features import load_or_build\n"
        "print([load_or_build(list, 'ab', folder='cache'), load_or_build(list, 'ab', folder='cache')])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "[['a', 'b'], ['a', 'b']]\n", done.stderr


def test_a_damaged_file_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = load_or_build(rows, 3, folder=tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-5])

    with caplog.at_level("WARNING", logger="assay"):
        again = load_or_build(rows, 3, folder=tmp_path)

    assert "made again" in caplog.text
    assert again["names"] == made["names"] == ["a", "b"]
    assert torch.equal(again["x"], made["x"]) and np.array_equal(again["y"], made["y"])
    assert again["pair"] == (1, None)


def rows(count: int) -> dict[str, Any]:
    return {"x": torch.arange(count), "y": np.arange(2.0), "names": ["a", "b"], "pair": (1, None)}


def objects() -> object:
    return object()


def test_what_cannot_be_kept_or_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="What objects returns cannot be kept"):
        load_or_build(objects, folder=tmp_path)
    with pytest.raises(InputError, match="An argument of rows is a object"):
        load_or_build(rows, object(), folder=tmp_path)
    with pytest.raises(InputError, match="cannot be kept"):
        load_or_build(rows, 3, folder="/proc/nowhere")


@dataclass
class InputFeatures:
    input_ids: list[int]
    input_mask: list[int]
    e1_mask: list[int]
    label_id: float
    extra: list[float] | None = None


def features() -> list[InputFeatures]:
    return [InputFeatures([i, i + 1, 0], [1, 1, 0], [0, 1, 0], i % 2) for i in range(5)]


@pytest.mark.row("B10")
@pytest.mark.parametrize(
    ("mode", "dtype"), [("classification", torch.int64), ("regression", torch.float32)]
)
def test_features_become_tensors_with_labels_of_the_kind_of_output(
    mode: Any, dtype: torch.dtype
) -> None:
    made = to_tensors(features(), output_mode=mode)

    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in made.tensors.items()}
    long = ((5, 3), torch.int64)
    assert shapes == {
        "input_ids": long,
        "input_mask": long,
        "e1_mask": long,
        "label_id": ((5,), dtype),
    }
    assert len(made) == 5 and made[2]["input_ids"].tolist() == [2, 3, 0]
    assert to_tensors([{"x": 0.5}, {"x": 1}]).tensors["x"].tolist() == [0.5, 1.0]


@pytest.mark.row("B10")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_ids": [1]}, r"`input_ids` of feature 3 has the shape \(1,\), of feature 0 \(3,\)"),
        ({"e1_mask": None}, "`e1_mask` of feature 3 is missing"),
        ({"input_mask": ["a"]}, "`input_mask` of feature 3 is a list that is no number"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_index(
    change: dict[str, Any], said: str
) -> None:
    rows = features()
    for name, value in change.items():
        setattr(rows[3], name, value)

    with pytest.raises(InputError, match=said):
        to_tensors(rows)


@pytest.mark.row("B11")
def test_any_named_field_reaches_the_model_by_its_name() -> None:
    seen = []

    class Net(torch.nn.Module):
        def forward(self, input_ids: Any, input_mask: Any, e1_mask: Any, label_id: Any) -> Any:
            seen.append((input_ids.shape, e1_mask.tolist()))
            return (input_ids * e1_mask).sum()

    loader = Loader(to_tensors(features()), batch_size=2)
    for batch in loader:
        Net()(**batch)

    assert seen[0] == ((2, 3), [[0, 1, 0]] * 2) and len(seen) == 3


def test_fields_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="different lengths"):
        Fields({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(InputError, match="no features"):
        to_tensors([])
    with pytest.raises(InputError, match="output_mode"):
        to_tensors(features(), output_mode="ranking")  # type: ignore[arg-type]
