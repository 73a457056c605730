"""Capture of the output of a program into `output.txt`, with that of its children and of C code."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from assay.core.secrets.replacement import Secrets, from_line, to_line

if sys.platform != "win32":
    import fcntl
    import termios

    from assay.record.pump import TOKEN, OutputWriter, take_token

DRAIN_S = 2.0
"""How long the end of a run waits for output that is still on its way."""

_SOURCE = Path(__file__).resolve().parents[2]
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_SOURCE)!r}); from assay.record.pump import main; "
    "main(*sys.argv[1:])"
)
_STDOUT, _STDERR = 1, 2


class Capture:
    """Capture of the output by a helper process, which writes it down and passes it on.

    One byte in a pipe decides who reads the output. The helper takes it as it begins. A run that
    ends earlier takes it itself, and does not wait for a Python to start.
    """

    def __init__(self, path: Path, secrets: Iterable[str]) -> None:
        self._pid = os.getpid()
        self._path = path
        self._told: set[str] = set()
        self._learnt: list[str] = []
        self._lock = threading.RLock()
        self._saved: dict[int, int] = {}
        self._sources: dict[
            int, int
        ] = {}  # the ends that are read from, with the console that each belongs to
        _flush_python()
        writers: dict[int, int] = {}
        token = os.pipe()
        try:
            for descriptor in (_STDOUT, _STDERR):
                self._saved[descriptor] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            if _same(_STDOUT, _STDERR):  # one way for both, or their lines would change places
                writers[_STDOUT] = writers[_STDERR] = self._open(_STDOUT)
            else:
                writers = {descriptor: self._open(descriptor) for descriptor in (_STDOUT, _STDERR)}
            os.set_blocking(token[0], False)  # for both: of two who read, one gets nothing
            os.write(token[1], TOKEN)
            self._pump = self._start(path, token[0])
            self._tell(set(secrets))
        except BaseException:  # raised again, Ctrl-C included: no descriptor must leak
            for descriptor in {*self._saved.values(), *self._sources, *writers.values(), *token}:
                os.close(descriptor)
            raise
        for descriptor, writer in writers.items():
            os.dup2(writer, descriptor)
        for writer in {*writers.values()}:
            os.close(writer)
        self._token = token
        self._rests: dict[int, bytes] = {}
        self._consoles = list(self._saved.values())
        self._watch = threading.Thread(target=self._mourn, name="assay-output", daemon=True)
        self._watch.start()

    def stop(self) -> None:
        """Restore the descriptors, once; on return all output is in the file.

        A child that still runs and prints goes on to be captured.
        """
        if os.getpid() != self._pid:
            return
        if self._saved and self._pump.poll() is None:
            _flush_python()  # while it has the token: it reads what does not fit into the pipe
        with self._lock:  # else a helper that ends takes the descriptors away meanwhile
            if not self._saved:
                return
            is_ours = take_token(self._token[0])
            self._put_back()
            if is_ours:
                self._write_down()
        if not is_ours and threading.current_thread() is not self._watch:
            self._watch.join(DRAIN_S)  # it waits for the helper

    def _write_down(self) -> None:
        """Do the work of the helper, which has not begun; let it begin if a child still prints."""
        secrets = Secrets.among(os.environ)
        secrets.add(self._told)
        writer = OutputWriter(self._path, self._sources.items(), secrets)
        while writer.pass_on(wait_s=0):
            pass
        with contextlib.suppress(OSError):
            writer.close()
        self._learnt = [it for it in secrets.values if it not in self._told]
        if writer.streams:
            os.write(self._token[1], TOKEN)
        else:
            self._pump.kill()

    def find_secrets(self) -> list[str]:
        """Return the secrets that the output said to be some; after `stop`, once."""
        learnt, self._learnt = self._learnt, []
        if os.getpid() != self._pid or self._pump.stdout is None or self._pump.stdout.closed:
            return learnt
        with self._pump.stdout as told, contextlib.suppress(OSError, ValueError):
            os.set_blocking(told.fileno(), False)  # a child may still print, and keep it running
            return [*learnt, *from_line((told.read() or b"").partition(b"\n")[0])]
        return learnt

    def replace(self, secrets: Iterable[str]) -> None:
        """Let these texts be replaced, too, in what is printed from now on."""
        fresh = set(secrets) - self._told
        if fresh:
            self._tell(fresh)

    def _tell(self, secrets: set[str]) -> None:
        self._told |= secrets
        with contextlib.suppress(OSError, ValueError):  # the helper has ended
            assert self._pump.stdin is not None
            self._pump.stdin.write(to_line(secrets))

    def _open(self, descriptor: int) -> int:
        """Open a way into the helper that looks like the console; return its writing end."""
        if os.isatty(descriptor):
            source, writer = os.openpty()
            modes = termios.tcgetattr(writer)
            modes[1] &= ~termios.OPOST  # the real terminal does that
            termios.tcsetattr(writer, termios.TCSANOW, modes)
            fcntl.ioctl(
                source, termios.TIOCSWINSZ, fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
            )
        else:
            source, writer = os.pipe()
        self._sources[source] = self._saved[descriptor]
        return writer

    def _start(self, path: Path, token: int) -> subprocess.Popen[bytes]:
        pairs = [f"{source},{console}" for source, console in self._sources.items()]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(path), str(token), *pairs],
            # secrets come this way: arguments are there for everybody to read
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=[token, *self._sources, *self._sources.values()],
            # Ctrl-C is for the program, which may want to say something about it
            start_new_session=True,
        )

    def _put_back(self) -> bool:
        """Let the descriptors lead to the console again; whether this call did it."""
        with self._lock:
            if not self._saved:
                return False
            for descriptor, saved in self._saved.items():
                os.dup2(saved, descriptor)
            self._saved = {}
            return True

    def _mourn(self) -> None:
        """Show what is still on its way, and what children print, when the helper died early."""
        self._pump.wait()
        if self._pump.stdin is not None:
            self._pump.stdin.close()
        with self._lock:
            for source in self._sources:
                os.set_blocking(source, False)
            self._pass_on()  # older than what will go to the console by itself
            has_died = self._put_back()
        if has_died:
            # Nobody may find the way closed who is in the middle of a line: it stays open until all
            # have let go.
            while self._sources:
                select.select(list(self._sources), [], [])
                self._pass_on()
        for descriptor in (*self._sources, *self._consoles, *self._token):
            os.close(descriptor)

    def _pass_on(self) -> None:
        """Show the complete lines that can be read, and close a pipe without a writer."""
        for source, console in list(self._sources.items()):
            rest = self._rests.pop(source, b"")
            try:
                while data := os.read(source, 1 << 16):
                    *lines, rest = (rest + data).split(b"\n")
                    # One line at a time: the program writes there, too, and may come in between.
                    for line in lines:
                        os.write(console, line + b"\n")
            except BlockingIOError:
                self._rests[source] = rest
                continue
            except OSError:  # so says a pseudo terminal that nobody holds; or the console is gone
                pass
            with contextlib.suppress(OSError):
                os.write(console, rest)
            del self._sources[source]
            os.close(source)


def begin_capture(path: Path, secrets: Iterable[str] = ()) -> Capture | None:
    """Begin to keep what this process prints in `path`. None where that cannot or must not be.

    `secrets` are replaced in the file; secrets in variables and those that look like one are
    anyway.

    That is: in notebooks and under pytest, where `sys.stdout` is something else; while another run
    of this process does it already; on Windows.
    """
    global _active
    if sys.platform == "win32" or "pytest" in sys.modules or not _is_plain():
        return None
    if _active is not None and _active._saved and _active._pid == os.getpid():
        return None
    try:
        _active = Capture(path, secrets)
    # no descriptors, no pseudo terminal, no Python to start: a run without its output is still one
    except OSError:
        return None
    return _active


_active: Capture | None = None


def _is_plain() -> bool:
    """Return whether Python prints to the standard descriptors of the OS process."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (_STDOUT, _STDERR)
    except (AttributeError, OSError, ValueError):
        return False


def _same(one: int, other: int) -> bool:
    return os.path.sameopenfile(one, other)


def _flush_python() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
