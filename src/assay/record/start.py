"""Handle of a run in any script: what `assay.start` gives."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload

from assay.core import signals
from assay.core.errors import InputError
from assay.core.facts import END_STATUSES, EndStatus, RunFact
from assay.core.ports import MediaKeeper
from assay.formats.run_file import RunFile
from assay.record.ending import ending
from assay.record.program_end import ProgramEnd
from assay.record.recordable import NO_STEP, name_value, text_of
from assay.record.recorder import RunRecorder

Thing = TypeVar("Thing")


class Attachable(Protocol):
    """Something that takes what is recorded to another place, too."""

    def attach(self, recorder: RunRecorder, /) -> None: ...


class Run(MediaKeeper):
    """Handle of a run in any script, from `assay.start`; a context manager that ends the run.

    `step` is where it began: 0, or that from which a resumed run goes on.

    Under ASSAY=off nothing is recorded: `folder` is None and every call does nothing.
    """

    def __init__(self, recorder: RunRecorder | None, *, is_part: bool = False) -> None:
        self._recorder = recorder
        self._is_part = is_part  # of a run that `assay run` began and ends
        self.is_block = False  # of a `with`: it ends there
        self.id = recorder.id if recorder else ""
        self.folder = recorder.folder if recorder else None
        self.step = recorder.run.newest.from_step if recorder else 0
        if recorder is not None:
            self.log = recorder.log  # type: ignore[method-assign]  # straight to the writer: it is called every step

    def __repr__(self) -> str:
        if self._recorder is None:
            return "<Run, nothing is recorded>"
        run = self._recorder.run
        return f"<Run {', '.join(filter(None, [run.id, run.tag, run.status]))}>"

    def log(self, values: Mapping[str, float], step: int = NO_STEP) -> None:
        """Log values of several metrics at one step; on return they survive kill -9."""

    @property
    def recorded(self) -> RunFile | None:
        """Return the content of `run.json`."""
        return self._recorder.run if self._recorder is not None else None

    def rewind(self, step: int) -> None:
        """Continue the curves from `step`; points of later steps stay as a branch."""
        if self._recorder is not None and step != self.step:
            self._recorder.rewind(step)
            self.step = step

    def tell(self, fact: RunFact) -> None:
        """Something happened: a line in `events.jsonl`."""
        if self._recorder is not None:
            self._recorder.tell(fact)

    def log_later(self, values: Mapping[str, Any], step: int) -> None:
        """Log tensors on a device; they are fetched together, every 64 calls or second.

        What was not fetched yet does not survive the death of this process.
        """
        if self._recorder is not None:
            self._recorder.log_later(values, step)

    def axis(self, name: str) -> None:
        """From now on the metric `name` is the x axis of those that are logged together with it.

        `run.axis("tokens")`, and then `run.log({"tokens": 8192, "valid/loss": 2.1}, step)`.
        """
        if self._recorder is not None:
            self._recorder.axis(name)

    def attach(self, other: Attachable) -> None:
        """Let `other`, as `assay.TensorBoard()`, receive what is logged from now on."""
        if self._recorder is not None:
            other.attach(self._recorder)
            self.log = self._recorder.log  # type: ignore[method-assign]

    def value(self, name: str, value: Any) -> None:
        """A result that is no curve: text, a number, a list, a mapping.

        Numbers of numpy and torch are numbers, paths, dates and dtypes text; what cannot be kept is
        left out with a warning.
        """
        if self._recorder is not None:
            self._recorder.set_value(name, value)

    def keep(self, kind: str, name: str, value: Any, step: int | None, **options: Any) -> str:
        """Keep a value of one of the kinds of `MediaKeeper`."""
        if self._recorder is None:
            return ""
        return self._recorder.keep(kind, name, value, step, **options)

    def artifact(self, source: str | os.PathLike[str] | bytes, name: str = "") -> str:
        """Keep a file, a folder or bytes (which need a name) by content.

        Return the digest; that of a folder is of all names and digests in it. Return "" when
        nothing is recorded.
        """
        return self._recorder.artifact(source, name) if self._recorder is not None else ""

    def watch(
        self,
        name: str,
        suffixes: Sequence[str] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Watch a folder and return it; files are listed until the end.

        Creations, changes and deletions are recorded. The folder is the run's own, or the one
        given. `suffixes` restricts it to files with one of these endings.
        """
        if self._recorder is not None:
            return self._recorder.watch(name, suffixes, folder=folder)
        return Path(tempfile.mkdtemp(prefix="assay-")) if folder is None else Path(folder)

    @overload
    def keycode(self) -> Callable[[Thing], Thing]: ...
    @overload
    def keycode(self, thing: Thing) -> Thing: ...
    def keycode(self, thing: Any = None) -> Any:
        """Keep the source of a function, class or module: as `@run.keycode`, or with a module."""
        if thing is None:
            return self.keycode
        if self._recorder is not None:
            self._recorder.keycode(thing)
        return thing

    def finish(
        self,
        status: EndStatus = "finished",
        reason: str | BaseException = "",
        traceback: str = "",
    ) -> None:
        """End the run. The second time does nothing.

        `reason` is a text, or the exception that ended the run. InputError for any other status;
        the run then stays open.
        """
        given: object = status  # a script may give anything
        if not isinstance(given, str) or given not in END_STATUSES:
            *some, last = END_STATUSES
            raise InputError(
                f"A run ends as {', '.join(some)} or {last}, not {name_value(given)}.",
                fix='run.finish("failed", reason="the loss is nan")',
            )
        if isinstance(reason, BaseException):
            _, reason, its_traceback = ending(reason)
            traceback = traceback or its_traceback
        reason, traceback = text_of(reason), text_of(traceback)
        if self._recorder is not None and not self._is_part:
            self._recorder.finish(status, reason, traceback)
        if self in _OPEN:
            _OPEN.remove(self)
            if not _OPEN:
                signals.restore_sigterm()
                _PROGRAM.leave()

    def __enter__(self) -> Self:
        self.is_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(*_PROGRAM.end_of_block(error))


_OPEN: list[Run] = []
_PROGRAM = ProgramEnd()
_SHOWN: list[object] = [None]
"""The error that the interpreter has printed last, as far as cells have been looked at."""


def finish_with_python(run: Run) -> Run:
    """End an unfinished run when Python ends: failed or stopped, if the program did."""
    _PROGRAM.watch(_finish_open)
    _OPEN.append(run)
    return run


def has_open_run() -> bool:
    """Return whether a run of this process has not ended."""
    return bool(_OPEN)


def _finish_open() -> None:
    end = _PROGRAM.end()
    for run in list(_OPEN):
        run.finish(*end)


def finish_with_cells() -> None:
    """In a notebook: end the open runs of this process as a cell that raises ends."""
    _SHOWN[:] = [getattr(sys, "last_value", None)]
    events = sys.modules["IPython"].get_ipython().events
    if _end_of_cell not in events.callbacks["post_run_cell"]:
        events.register("post_run_cell", _end_of_cell)


def _end_of_cell(result: Any) -> None:
    # %run prints the error of its script itself; only the interpreter's variable tells it.
    shown = getattr(sys, "last_value", None)
    error = result.error_in_exec or (None if shown is _SHOWN[0] else shown)
    _SHOWN[:] = [shown]
    if error is not None:
        for run in list(_OPEN):
            run.finish(*ending(error))
            why = type(error).__name__
            print(f"assay: the run {run.id} ended with its cell: {why}")
            print(f'  fix: assay.start(resume="{run.id}") continues it, assay.start() begins anew')


def finish_before() -> None:
    """In a notebook: end the runs that no `with` block holds, for a new one starts."""
    for run in [each for each in _OPEN if not each.is_block]:
        run.finish()
        print(f"assay: the run {run.id} is finished, a new one starts")
        print(f'  fix: assay.start(resume="{run.id}") continues it; a `with` block keeps both open')


def is_off() -> bool:
    """Return whether the user switched recording off with ASSAY=off."""
    return os.environ.get("ASSAY", "").strip().lower() in ("off", "0", "false", "no")
