"""Commands to copy: how a run is done again, gone on with, tested, proven."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from assay.query.run import RunView


@dataclass(frozen=True, slots=True)
class Command:
    """One line for a terminal in the project's folder, and what it does."""

    line: str
    purpose: str


def commands_for(run: RunView) -> list[Command]:
    """Return what can be done next with a run, the most likely first."""
    name = run.id
    found = []
    if run.status in ("failed", "stopped", "killed") and run.checkpoints:
        found.append(Command(f"assay resume {name}", "resume where it was"))
    if run.file.config_path:
        found.append(Command(f"assay rerun {name}", "train the same config again, as a new run"))
    elif run.file.attempts and run.file.newest.command:
        found.append(
            Command(shlex.join(run.file.newest.command), "the command that it was started with")
        )
    if run.checkpoints and run.kind == "train" and run.file.config_path:
        found.append(Command(f"assay test {name}", "evaluate it on its test data"))
        found.append(
            Command(
                f"assay replay {name}", "train it again from its own code, and compare the bits"
            )
        )
    if run.code.snapshot:
        found.append(
            Command(
                f"assay restore {name} --to {name}", "its code and config as they were, in a folder"
            )
        )
    found.append(Command(f"assay log {name}", "what it logged"))
    return found
