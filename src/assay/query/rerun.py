"""Next steps with a run: a rerun by the queue, and commands to copy."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from assay.query.run import RunView
from assay.store import authorship


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A run as the queue would train it again; `refusal` says why it cannot, "" when it can.

    `commit` and `is_dirty` are of the code that the run had. `device` is "cpu" if the run was told
    to use it, else "auto".
    """

    run: str
    tag: str
    commit: str
    is_dirty: bool
    device: str
    refusal: str


def rerun_of(view: RunView) -> Rerun:
    """Return what the queue would train again of a run."""
    launch = view.file.newest.launch if view.file.attempts else {}
    return Rerun(
        run=view.id,
        tag=view.tag,
        commit=view.code.git_commit,
        is_dirty=view.code.git_dirty,
        device="cpu" if launch.get("device") == "cpu" else "auto",
        refusal=_refusal(view),
    )


def platform_refusal() -> str:
    """Return why this machine has no queue, "" when it can have one."""
    return "The queue needs Linux or macOS." if os.name == "nt" else ""


def _refusal(view: RunView) -> str:
    attempts = view.file.attempts
    if view.kind != "train":
        return "It is a test: there is nothing to train."
    if view.origin:
        source = view.origin.get("from", "another tracker")
        return f"It was imported from {source}: there is no config to train."
    if not attempts or "user_dirs" not in attempts[0].launch or not view.config_text:
        return "A script recorded it: there is no config to train."
    if not authorship.is_at_home(view.folder, view.file):
        return (
            "It was not made here, where it is now:"
            f" `assay rerun {view.id} --queue` in a terminal asks first."
        )
    return ranks_refusal(view)


def ranks_refusal(view: RunView) -> str:
    """Return why the queue does not train a run of several ranks, "" for any other run."""
    processes = view.file.newest.launch.get("nproc") or 1 if view.file.attempts else 1
    if isinstance(processes, int) and processes > 1:
        return (
            f"It had {processes} processes, a job of the queue has one:"
            f" assay rerun {view.id} --nproc {processes}"
        )
    return ""


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
