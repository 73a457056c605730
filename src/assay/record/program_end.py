"""End of a program, as far as Python does not tell it there: exit codes and errors of threads."""

from __future__ import annotations

import atexit
import opcode
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from assay.core import signals
from assay.core.facts import EndStatus
from assay.record.ending import ending

End = tuple[EndStatus, str, str]
"""Status, reason and traceback."""

_UNKNOWN: End = "stopped", "SystemExit, its code is unknown", ""
"""End by a `raise SystemExit(...)`, of which Python keeps nothing. `sys.exit` tells its code."""


class ProgramEnd:
    """Observer of `sys.exit` and of the errors of threads, between `watch` and `leave`.

    A program whose main module has run to its end has finished. Another one has ended by the error
    that Python printed, else by its last `sys.exit`, else in a way that nobody knows.
    """

    def __init__(self) -> None:
        self._finish: Callable[[], None] | None = None
        self._main: FrameType | None = None
        self._exit: SystemExit | None = None
        self._of_thread: End | None = None
        self._of_child: BaseException | None = None
        self._undo: list[Callable[[], None]] = []

    def watch(self, finish: Callable[[], None]) -> None:
        """Begin to observe, unless that is done; `finish` is called when the program ends."""
        if self._finish is not None:
            return
        self._finish = finish
        self._exit = self._of_thread = self._of_child = None
        atexit.register(finish)
        if _is_child():
            _finish_in_child(finish)
            import traceback  # here: only children need it

            self._replace(traceback, "print_exc", self._around_print_exc)
        if not hasattr(sys, "ps1"):  # at a prompt each command has a frame of its own
            self._main = _frame_of_program()
        self._replace(sys, "exit", self._around_exit)
        if "_sitebuiltins" in sys.modules:
            self._replace(sys.modules["_sitebuiltins"].Quitter, "__call__", self._around_quit)
        self._replace(threading, "excepthook", self._around_excepthook)

    def leave(self) -> None:
        """Observe no more."""
        if self._finish is not None:
            atexit.unregister(self._finish)
        while self._undo:
            self._undo.pop()()
        self._finish = self._main = None

    def end(self) -> End:
        """Return how the program ends: by a signal, an error, its exit code or a failed thread."""
        error = signals.last_obeyed or sys.exc_info()[1] or self._of_child
        if error is None and self._main is not None and not _has_returned(self._main):
            error = getattr(sys, "last_value", None) or self._exit
            if error is None:
                return _UNKNOWN
        return self.end_of_block(error)

    def end_of_block(self, error: BaseException | None) -> End:
        """Return how a block ends that `error` has left; without one a thread may have failed."""
        is_good = error is None or (isinstance(error, SystemExit) and not error.code)
        return self._of_thread if is_good and self._of_thread is not None else ending(error)

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put a function around another, and take it away later unless somebody replaced it."""
        before = getattr(owner, name)
        after = around(before)
        setattr(owner, name, after)

        def undo() -> None:
            if getattr(owner, name) is after:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _around_exit(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def exit(status: Any = None, /) -> Any:
            self._note_exit(status)
            return before(status)

        return exit

    def _around_quit(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """The functions `exit` and `quit`, which are no `sys.exit`."""

        def quit(quitter: Any, code: Any = None) -> Any:
            self._note_exit(code)
            return before(quitter, code)

        return quit

    def _note_exit(self, status: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._exit = SystemExit(status)

    def _around_print_exc(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """From Python 3.13 on a child of `multiprocessing` prints its error before it ends."""

        def print_exc(*args: Any, **options: Any) -> Any:
            error = sys.exc_info()[1]
            trace = error.__traceback__ if error is not None else None
            if trace is not None and trace.tb_frame.f_code.co_name == "_bootstrap":
                self._of_child = error  # nobody of the child's own code has caught it
            return before(*args, **options)

        return print_exc

    def _around_excepthook(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(args: threading.ExceptHookArgs, /) -> Any:
            error = args.exc_value
            if self._of_thread is None and isinstance(error, Exception):
                status, reason, traceback = ending(error)
                name = args.thread.name if args.thread is not None else "a thread"
                self._of_thread = status, f"in {name}: {reason}", traceback
            return before(args)

        return excepthook


def _frame_of_program() -> FrameType | None:
    """Return the frame in which the main thread began: that of the main module, or of `-m`.

    In a child of `multiprocessing` it is the one that the child was made to call.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        if _is_child() and frame.f_back.f_code.co_name == "_bootstrap":
            return frame
        frame = frame.f_back
    return None if _is_child() else frame


def _has_returned(frame: FrameType) -> bool:
    """Return whether a frame stands at a return: one that an error has left stands elsewhere."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _is_child() -> bool:
    """Return whether this process is a child of `multiprocessing`."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _finish_in_child(finish: Callable[[], None]) -> None:
    """Call `finish` also as a child ends, which before Python 3.13 runs no `atexit`.

    There the error that ends the child is still on its way.
    """
    from multiprocessing.util import Finalize

    Finalize(None, finish, exitpriority=100)
