"""Commands without RUN, and completion of runs, metrics and keys in a shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay.cli.main import COMPLETE_VARIABLE
from assay.core.job import JobSpec
from assay.record import table_edits
from assay.script import start
from assay.store.job_journal import JobJournal
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


def test_a_command_that_takes_one_run_takes_the_last_one(project: Project, assay: Assay) -> None:
    make_run(project, tag="older", id="abcdefgh", age_s=7200)
    newest = make_run(project, tag="newest", id="kq3fabcd", points={"loss": [1.0, 0.5]})

    for command in ("show", "log", "edit", "metrics"):
        said = assay(command)
        assert said.code == 0 and "abcdefgh" not in said.out + said.err, said.err
    assert assay("show").lines[0].split() == ["newest", "kq3fabcd", "finished"]
    assert assay("live", "--once").out.startswith("newest")
    assert newest.name in assay("log").err
    compared = assay("diff").lines
    assert compared[0].split()[1] == "abcdefgh" and compared[1].split()[1] == "kq3fabcd"


def test_a_command_that_takes_one_run_takes_an_expression_too(
    project: Project, assay: Assay
) -> None:
    for number, run_id in enumerate(("abcdefgh", "kq3fabcd")):
        config = f"[optimizer]\nlr = 0.{number + 1}\n"
        make_run(
            project,
            tag="sweep",
            id=run_id,
            age_s=90 - number,
            config=config,
            points={"loss": [1.0]},
        )
    wide, both = "tag = sweep and optimizer.lr > 0.1", "tag = sweep"

    assert assay("show", wide).lines[0].split() == ["sweep", "kq3fabcd", "finished"]
    for command in (
        ["metrics"],
        ["live", "--once"],
        ["pack", "--to", "a.zip"],
    ):
        name, *options = command
        assert assay(name, wide, *options).code == 0, command
        assert "2 runs fulfil `tag = sweep`" in assay(name, both, *options).err, command
    for name in ("show", "log", "replay", "restore", "resume", "rerun", "test", "diff", "check"):
        said = assay(name, both)
        assert said.code == 2 and "2 runs fulfil `tag = sweep`" in said.err, name
    for view in ("layers", "batch", "callbacks"):
        assert "2 runs fulfil `tag = sweep`" in assay("check", "--show", view, both).err, view
    assert "2 runs fulfil `tag = sweep`" in assay("diverge", both, "last").err
    assert "The run kq3fabcd was" in assay("check", "--shape", wide).err
    compared = assay("diff", "optimizer.lr < 0.2", wide).lines
    assert compared[0].split()[1] == "abcdefgh" and compared[1].split()[1] == "kq3fabcd"


def test_a_command_that_looks_at_one_config_takes_that_of_the_last_run(
    project: Project, assay: Assay
) -> None:
    config = '[model]\ntype = "torch.nn.Linear"\nin_features = 2\nout_features = 1\n'
    make_run(project, tag="line", id="kq3fabcd", config=config)

    for view in ([], ["--show", "layers"], ["--show", "batch"], ["--show", "callbacks"]):
        assert "The run kq3fabcd was recorded by a script" in assay("check", *view).err, view


def complete(assay: Assay, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return what a shell would offer at the end of a line."""
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return [line.partition(",")[2] for line in assay("-").lines if line]


def test_a_shell_completes_runs_metrics_and_keys(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(project, tag="digits", id="kq3fabcd", points={"valid/acc": [0.5]})
    make_run(project, tag="other", id="abcdefgh", age_s=9999, points={"valid/loss": [0.5]})
    Path("a.toml").write_text("[model]\nwidth = 3\n")

    assert complete(assay, monkeypatch, "assay show ") == [
        *("last", "last-1", "digits", "other", "kq3fabcd", "abcdefgh")
    ]
    assert complete(assay, monkeypatch, "assay show kq") == ["kq3fabcd"]
    assert complete(assay, monkeypatch, "assay figure curves last -m va") == ["valid/acc"]
    assert complete(assay, monkeypatch, "assay figure c") == ["curves", "confusion"]
    keys = complete(assay, monkeypatch, "assay run a.toml model.")
    assert "model.width=" in keys
    assert "train.epochs=" in complete(assay, monkeypatch, "assay check a.toml train.ep")


def test_a_shell_completes_keys_of_runs_expressions_columns_and_variants(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "[model]\nwidth = 3\n"
    make_run(project, tag="digits", id="kq3fabcd", config=config, points={"valid/acc": [0.5]})
    Path("a.toml").write_text(f"{config}\n[variants.wide]\nmodel.width = 9\n")

    def offered(line: str) -> list[str]:
        return complete(assay, monkeypatch, line)

    assert offered("assay rerun last model.") == ["model.width="]
    assert offered("assay ls valid/a") == ["valid/acc"]
    assert offered("assay ls tag=digits&&model.w") == ["tag=digits&&model.width"]
    assert offered("assay show stat") == ["status"]
    assert offered("assay ls --columns tag,model.") == ["tag,model.width"]
    assert offered("assay ls --sort valid/") == ["valid/acc"]
    assert offered("assay run a.toml --variant w") == ["wide"]
    for command in ("sweep", "prove", "verify-resume", "check"):
        assert "model.width=" in offered(f"assay {command} a.toml model."), command
    assert offered("assay sweep a.toml -m valid/") == ["valid/acc"]
    assert offered("assay edit kq") == ["kq3fabcd"]


def test_a_shell_completes_jobs_sweeps_and_tables(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(tmp_path / "queue"))
    make_run(project, tag="digits", id="kq3fabcd", attempt={"launch": {"sweep": "swp3abcd"}})

    assert complete(assay, monkeypatch, "assay queue rm ") == []
    assert not (tmp_path / "queue").exists()
    with JobJournal() as journal:
        jobs = journal.submit([JobSpec(command=("true",), cwd=".")] * 2)
    expected = [str(job) for job in reversed(jobs)]
    for command in ("rm", "pause", "logs"):
        assert complete(assay, monkeypatch, f"assay queue {command} ") == expected, command
    assert complete(assay, monkeypatch, "assay sweep --resume s") == ["swp3abcd"]
    table_edits.create(project, "results")
    assert complete(assay, monkeypatch, "assay table show re") == ["results"]


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
