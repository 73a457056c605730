"""What works when a package is missing, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from examples import DIGITS

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = (
    "torch",
    "yaml",
    "fastapi",
    "uvicorn",
    "tensorboard",
    "matplotlib",
)


def bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A python in which no extra can be imported."""
    absent = folder / "absent"
    absent.mkdir(exist_ok=True)
    (absent / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
    )
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{absent}{os.pathsep}{ROOT / 'src'}",
            "NO_COLOR": "1",
            "COLUMNS": "80",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.row("D01", "A89")
def test_without_torch_a_script_is_recorded_and_its_record_is_shown(tmp_path: Path) -> None:
    script = "import assay\nwith assay.start(tag='bare', config={'lr': 1}) as run:\n    run.log({'loss': 0.5}, step=1)\n"

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
    said = bare(tmp_path, "-m", "assay", command, str(DIGITS))

    text = said.stdout + said.stderr
    assert said.returncode == 2
    assert "PyTorch is not installed" in text and "pip install torch" in text and "1 error" in text
    assert "Traceback" not in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.row("D01")
def test_importing_the_engine_without_torch_says_what_to_install(tmp_path: Path) -> None:
    said = bare(tmp_path, "-c", "import assay.engine")

    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith(
        "ModuleNotFoundError: assay.engine needs PyTorch"
    )
    assert "pip install torch" in said.stderr


def test_a_shape_mistake_is_told_without_torch_too(tmp_path: Path) -> None:
    said = bare(tmp_path, "-m", "assay", "run", str(DIGITS), "trian.epochs=1")

    assert said.returncode == 2
    assert "did you mean `train`?" in said.stderr and "PyTorch" not in said.stderr


ANYWHERE = """
import assay
from assay.config import get_config, load
from assay.config.tree import plain

assert "unpacked" in assay.__file__, assay.__file__
print(get_config("defaults/train.py").train.epochs, get_config("defaults/optim.py").AdamW)
print(get_config("beside/train.py").train.epochs, plain(load("config.py").root)["train"]["epochs"])
"""


@pytest.mark.slow
@pytest.mark.row("E04")
def test_configs_are_taken_by_their_path_from_a_wheel_and_any_folder(tmp_path: Path) -> None:
    here = {**os.environ, "PYTHONPATH": ""}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
        packed = {name for name in archive.namelist() if name.startswith("assay/config/defaults/")}
    there = ROOT / "src" / "assay" / "config" / "defaults"
    assert packed == {f"assay/config/defaults/{path.name}" for path in there.glob("*.py")}
    for folder in (tmp_path / "one", tmp_path / "two" / "deep"):
        (folder / "beside").mkdir(parents=True)
        (folder / "beside" / "train.py").write_text("train = dict(epochs=7)\n")
        (folder / "config.py").write_text(
            "from assay.config import get_config\n"
            "train = get_config('defaults/train.py').train\n"
            "train.epochs += get_config('beside/train.py').train.epochs\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", ANYWHERE],
            cwd=folder,
            env={**here, "PYTHONPATH": str(tmp_path / "unpacked")},
            capture_output=True,
            text=True,
            check=False,
        )

        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines() == [
            "10 L('torch.optim.AdamW')(lr=0.001, betas=[0.9, 0.999], weight_decay=0.01)",
            "7 17",
        ]
