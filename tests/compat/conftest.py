"""Python in the folder of a project, the fixture `project` of the file that uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from examples import SRC
from warm_python import Run
from web.conftest import serve as serve
from web.conftest import visit as visit


@pytest.fixture
def python(warm: Run, project: Path) -> Run:
    """Runs Python in the project, in a process of its own, to a good end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = warm(list(arguments), folder=project, variables={**os.environ, **own})
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
