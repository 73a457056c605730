"""Resuming a run that a script recorded: its command is run again, in place of this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.cli.permission import say
from assay.core.errors import InputError
from assay.core.secrets.names import REDACTED
from assay.query.find import find_run
from assay.query.run import RunView
from assay.script import RESUME_VARIABLE, resumable_command
from assay.store import authorship


def resume_if_script(address: str, overrides: Sequence[str], *, is_configured: bool) -> None:
    """Become the command of a script that resumes its own run; return for any other run.

    InputError for overrides, checkpoints and options, which only a run of a config takes; for a
    finished run; for one that was not made here; and for a command whose secrets are not kept.
    """
    name, _, checkpoint = address.partition("@")
    view = find_run(name)
    words = resumable_command(view)
    if not words:
        return
    if overrides or checkpoint or is_configured:
        raise InputError(
            f"The run {view.id} is that of a script, which takes no keys, checkpoint or options.",
            fix=f"assay resume {view.id}",
        )
    _check(view, words)
    say(f"resuming {view.id}: {shlex.join(words)}")
    os.chdir(view.file.newest.cwd)
    os.environ[RESUME_VARIABLE] = view.id
    program = sys.executable if Path(words[0]).name.startswith("python") else words[0]
    os.execvp(program, [program, *words[1:]])  # signals and exit status are those of the script


def _check(view: RunView, words: Sequence[str]) -> None:
    command = shlex.join(words)
    if view.status == "finished":
        raise InputError(f"The run {view.id} has finished: there is nothing to resume.")
    is_here = authorship.is_at_home(view.folder, view.file)
    if not is_here or not Path(view.file.newest.cwd).is_dir():
        raise InputError(
            f"The run {view.id} was not made here: its command is not run by its record.",
            where=str(view.path),
            fix=f"look at the command ({command}) and run it yourself",
        )
    if any(REDACTED in word for word in words):
        raise InputError(
            f"The record of {view.id} keeps no secrets, and its command had some: {command}.",
            fix=f"run it yourself, with {RESUME_VARIABLE}={view.id} in the environment",
        )
