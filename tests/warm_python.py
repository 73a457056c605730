"""Python with torch and assay loaded, from which commands are forked without importing them again.

What is forked is a process like any other: an id, a folder, variables, streams, an end by exit code
or signal. Three things are not as in an interpreter that starts from nothing, and a test that is
about them takes one of its own: the packages of `LOADED` are there before anything imports them,
what `READ_AT_START` begins with is read once, and a good end does not take the interpreter apart,
which would cost more than most commands. (A command with other variables of that kind, or with
other options of Python, gets its own by itself.) The seed of Python's hashes comes from what was
forked: there are two, which take turns, so that two runs with equal bits owe that to no order of
hashes that they share.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

# Making an optimizer is what imports torch._dynamo. Of assay: what most commands import, which does
# nothing but take time (`test_house.py`).
LOADED = (
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "numpy", "safetensors.torch"),
    "pydantic.type_adapter",
    *("rich.console", "tomli_w", "assay.core.secrets.texts", "assay.store.device_leases"),
    *("assay.cli.run", "assay.cli.check", "assay.cli.resume", "assay.cli.show", "assay.cli.diff"),
    *("assay.cli.ls", "assay.compose.run_attempt", "assay.jobs.watch", "assay.engine.loop.device"),
    *(
        "assay.engine.callbacks.debug_lines",
        "assay.engine.model.compiling",
        "assay.engine.rehearse",
    ),
    *("assay.engine.parallel.join", "assay.engine.parallel.watchdog", "assay.engine.trace"),
)
READ_AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_", "TORCH_")
APPLIED_LATER = {"PYTHONDONTWRITEBYTECODE"}
STREAMS = ("stdin", "stdout", "stderr")
SEEDS = 2  # of the hashes of Python
TIMEOUT_S = 900


class WarmPython:
    """The process that is forked from; it ends when this side of the channel is closed.

    RuntimeError where it cannot be forked from: a thread that is lost in a fork may hold a lock for
    ever.
    """

    def __init__(self, variables: Mapping[str, str], python: str = sys.executable) -> None:
        self.python = python
        self.lock = threading.Lock()
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python, __file__, str(theirs.fileno())],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdout is not None
        trouble = self.process.stdout.readline().strip()
        if trouble != "ready":
            self.close()
            raise RuntimeError(trouble or "python could not be started")

    def begin(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        streams: Sequence[int],
    ) -> Forked:
        """Start `python -m MODULE`, `-c TEXT` or `SCRIPT` with these three streams."""
        read, write = os.pipe()
        answers = os.fdopen(read, "r", encoding="ascii")
        try:
            asked = json.dumps(
                {"arguments": arguments, "folder": str(folder), "variables": dict(variables)}
            )
            with self.lock:
                socket.send_fds(self.channel, [len(asked).to_bytes(8, "big")], [*streams, write])
                self.channel.sendall(asked.encode("ascii"))
        finally:
            os.close(write)
        return Forked(int(answers.readline()), answers)

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        joined: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `joined`: both outputs in one stream."""
        reads, writes = zip(*(os.pipe() for _ in range(1 if joined else 2)), strict=True)
        begun = None
        try:
            try:
                with open(os.devnull, "rb") as nothing:
                    streams = [nothing.fileno(), writes[0], writes[-1]]
                    begun = self.begin(
                        arguments, folder=folder, variables=variables, streams=streams
                    )
            finally:
                for write in writes:
                    os.close(write)
            said = all_of(reads, time.monotonic() + TIMEOUT_S)
        except BaseException:  # a test that is ended while it waits leaves no process behind
            if begun is not None:
                begun.kill()
                begun.wait()
            raise
        finally:
            for read in reads:
                os.close(read)
        return subprocess.CompletedProcess(
            [self.python, *arguments], begun.wait(), said[0], "" if joined else said[1]
        )

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.channel.close()
        self.process.wait()


class Forked:
    """A process that was forked, as a `Popen` with one stream that is read."""

    def __init__(self, pid: int, answers: TextIO) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self.stderr: TextIO | None = None
        self._answers = answers

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code, -n where signal n ended it."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended")
            with self._answers:
                self.returncode = os.waitstatus_to_exitcode(int(self._answers.readline()))
        return self.returncode

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[str | None, str | None]:
        """Read the stream to its end, and wait."""
        said: list[str | None] = []
        for stream in (self.stdout, self.stderr):
            if stream is None:
                said.append(None)
            else:
                with stream:
                    said += all_of([stream.fileno()], time.monotonic() + timeout)
        self.wait(timeout)
        return said[0], said[1]


def all_of(reads: Sequence[int], until: float) -> list[str]:
    """Read pipes until the last process that could write to them is gone; TimeoutError if late."""
    parts: dict[int, list[bytes]] = {read: [] for read in reads}
    with selectors.DefaultSelector() as waiting:
        for read in reads:
            waiting.register(read, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(until - time.monotonic())
            if not ready and time.monotonic() > until:
                raise TimeoutError(f"a command took more than {TIMEOUT_S} s")
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                parts[key.fd].append(piece)
                if not piece:
                    waiting.unregister(key.fd)
    return [b"".join(pieces).decode("utf-8") for pieces in parts.values()]


def run(
    arguments: Sequence[str],
    *,
    folder: Path,
    variables: Mapping[str, str],
    joined: bool = False,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """The same by an interpreter that starts from nothing."""
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if joined else subprocess.PIPE,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )


Run = Callable[..., "subprocess.CompletedProcess[str]"]


class WarmPythons:
    """Runner of commands that are forked from warm Pythons on Linux, and started cold elsewhere.

    On macOS a process that has imported much cannot be forked. Commands are forked from two in
    turn, each of which is started when it is first needed. Threads may run several at once.
    """

    def __init__(self, variables: Mapping[str, str], python: str = sys.executable) -> None:
        self.like = dict(variables)
        self.python = python
        self._pythons: dict[int, WarmPython] = {}
        self._turns, self._lock = itertools.cycle(range(SEEDS)), threading.Lock()

    def __call__(
        self, arguments: Sequence[str], *, variables: Mapping[str, str], **others: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        if not self._forks(arguments, variables):
            return run(arguments, variables=variables, python=self.python, **others)
        return self._next().run(arguments, variables=variables, **others)

    def begin(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        reads: Literal["stdout", "stderr", ""] = "",
    ) -> Process:
        """Start a command, of which one stream is read; whoever starts it waits for its end."""
        if not self._forks(arguments, variables):
            return subprocess.Popen(
                [self.python, *arguments],
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if reads == "stdout" else subprocess.DEVNULL,
                stderr=subprocess.PIPE if reads == "stderr" else subprocess.DEVNULL,
                text=True,
            )
        read, write = os.pipe()
        stream = os.fdopen(read, "r", encoding="utf-8")
        with open(os.devnull, "r+b") as nothing, os.fdopen(write, "wb"):
            streams = [write if name == reads else nothing.fileno() for name in STREAMS]
            begun = self._next().begin(
                arguments, folder=folder, variables=variables, streams=streams
            )
        if reads:
            setattr(begun, reads, stream)
        else:
            stream.close()
        return begun

    def close(self) -> None:
        for each in self._pythons.values():
            each.close()

    def _forks(self, arguments: Sequence[str], variables: Mapping[str, str]) -> bool:
        return sys.platform == "linux" and can_be_forked(arguments, variables, self.like)

    def _next(self) -> WarmPython:
        with self._lock:
            turn = next(self._turns)
            if turn not in self._pythons:
                self._pythons[turn] = WarmPython(self.like, self.python)
            return self._pythons[turn]


Process = Forked | subprocess.Popen[str]
Begin = Callable[..., Process]


@contextlib.contextmanager
def forked(variables: Mapping[str, str], python: str = sys.executable) -> Iterator[WarmPythons]:
    """Yield a runner, whose Pythons end with it."""
    with contextlib.closing(WarmPythons(variables, python)) as pythons:
        yield pythons


def can_be_forked(
    arguments: Sequence[str], variables: Mapping[str, str], like: Mapping[str, str]
) -> bool:
    """Return whether a command has no Python options, and start-up variables as in `like`."""
    is_known = arguments[0] in ("-m", "-c") or not arguments[0].startswith("-")
    return is_known and all(
        like.get(name) == variables.get(name)
        for name in like.keys() | variables.keys()
        if name.startswith(READ_AT_START) and name not in APPLIED_LATER
    )


# ------------------------------------------------------------------------------------------------------- the other side


def serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for each requested command; return its task in the forked process alone.

    Its id and, once it has ended, its status go into the pipe that came with the request.
    """
    waiting = selectors.PollSelector()
    waiting.register(channel, selectors.EVENT_READ)
    ends: dict[int, tuple[int, int]] = {}
    while True:
        for ready, _ in waiting.select():
            if ready.fileobj is not channel:
                pid, answers = ends.pop(ready.fd)
                waiting.unregister(ready.fd)
                os.close(ready.fd)
                tell(answers, os.waitpid(pid, 0)[1])
                os.close(answers)
                continue
            head, passed, _, _ = socket.recv_fds(channel, 8, len(STREAMS) + 1)
            if not head:
                os._exit(0)
            text = b""
            while len(text) < int.from_bytes(head, "big"):
                text += channel.recv(int.from_bytes(head, "big") - len(text)) or os._exit(1)
            *streams, answers = passed
            pid = os.fork()
            if pid == 0:
                channel.close()
                for descriptor in (answers, *ends, *(each for _, each in ends.values())):
                    os.close(descriptor)
                return {**json.loads(text), "streams": streams}
            for stream in streams:
                os.close(stream)
            tell(answers, pid)
            end = os.pidfd_open(pid)
            ends[end] = pid, answers
            waiting.register(end, selectors.EVENT_READ)


def tell(answers: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(answers, b"%d\n" % number)


END: list[int] = []
"""Exit code of this process, once it has come to a good end."""


def leave_at_once() -> None:
    """End a process that came to a good end, after all that it does at its exit."""
    if END:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # closed: the interpreter says so at its end
            return
        os._exit(END[0])


def become(
    arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]
) -> None:
    """Be the process that `python ARGUMENTS` starts, to its end."""
    try:
        run_as_main(arguments, folder, variables, streams)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        END.append((end.code or 0) & 0xFF)
    else:
        END.append(0)


def run_as_main(
    arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]
) -> None:
    """Run what `python ARGUMENTS` runs."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
    sys.modules[
        "numpy"
    ].random.seed()  # as random does by itself: each process draws numbers of its own
    # It would begin again, cold: a forked process has the hashes of what it was forked from.
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-m":
        sys.path[0], sys.argv = folder, arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(arguments[0])), arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    atexit.register(leave_at_once)  # before any package: what is registered first is called last
    with socket.socket(fileno=int(sys.argv[1])) as CHANNEL:
        for name in LOADED:
            importlib.import_module(name)
        sys.modules["pydantic.type_adapter"].TypeAdapter(int)  # looks for plugins in all packages
        sys.modules["assay.core.secrets.texts"].secrets_in(
            "", "text"
        )  # compiles its largest pattern
        threads = len(os.listdir("/proc/self/task"))
        print("ready" if threads == 1 else f"importing torch started {threads - 1} threads")
        sys.stdout.flush()
        # so that neither the collector of a forked process nor what torch takes apart at its end
        # touches, and copies, all that is shared
        gc.freeze()
        for finalizer in list(weakref.finalize._registry):
            finalizer.atexit = False
        WORK = serve(CHANNEL)
    become(**WORK)  # the last line: what follows is the end of an interpreter, as of any other
