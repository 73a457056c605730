"""`assay.start`: a record from any script, in one line and without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from assay.config.freeze import config_hash, dump, seedless_hash
from assay.config.tree import Table, from_plain
from assay.core.diagnostics import Origin
from assay.core.facts import EndStatus, RunFact
from assay.record.recorder import RunRecorder, ending
from assay.store.layout import Project, open_project


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
    return Run(recorder)


def is_off() -> bool:
    """Whether the user switched recording off with ASSAY=off."""
    return os.environ.get("ASSAY", "").strip().lower() in ("off", "0", "false", "no")
