"""Training in an OS process of its own, in a scratch project with the code of a run as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.compose.launch import ProcessTask, run_task
from assay.compose.trust import home_of, kept_dirs
from assay.core.errors import InputError
from assay.formats.project import RUNS_DIR_VARIABLE
from assay.formats.run_file import Attempt
from assay.query.run import RunView
from assay.record.environment import VARIABLES
from assay.store import authorship
from assay.store.code_trees import code_blobs, link_rest, path_in_copy, read_tree, write_tree
from assay.store.layout import Project, find_project, make_project, scan_runs

_SHOWN_LINES = 20
_OF_THE_PLACE = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        *("LOCAL_RANK", "RANK", "WORLD_SIZE"),
    }
)
"""Variables that say where a process runs, not how it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchProject:
    """Project in a scratch folder, with module folders, working directory and environment."""

    project: Project
    user_dirs: tuple[Path, ...]
    cwd: Path
    environment: dict[str, str]


def make_scratch_project(run: RunView, attempt: Attempt, folder: Path) -> ScratchProject:
    """Write the code of an attempt below `folder`, with links to the project's data.

    InputError when the code is not here.
    """
    home = home_of(run)
    was = Path(run.file.project)
    project = make_project(folder)
    if home is not None and home.settings.is_file():
        shutil.copyfile(home.settings, project.settings)
    _write_code(run, attempt, home, folder)
    if home is not None:
        link_rest(home.root, folder, skipped=home.runs_dir)
    dirs = [path_in_copy(Path(path), was, folder) for path in kept_dirs(run)]
    is_ours = authorship.is_own(run.folder, run.file, attempt)  # else its paths are not followed
    cwd = Path(attempt.cwd) if attempt.cwd else was
    if any(cwd.is_relative_to(root) for root in (was, was.resolve())):
        cwd = path_in_copy(cwd, was, folder)
    return ScratchProject(
        project=project,
        user_dirs=tuple(path for path in dirs if path.is_dir()),
        cwd=cwd if cwd.is_dir() and (is_ours or cwd.is_relative_to(folder)) else folder,
        environment=_environment(attempt, was, folder),
    )


def _write_code(run: RunView, attempt: Attempt, home: Project | None, folder: Path) -> None:
    digest = attempt.code.snapshot
    if not digest:
        raise InputError(
            f"No code was kept with {run.id}: nobody knows what to run.", where=str(run.path)
        )
    homes = [each for each in (find_project(run.path), home) if each is not None]
    for store in (code_blobs(each) for each in homes):
        if digest in store:
            write_tree(read_tree(store, digest), store, folder)
            return
    what = (
        f"The code of {run.id} is not here: its folder was copied without its project's code store."
    )
    raise InputError(
        what,
        where=str(run.path),
        fix="`assay pack` takes the code along, `assay unpack` brings it in",
    )


def _environment(attempt: Attempt, was: Path, folder: Path) -> dict[str, str]:
    """Return today's variables, but recorded values for those that change results."""
    kept = attempt.environment.get("variables", {})
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in VARIABLES or name in _OF_THE_PLACE
    }
    # By the list of now: a record says what it likes.
    variables |= {
        name: value
        for name, value in kept.items()
        if name in VARIABLES and name not in _OF_THE_PLACE
    }
    paths = [Path(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    inside = [
        path_in_copy(path, was, folder) if path.is_relative_to(was) else path for path in paths
    ]
    variables["PYTHONPATH"] = os.pathsep.join(map(str, inside))
    # Without it modules of the working directory come before those that were kept.
    variables["PYTHONSAFEPATH"] = "1"
    variables.pop(RUNS_DIR_VARIABLE, None)
    variables["NO_COLOR"] = "1"
    return variables


def train_in_scratch(
    task: ProcessTask, folder: Path, *, cwd: Path, variables: Mapping[str, str]
) -> str | None:
    """Train in an OS process; return its last lines when it failed, else None."""
    output = folder / "said.txt"
    with output.open("wb") as out:
        ended = run_task(
            task,
            folder,
            cwd=cwd,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    return last_lines(output) if ended.returncode else None


def last_lines(file: Path) -> str:
    """Return the last lines that an OS process has printed into a file."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_SHOWN_LINES:])


def find_only_run(runs_dir: Path) -> RunView | None:
    """Return the run of a folder of runs that has at most one."""
    return next((RunView(Path(entry.path)) for entry in scan_runs(runs_dir)), None)
