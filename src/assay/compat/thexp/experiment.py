"""Experiment of thexp: the record of a script, and the viewer of such records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from assay.core.errors import InputError
from assay.query import table
from assay.query.diff import key_code
from assay.query.provenance import find_by_name
from assay.query.run import RunView
from assay.record.start import Run
from assay.script import start
from assay.store.known_projects import all_projects
from assay.store.layout import make_project

Thing = TypeVar("Thing")


class Experiment:
    """Record of a script in the project `folder`, from `start_exp()` to the end of Python."""

    def __init__(self, folder: str | os.PathLike[str] = "./exp", exp_name: str = "") -> None:
        self.project = make_project(Path(folder))
        self.exp_name = exp_name or self.project.root.name
        self._run: Run | None = None
        self._key_code: list[Any] = []

    def start_exp(self) -> Experiment:
        """Begin the record; what was marked as key code before is kept in it."""
        if self._run is None:
            self._run = start(tag=self.exp_name, project=self.project)
            for thing in self._key_code:
                self._run.keycode(thing)
        return self

    def end_exp(self) -> None:
        """End the record now, not with Python."""
        self.run.finish()

    @property
    def run(self) -> Run:
        """Run of this experiment; InputError before `start_exp()`."""
        if self._run is None:
            raise InputError("The experiment has not begun.", fix="Call start_exp() before.")
        return self._run

    def hold_exp_part(self, name: str, suffixes: Sequence[str] = ()) -> str:
        """Return a folder of the record whose files with these suffixes are watched."""
        return str(self.run.watch(name, suffixes))

    def keycode(self, thing: Any = None) -> Any:
        """Keep the source of a function, class or module: `@exp.keycode()`, or with the module."""
        if thing is None:
            return self._keep
        return self._keep(thing)

    def _keep(self, thing: Thing) -> Thing:
        if self._run is None:
            self._key_code.append(thing)
        else:
            self._run.keycode(thing)
        return thing


class ExperimentViewer:
    """Experiments of this user: of the project around the working directory, and of all others.

    Keys are the ids of runs, by which `assay show` finds them too.
    """

    def list(self) -> dict[str, str]:
        """Return tag and status of every experiment by its key, newest first."""
        return _show(table.runs(all_projects=True))

    def recent(self, timedeltaobj: timedelta) -> dict[str, str]:
        """Return the experiments that began within a time."""
        return _show(table.runs(all_projects=True, recent=timedeltaobj))

    def backtracking(self, name: str) -> Sequence[tuple[str, str]]:
        """Return (key, file) for every kept file with `name` in its name."""
        return [(each.run.id, each.name) for each in find_by_name(name, all_projects())]

    def exp_code(self, key: str) -> dict[str, str]:
        """Return the key code of an experiment: source by name."""
        return key_code(self._view(key))

    def exp_info(self, key: str) -> dict[str, Any]:
        """Return what is known of an experiment: tag, status, command, files, folder."""
        view = self._view(key)
        return {
            "key": view.id,
            "tag": view.tag,
            "status": view.status,
            "command": list(view.file.newest.command),
            "folder": str(view.folder.path),
            "files": [name for owner, name in self.backtracking("") if owner == view.id],
        }

    def _view(self, key: str) -> RunView:
        for view in table.runs(all_projects=True):
            if view.id == key:
                return view
        known = ", ".join(list(self.list())[:5])
        raise InputError(
            f"There is no experiment {key!r}.", fix=f"There are: {known}." if known else ""
        )


def _show(views: Any) -> dict[str, str]:
    return {view.id: f"{view.tag}  {view.status}" for view in views}
