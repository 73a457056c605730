"""End of a program, as far as Python does not tell it there: exit codes and errors of threads."""

from __future__ import annotations

import atexit
import builtins
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

_ENDS_CHILDREN = ("multiprocessing.popen_fork", "multiprocessing.forkserver")


class ProgramEnd:
    """Observer of `sys.exit`, `exit()` and the errors of threads, between `watch` and `leave`.

    A `raise SystemExit(...)` cannot be observed. Its code is read where it is the last thing that
    the script does outside of functions, and is a constant or a variable; else it is unknown.
    """

    def __init__(self) -> None:
        self._finish: Callable[[], None] | None = None
        self._code: object = None
        self._has_exited = False
        self._of_thread: End | None = None
        self._of_child: BaseException | None = None
        self._outermost: FrameType | None = None
        self._undo: list[Callable[[], None]] = []

    def watch(self, finish: Callable[[], None]) -> None:
        """Begin to observe, unless that is done; `finish` is called when the program ends."""
        if self._finish is not None:
            return
        self._finish, self._has_exited = finish, False
        self._of_thread = self._of_child = None
        atexit.register(finish)
        if _is_child():
            _finish_in_child(finish)
            import traceback  # here: only children need it

            self._replace(traceback, "print_exc", self._around_print_exc)
        if threading.current_thread() is threading.main_thread():
            self._outermost = sys._getframe()
            while self._outermost.f_back is not None:
                self._outermost = self._outermost.f_back
        self._replace(sys, "exit", self._around_exit)
        quitter = type(getattr(builtins, "exit", None))
        if quitter.__module__ == "_sitebuiltins":  # it raises by itself
            self._replace(quitter, "__call__", self._around_quitter)
        self._replace(threading, "excepthook", self._around_excepthook)

    def leave(self) -> None:
        """Observe no more."""
        if self._finish is not None:
            atexit.unregister(self._finish)
        while self._undo:
            self._undo.pop()()
        self._finish = self._outermost = None

    def end(self) -> End:
        """Return how the program ends: by a signal, an error, its exit code or a failed thread."""
        error = signals.last_obeyed or sys.exc_info()[1] or self._of_child or _exit_of_child()
        if error is None and not hasattr(sys, "ps1"):
            error = getattr(sys, "last_value", None)
        if error is None and self._has_exited and not self._ran_to_its_end():
            error = SystemExit(self._code)
        if error is None and self._outermost is not None:
            error = _raised_exit(self._outermost)
        return self.end_of_block(error)

    def end_of_block(self, error: BaseException | None) -> End:
        """Return how a block ends that `error` has left; without one a thread may have failed."""
        is_good = error is None or (isinstance(error, SystemExit) and not error.code)
        return self._of_thread if is_good and self._of_thread is not None else ending(error)

    def _ran_to_its_end(self) -> bool:
        """Return True if an exit that was asked for was caught, and the program went on."""
        frame = self._outermost
        if frame is None or frame.f_lasti < 0:
            return False
        import dis  # here: few programs need it, and all would wait for it

        return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put a function around another, and take it away later unless somebody replaced it."""
        before = getattr(owner, name)
        after = around(before)
        setattr(owner, name, after)

        def undo() -> None:
            if getattr(owner, name) is after:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _note_exit(self, code: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._has_exited, self._code = True, code

    def _around_exit(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def exit(status: Any = None, /) -> Any:
            self._note_exit(status)
            return before(status)

        return exit

    def _around_quitter(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(quitter: Any, code: Any = None) -> Any:
            self._note_exit(code)
            return before(quitter, code)

        return __call__

    def _around_print_exc(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """From Python 3.13 on a child of `multiprocessing` prints its error before it ends."""

        def print_exc(*args: Any, **options: Any) -> Any:
            if sys._getframe(1).f_code.co_name == "_bootstrap":
                self._of_child = sys.exc_info()[1]
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


def _raised_exit(frame: FrameType) -> SystemExit | None:
    """Return the `raise SystemExit(CODE)` by which a frame was left, None where it cannot be read.

    Python forgets the exception before it calls `atexit`; the last instruction still says it.
    """
    if frame.f_lasti < 0:
        return None
    import dis  # here: few programs need it, and all would wait for it

    if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "RAISE_VARARGS":
        return None
    done = [each for each in dis.get_instructions(frame.f_code) if each.offset <= frame.f_lasti]
    names = [each for each in done if each.opname not in ("CACHE", "PRECALL", "PUSH_NULL")]
    *_, kind, code, call, last = [None] * 4 + names
    if kind is None or code is None or call is None or last is None:
        return None
    is_exit = kind.argval == "SystemExit" and call.opname.startswith("CALL") and call.arg == 1
    if not is_exit or last.arg != 1:
        return None
    if code.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
        return SystemExit(frame.f_globals.get(code.argval))
    is_constant = code.opname in ("LOAD_CONST", "LOAD_SMALL_INT")
    return SystemExit(code.argval) if is_constant else None


def _is_child() -> bool:
    """Return whether this process is a child of `multiprocessing`."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _finish_in_child(finish: Callable[[], None]) -> None:
    """Call `finish` also as a child ends, which before Python 3.13 runs no `atexit`."""
    from multiprocessing.util import Finalize

    Finalize(None, finish, exitpriority=100)


def _exit_of_child() -> SystemExit | None:
    """Return what a forked child is about to exit with, which only the caller of `atexit` knows.

    Within `_bootstrap`, where a child ends before Python 3.13, it is not known yet.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_bootstrap":
        if frame.f_globals.get("__name__") in _ENDS_CHILDREN and "code" in frame.f_locals:
            return SystemExit(frame.f_locals["code"])
        frame = frame.f_back
    return None
