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
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Making an optimizer is what imports torch._dynamo. Of assay: what most commands import, which does
# nothing but take time (`test_house.py`).
LOADED = (
    *("torch", "torch._dynamo", "numpy", "safetensors.torch", "pydantic.type_adapter"),
    *("rich.console", "tomli_w", "assay.core.secrets.rules", "assay.store.device_leases"),
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
STREAMS = 3
AT_ONCE = 2  # commands that threads may run side by side
TIMEOUT_S = 300


class WarmPython:
    """The process that is forked from; it ends when this side of the channel is closed.

    RuntimeError where it cannot be forked from: a thread that is lost in a fork may hold a lock for
    ever.
    """

    def __init__(self, variables: Mapping[str, str], python: str = sys.executable) -> None:
        self.python = python
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python, __file__, str(theirs.fileno())],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.answers = self.channel.makefile("r", encoding="ascii")
        trouble = self.answers.readline().strip()
        if trouble != "ready":
            self.close()
            raise RuntimeError(trouble or "python could not be started")

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        joined: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m MODULE`, `-c TEXT` or `SCRIPT`; `joined`: both outputs in one stream."""
        reads, writes = zip(*(os.pipe() for _ in range(1 if joined else 2)), strict=True)
        pid = 0
        try:
            try:
                asked = json.dumps(
                    {"arguments": arguments, "folder": str(folder), "variables": dict(variables)}
                )
                with open(os.devnull, "rb") as nothing:
                    streams = [nothing.fileno(), writes[0], writes[-1]]
                    socket.send_fds(self.channel, [len(asked).to_bytes(8, "big")], streams)
                self.channel.sendall(asked.encode("ascii"))
                pid = int(self.answers.readline())
            finally:
                for write in writes:
                    os.close(write)
            said = all_of(reads, time.monotonic() + TIMEOUT_S)
        except BaseException:  # a test that is ended while it waits leaves no process behind
            if pid:
                os.kill(pid, signal.SIGKILL)
                self.answers.readline()
            raise
        finally:
            for read in reads:
                os.close(read)
        code = os.waitstatus_to_exitcode(int(self.answers.readline()))
        return subprocess.CompletedProcess(
            [self.python, *arguments], code, said[0], "" if joined else said[1]
        )

    def close(self) -> None:
        self.answers.close()
        self.channel.close()
        self.process.wait()


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


@contextlib.contextmanager
def forked(variables: Mapping[str, str], python: str = sys.executable) -> Iterator[Run]:
    """Yield a `run` that forks from warm Pythons on Linux; elsewhere the plain `run`.

    On macOS a process that has imported much cannot be forked. Commands are forked from two in
    turn, each of which is started when it is first needed. Two threads may run one each at the same
    time.
    """
    if sys.platform != "linux":
        yield partial(run, python=python)
        return
    pythons: dict[int, WarmPython] = {}
    turns, locks = itertools.cycle(range(AT_ONCE)), [threading.Lock() for _ in range(AT_ONCE)]

    def run_warm(arguments: Sequence[str], *, variables: Mapping[str, str], **others: Any) -> Any:
        if not can_be_forked(arguments, variables, like):
            return run(arguments, variables=variables, python=python, **others)
        turn = next(turns)
        with locks[turn]:
            if turn not in pythons:
                pythons[turn] = last.enter_context(contextlib.closing(WarmPython(like, python)))
            return pythons[turn].run(arguments, variables=variables, **others)

    like = dict(variables)
    with contextlib.ExitStack() as last:
        yield run_warm


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
    """Fork for each requested command; return its task in the forked process alone."""
    requests = channel.makefile("rb", buffering=0)
    while True:
        head, streams, _, _ = socket.recv_fds(channel, 8, STREAMS)
        if not head:
            os._exit(0)
        text = b""
        while len(text) < int.from_bytes(head, "big"):
            text += requests.read(int.from_bytes(head, "big") - len(text)) or os._exit(1)
        pid = os.fork()
        if pid == 0:
            requests.close()
            channel.close()
            return {**json.loads(text), "streams": streams}
        for stream in streams:
            os.close(stream)
        channel.sendall(b"%d\n" % pid)
        channel.sendall(b"%d\n" % os.waitpid(pid, 0)[1])


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
        threads = len(os.listdir("/proc/self/task"))
        CHANNEL.sendall(
            b"ready\n" if threads == 1 else b"importing torch started %d threads\n" % (threads - 1)
        )
        # so that the collector of a forked process does not touch, and copy, all that is shared
        gc.freeze()
        WORK = serve(CHANNEL)
    become(**WORK)  # the last line: what follows is the end of an interpreter, as of any other
