"""`assay.start`: a record from any script, in one line and without torch."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from assay.config.freeze import config_hash, dump, seedless_hash
from assay.config.tree import Table, from_plain
from assay.core.diagnostics import Origin
from assay.core.facts import EndStatus, RunFact
from assay.record.recorder import RunRecorder, end_on_sigterm, ending
from assay.store.layout import Project, open_project

Thing = TypeVar("Thing")


class Run:
    """The handle of a run in any script, from `start`. As a context manager it ends with the block.

    Under ASSAY=off nothing is recorded: `folder` is None and every call does nothing.
    """

    def __init__(self, recorder: RunRecorder | None) -> None:
        self._recorder = recorder
        self.id = recorder.id if recorder else ""
        self.folder = recorder.folder if recorder else None
        if recorder is not None:
            self.log = recorder.log  # type: ignore[method-assign]  # straight to the writer: it is called every step

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Points of several metrics at one step. When it returns, they survive the death of this process."""

    def tell(self, fact: RunFact) -> None:
        """Something happened: a line in `events.jsonl`."""
        if self._recorder is not None:
            self._recorder.tell(fact)

    def artifact(self, source: str | os.PathLike[str] | bytes, name: str = "") -> str:
        """Keep a file (or bytes, which need a name) by content; returns its digest, "" when nothing is recorded."""
        return self._recorder.artifact(source, name) if self._recorder is not None else ""

    def watch(self, name: str, suffixes: Sequence[str] = (), *, folder: str | os.PathLike[str] | None = None) -> Path:
        """A folder whose files the record lists: what is created, changed and deleted in it until the run ends.

        It is a folder of the run's own, or the one given. With `suffixes` only files that end with one of them.
        """
        if self._recorder is not None:
            return self._recorder.watch(name, suffixes, folder=folder)
        return Path(tempfile.mkdtemp(prefix="assay-")) if folder is None else Path(folder)

    @overload
    def keycode(self) -> Callable[[Thing], Thing]: ...
    @overload
    def keycode(self, thing: Thing) -> Thing: ...
    def keycode(self, thing: Any = None) -> Any:
        """Keep the source of a function, class or module: `@run.keycode` above it, or `run.keycode(module)`."""
        if thing is None:
            return self.keycode
        if self._recorder is not None:
            self._recorder.keycode(thing)
        return thing

    def finish(self, status: EndStatus = "finished", reason: str = "", traceback: str = "") -> None:
        """End the run. The second time does nothing."""
        if self._recorder is not None:
            self._recorder.finish(status, reason, traceback)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(*ending(error))


def start(
    tag: str = "",
    config: Mapping[str, Any] | None = None,
    desc: str = "",
    *,
    project: Project | str | os.PathLike[str] | None = None,
    code_dirs: Sequence[str | os.PathLike[str]] = (),
    keep_output: bool = True,
) -> Run:
    """Begin to record a run, from any script: `with assay.start(tag="mnist", config={"lr": 1e-3}) as run: ...`.

    It belongs to the project around `project` (a folder; else the working directory), which becomes one when it is
    none. What the process prints meanwhile is kept in `output.txt`, children and C code included, but not in notebooks.
    The environment variable ASSAY=off switches recording off.
    """
    if is_off():
        return Run(None)
    tree = from_plain(dict(config or {}), Origin(source="<python>"))
    assert isinstance(tree, Table)
    config_toml = dump(tree)  # what cannot be written down is refused before anything is made
    home = project if isinstance(project, Project) else open_project(Path(project or Path.cwd()), create=True)
    if home.is_new:
        print(f"assay: {home.root} is a project now (it has a folder .assay/).", file=sys.stderr)
    recorder = RunRecorder.start(
        home,
        tag=tag,
        desc=desc,
        config_toml=config_toml,
        config_hash=config_hash(tree),
        seedless_hash=seedless_hash(tree),
        code_dirs=[Path(folder) for folder in code_dirs],
        keep_output=keep_output,
    )
    end_on_sigterm()
    return Run(recorder)


def is_off() -> bool:
    """Whether the user switched recording off with ASSAY=off."""
    return os.environ.get("ASSAY", "").strip().lower() in ("off", "0", "false", "no")
