"""Code of a project as it was when a job was submitted, in a folder that nobody edits."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.compose.run_record import code_outside, project_around, secrets_of
from assay.config.loading import Config
from assay.core.directory import PRIVATE, make_directory
from assay.core.run_file import Code
from assay.jobs.ended_trees import tree_name, trees_dir
from assay.record.snapshot import STAT_CACHE, snapshot
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project
from assay.store.restore_code import link_rest, restored, write_tree


@dataclass(frozen=True, slots=True)
class FrozenCode:
    """Files of a snapshot in `tree`; data of the project `root` is linked beside them."""

    root: Path
    tree: Path
    code: Code

    def moved(self, path: Path) -> Path:
        """Return the frozen file or folder of a path in the project; others stay as they are."""
        found = restored(path.resolve(), self.root, self.tree)
        return found if found.exists() else path

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return `environment` with the folders of modules in the frozen tree."""
        folders = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        inside = [
            self.moved(Path(part)) if Path(part).is_relative_to(self.root) else Path(part)
            for part in folders
        ]
        # Modules of the working directory would come before the frozen ones.
        found = {**environment, "PYTHONSAFEPATH": "1"}
        return {**found, "PYTHONPATH": os.pathsep.join(map(str, inside))} if inside else found


def freeze_code(config: Config) -> FrozenCode:
    """Keep the code of a config's project, and write it to a folder of its own: once a snapshot.

    A code that is the same again uses the folder that is there.
    """
    project = project_around(config.path)
    blobs = code_blobs(project)
    code = snapshot(
        project.root,
        blobs,
        folders=code_outside(config.user_dirs, project),
        skip=project.runs_dir,
        cache=project.code_dir / STAT_CACHE,
        secrets=secrets_of(config),
    )
    tree = trees_dir(project) / tree_name(code.snapshot)
    if not tree.exists():
        _write(project, code, tree)
    os.utime(tree)  # the job that needs it is in line only a moment later
    return FrozenCode(project.root, tree, code)


def _write(project: Project, code: Code, tree: Path) -> None:
    """Write a tree whole or not at all, though several submit at once."""
    make_directory(tree.parent, PRIVATE)
    blobs = code_blobs(project)
    new = tree.with_name(f".{tree.name}-{os.urandom(4).hex()}")
    new.mkdir()
    try:
        write_tree(read_tree(blobs, code.snapshot), blobs, new)
        link_rest(project.root, new, skipped=project.runs_dir)
        with contextlib.suppress(OSError):  # somebody was quicker
            os.rename(new, tree)
    finally:
        shutil.rmtree(new, ignore_errors=True)
