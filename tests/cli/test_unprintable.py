"""Names that no UTF-8 holds, in paths and in records, in each command that reads or edits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import COMMANDS
from assay.store.known_projects import remember
from run_folders import HALF, id_of, make_project, make_unprintable_run

Assay = Callable[..., Any]

READING = {
    "check": [["RUN"], [HALF]],
    "compare": [["RUN", "OTHER", "-m", HALF], [f"tag ~ '{HALF}'", f"tag = '{HALF}'", "-m", "loss"]],
    "config": [["ls"], ["explain", "lr", "RUN"], ["show", HALF]],
    "diff": [["RUN", "OTHER"], ["RUN", "OTHER", "--json"]],
    "diverge": [["RUN", "OTHER", "--no-rerun"]],
    "export": [["RUN"], ["RUN", HALF], [HALF]],
    "figure": [["curves", "RUN", "--title", HALF, "-m", "loss", "--to", f"{HALF}.svg"]],
    "find": [["FILE"], [HALF]],
    "gc": [[], ["--dry-run"]],
    "import": [["tensorboard", HALF]],
    "inbox": [[], ["--json"]],
    "live": [["RUN", "--once"]],
    "log": [["RUN"], [HALF]],
    "ls": [[], ["--json"], ["--csv"], ["--all-projects"], ["--group"], [f"tag ~ '{HALF}'"]],
    "metrics": [["RUN"], ["RUN", "--csv"], ["RUN", "--json"]],
    "edit": [["RUN", "--note", HALF, "--label", HALF, "--tag", HALF, "--archive"]],
    "pack": [["RUN"]],
    "replay": [["RUN"]],
    "report": [["RUN"], ["RUN", "--card"], [f"tag ~ '{HALF}'", "-o", f"{HALF}.html"]],
    "rerun": [["RUN"]],
    "restore": [["RUN", "--to", f"to-{HALF}"]],
    "resume": [["RUN"]],
    "rm": [["RUN"]],
    "show": [["RUN"], ["RUN", "--json"], ["RUN", "--config"], ["RUN", "--check"]],
    "table": [["ls"], ["create", HALF]],
    "test": [["RUN"]],
    "unpack": [[HALF]],
}
BEGINNING = {
    *("init", "run", "queue", "sweep", "verify-resume", "prove"),
    *("ui", "board", "serve"),
}
"""Commands that begin something, or go on until they are stopped."""


def test_every_command_that_reads_is_tried() -> None:
    assert set(COMMANDS) == set(READING) | BEGINNING


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(name, arguments) for name, lines in READING.items() for arguments in lines],
)
def test_a_name_that_is_no_text_is_no_fault_and_is_printed_as_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assay: Assay,
    command: str,
    arguments: list[str],
) -> None:
    project = make_project(tmp_path / os.fsdecode(b"bytes\xff"))
    folders = [make_unprintable_run(project) for _ in range(2)]
    remember(project.root)
    monkeypatch.chdir(project.root)
    named = {"RUN": id_of(folders[0]), "OTHER": id_of(folders[1])}
    named["FILE"] = str(next((folders[0] / "artifacts").iterdir()))

    done = assay(command, *(named.get(argument, argument) for argument in arguments))

    assert done.code in (0, 1, 2), done
    assert "fault in assay" not in done.err, done.err
    (done.out + done.err).encode("utf-8")
    if "--json" in arguments:
        assert done.out
        json.loads(
            "[" + ",".join(done.out.splitlines()) + "]" if command == "metrics" else done.out
        )
