"""Commands say whether they run code of the config or project; those that do not, run none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.cli.main import COMMANDS, RUNS_CODE
from cli.conftest import Assay
from run_folders import make_run

BY_FRONT_END = {
    "a.toml": '[model]\ntype = "net.Net"\n[train]\nsteps = 1\n',
    "a.json": '{"model": {"type": "net.Net"}, "train": {"steps": 1}}',
    "a.yaml": "model:\n  type: net.Net\ntrain:\n  steps: 1\n",
    "a.ini": "[model]\ntype = net.Net\n[train]\nsteps = 1\n",
}

# What is typed for each command that runs nothing: RUN is a record that names modules elsewhere.
HARMLESS: dict[str, list[list[str]]] = {
    "init": [["new"]],
    "ls": [[], ["--json"], ["model.type ~ net"]],
    "show": [["RUN"], ["RUN", "--config"]],
    "log": [["RUN"], ["RUN", "--events"]],
    "metrics": [["RUN"], ["RUN", "--csv"]],
    "live": [["RUN", "--help"]],
    "ui": [["--help"]],
    "table": [
        ["ls"],
        ["set", "results", "net", "seed", "seed", "--run", "RUN"],
        ["show", "results"],
    ],
    "board": [["RUN", "--help"]],
    "compare": [["id = RUN", "tag = x", "-m", "loss"]],
    "diff": [["RUN", "RUN"], ["RUN", "RUN", "--code"], ["RUN", "RUN", "--config"]],
    "figure": [["curves", "RUN", "-m", "loss", "-o", "a.svg"], ["redo", "a.svg"]],
    "find": [["net.py"]],
    "edit": [["RUN", "--note", "a note", "--label", "good", "--tag", "other", "--archive"]],
    "restore": [["RUN", "--to", "restored", "--trust"]],
    "report": [["RUN"], ["RUN", "--card"], ["tag = digits", "-o", "all.html"]],
    "pack": [["RUN", "--to", "run.tar.gz"]],
    "unpack": [["run.tar.gz", "--check"]],
    "import": [["tensorboard", "runs", "--dry-run"]],
    "rm": [["RUN"]],
    "gc": [[]],
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record folder in a clone whose modules and configs leave a mark when they run.

    The record names these modules and configs.
    """
    from assay.store.layout import open_project

    root = tmp_path / "clone"
    root.mkdir()
    mark = f"open({str(tmp_path / 'PWNED')!r}, 'w').close()\n"
    (root / "net.py").write_text(
        f"from assay.build import register\n{mark}@register('net')\nclass Net: pass\n"
    )
    (root / "conftest.py").write_text(mark)
    (root / "sitecustomize.py").write_text(mark)
    (root / "program.py").write_text(f"{mark}model = dict(type='net.Net')\n")
    for name, text in BY_FRONT_END.items():
        (root / name).write_text(text)
    project = open_project(root, create=True)
    launch = {"user_dirs": [str(root)]}
    monkeypatch.chdir(root)
    return make_run(
        project, id="abcdefgh", config=BY_FRONT_END["a.toml"], attempt={"launch": launch}
    )


def is_pwned(tmp_path: Path) -> bool:
    return (tmp_path / "PWNED").exists() or "net" in sys.modules


def test_every_command_either_says_that_it_runs_code_or_is_tried_here() -> None:
    assert set(COMMANDS) - set(RUNS_CODE) == set(HARMLESS)


def test_what_does_not_say_so_runs_no_code(hostile: Path, assay: Assay, tmp_path: Path) -> None:
    assert assay("show", "abcdefgh").code == 0
    for command, all_arguments in HARMLESS.items():
        for arguments in all_arguments:
            said = assay(command, *[word.replace("RUN", hostile.name[12:20]) for word in arguments])
            assert "Traceback" not in said.out + said.err
            assert not is_pwned(tmp_path), (command, arguments)


def test_the_shape_of_a_config_is_told_without_running_anything(
    hostile: Path, assay: Assay, tmp_path: Path
) -> None:
    Path("short.toml").write_text('[model]\ntype = "net"\n[train]\nsteps = 1\n')
    for name in (*BY_FRONT_END, "short.toml"):
        for more in ([], ["--list"], ["--json"]):
            assert assay("check", name, "--shape", *more).code in (0, 2)
            assert not is_pwned(tmp_path), name


def test_a_python_config_has_no_shape_that_could_be_told(
    hostile: Path, assay: Assay, tmp_path: Path
) -> None:
    for name in ("program.py", "PROGRAM.PY"):
        said = assay("check", "--shape", name)

        assert said.code == 2
        assert "--shape runs nothing" in said.err
        assert not is_pwned(tmp_path)


def test_commands_that_run_code_say_so_in_their_help(assay: Assay) -> None:
    listed = " ".join(assay("--help").out.split()).replace("- ", "-")
    for command in RUNS_CODE:
        assert "Runs code:" in assay(command, "--help").out
        assert command in listed.partition("Your code runs with")[2]


def test_trust_in_a_record_is_an_option_of_all_that_run_one(assay: Assay) -> None:
    for command in ("resume", "rerun", "test", "export", "serve", "replay", "diverge"):
        assert "--trust" in assay(command, "--help").out
