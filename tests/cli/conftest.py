"""A project to stand in, and a command line that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.store.layout import Project
from run_folders import make_project


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Assay = Callable[..., Said]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that is the working directory."""
    made = make_project(tmp_path / "project")
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def assay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Assay:
    """Runs `assay ARGUMENTS...` and returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run
