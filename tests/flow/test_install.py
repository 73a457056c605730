"""What works when a package is missing, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("torch", "yaml", "fastapi", "uvicorn", "tensorboard", "matplotlib", "psycopg", "optuna", "onnx")
DIGITS = str(ROOT / "examples" / "01_digits" / "digits.toml")


def bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A python in which no extra can be imported."""
    absent = folder / "absent"
    absent.mkdir(exist_ok=True)
    (absent / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS!r}))\n")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{absent}{os.pathsep}{ROOT / 'src'}", "NO_COLOR": "1", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.row("D01", "A89")
def test_without_torch_a_script_is_recorded_and_its_record_is_shown(tmp_path: Path) -> None:
    script = (
        "import assay\nwith assay.start(tag='bare', config={'lr': 1}) as run:\n    run.log({'loss': 0.5}, step=1)\n"
    )

    ran = bare(tmp_path, "-W", "error", "-c", script)
    listed = bare(tmp_path, "-m", "assay", "ls")

    assert ran.returncode == 0, ran.stderr
    assert "bare" in listed.stdout and "finished" in listed.stdout


@pytest.mark.row("D01")
def test_installing_assay_pulls_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements" / "core.txt").read_text(encoding="utf-8")

    assert not [name for name in project["dependencies"] if name.startswith(EXTRAS)]
    assert not [line for line in lock.splitlines() if line.startswith(EXTRAS)]


@pytest.mark.row("D01")
@pytest.mark.parametrize("command", ["run", "check"])
def test_training_without_torch_says_once_what_to_install(tmp_path: Path, command: str) -> None:
    said = bare(tmp_path, "-m", "assay", command, DIGITS)

    text = said.stdout + said.stderr
    assert said.returncode == 2
    assert "PyTorch is not installed" in text and "pip install torch" in text and "1 error" in text
    assert "Traceback" not in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.row("D01")
def test_importing_the_engine_without_torch_says_what_to_install(tmp_path: Path) -> None:
    said = bare(tmp_path, "-c", "import assay.engine")

    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("ModuleNotFoundError: assay.engine needs PyTorch")
    assert "pip install torch" in said.stderr


def test_a_shape_mistake_is_told_without_torch_too(tmp_path: Path) -> None:
    said = bare(tmp_path, "-m", "assay", "run", DIGITS, "trian.epochs=1")

    assert said.returncode == 2
    assert "did you mean `train`?" in said.stderr and "PyTorch" not in said.stderr
