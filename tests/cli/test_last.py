"""Commands without RUN, and completion of runs, metrics and keys in a shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay.cli.main import COMPLETE_VARIABLE
from assay.script import start
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


def test_a_command_that_takes_one_run_takes_the_last_one(project: Project, assay: Assay) -> None:
    make_run(project, tag="older", id="abcdefgh", age_s=7200)
    newest = make_run(project, tag="newest", id="kq3fabcd", points={"loss": [1.0, 0.5]})

    for command in ("show", "log", "label", "metrics"):
        said = assay(command)
        assert said.code == 0 and "abcdefgh" not in said.out + said.err, said.err
    assert assay("show").lines[0].split() == ["newest", "kq3fabcd", "finished"]
    assert assay("live", "--once").out.startswith("newest")
    assert newest.name in assay("log").err
    compared = assay("diff").lines
    assert compared[0].split()[1] == "abcdefgh" and compared[1].split()[1] == "kq3fabcd"


def complete(assay: Assay, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return what a shell would offer at the end of a line."""
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return [line.partition(",")[2] for line in assay("-").lines]


def test_a_shell_completes_runs_metrics_and_keys(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(project, tag="digits", id="kq3fabcd", points={"valid/acc": [0.5]})
    Path("a.toml").write_text("[model]\nwidth = 3\n")

    assert complete(assay, monkeypatch, "assay show ") == ["last", "last-1", "digits", "kq3fabcd"]
    assert complete(assay, monkeypatch, "assay show kq") == ["kq3fabcd"]
    assert complete(assay, monkeypatch, "assay plot last -m va") == ["valid/acc"]
    keys = complete(assay, monkeypatch, "assay run a.toml model.")
    assert "model.width=" in keys
    assert "train.epochs=" in complete(assay, monkeypatch, "assay check a.toml train.ep")


def test_runs_inside_of_a_git_repository_are_ignored_by_git(project: Project) -> None:
    subprocess.run(["git", "init", "-q"], check=True)

    with start("digits", project=project):
        pass

    listed = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], capture_output=True, text=True, check=True
    )
    assert "runs/" not in listed.stdout
    (project.runs_dir / ".gitignore").write_text("")
    with start("digits", project=project):
        pass
    assert (project.runs_dir / ".gitignore").read_text() == ""
