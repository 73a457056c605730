"""A config composes allowed calls freely, and reaches no code, file, import or network by it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from warm_python import Run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ATTACKS = sorted((HERE / "configs").glob("*.toml"))
SEED, NUMBER = (
    int(os.environ.get("ASSAY_ATTACK_SEED", 0)),
    int(os.environ.get("ASSAY_ATTACKS", 500)),
)

PIPES = "torch.utils.data.datapipes"
FRAMES = f"{PIPES}.dataframe.dataframes"
OPENED = [
    *(
        f"{FRAMES}.{name}"
        for name in ("CaptureGetAttr", "CaptureGetItem", "CaptureVariable", "DataFrameTracedOps")
    ),
    f"{FRAMES}.CaptureLikeMock",
    f"{PIPES}.iter.fileopener.FileOpenerIterDataPipe",
    f"{PIPES}.iter.routeddecoder.RoutedDecoderIterDataPipe",
    f"{PIPES}.iter.utils.IterableWrapperIterDataPipe",
]
"""What the attacks below need, and what the allow-list had when it was made of whole modules."""


class Touch:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PWNED-unpickle",)


def attacked(folder: Path, **asked: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "compositions.py")],
        input=json.dumps({"folder": str(folder), **asked}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.thorough
def test_no_composition_of_allowed_targets_does_anything_but_compute_and_record(
    tmp_path: Path,
) -> None:
    found = attacked(tmp_path, number=NUMBER, seed=SEED)

    assert found["events"] == []
    assert found["compositions"] == NUMBER
    assert found["targets"] == found["of"] > 400
    assert found["counts"]["built"] > NUMBER
    assert found["counts"]["trained"] > NUMBER // 10
    assert found["counts"]["finished"] > 0
    assert list(tmp_path.rglob("PWNED*")) == []


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
def test_the_watch_sees_what_an_allow_list_of_whole_modules_let_through(
    attack: Path, tmp_path: Path
) -> None:
    (tmp_path / "evil.pyd").write_bytes(pickle.dumps(Touch()))

    found = attacked(tmp_path, trees=[tomllib.loads(attack.read_text())], listed=OPENED)

    wanted = {"capture": "os.system", "mock": "exec", "unpickle": "pickle.find_class"}[attack.stem]
    assert any(event.startswith(wanted) for event in found["events"])


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
def test_a_config_that_runs_a_command_is_refused_by_check_and_by_run(
    attack: Path, tmp_path: Path, warm: Run
) -> None:
    (tmp_path / "evil.pyd").write_bytes(pickle.dumps(Touch()))
    (tmp_path / "a.toml").write_text(attack.read_text())
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}

    for arguments in (
        ["check", "a.toml", "--shape"],
        ["check", "a.toml", "--strict"],
        ["run", "a.toml"],
    ):
        done = warm(["-m", "assay", *arguments], folder=tmp_path, variables=variables)
        assert done.returncode == 2
        assert "fine" not in done.stdout
        assert "[target-not-allowed]" in done.stdout + done.stderr

    assert list(tmp_path.rglob("PWNED*")) == []
