"""Python with torch and assay loaded, from which commands are forked without importing them again.

What is forked is a process like any other: an id, a folder, variables, streams, an end by exit code
or signal. Three things are not as in an interpreter that starts from nothing, and a test that is
about them takes one of its own: the packages of `LOADED` are there before anything imports them,
what `READ_AT_START` begins with is read once, and a good end does not take the interpreter apart,
which would cost more than most commands. (A command with other variables of that kind, or with
other options of Python, gets its own by itself.) The seed of Python's hashes comes from what was
forked: there are two, which take turns, so that two runs with equal bits owe that to no order of
hashes that they share.

The Python commands that such a process starts, such as ranks and jobs, are forked as well: from its
spare, a process that was forked before the command ran anything.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing.process
import multiprocessing.util
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
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import cycle, product
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
AS_UNSET = {"PYTHONHASHSEED": "0"}
"""Values that a variable of a forked process has where it is not set."""
APPLIED_LATER = {
    *("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONSAFEPATH"),
    *("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
}
OVERRIDING = [
    f"{name.partition('.')[0]}{end}"
    for name in ("sitecustomize", "usercustomize", *LOADED)
    for end in ("", ".py")
]
"""Modules that are loaded before a folder on PYTHONPATH could give others of the same name."""
OPTIONS = ("-P", "-u")
STREAMS = ("stdin", "stdout", "stderr")
SEEDS = 2  # of the hashes of Python
IGNORABLE = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
PR_SET_CHILD_SUBREAPER = 36
MAX_STREAMS = 32
FREE_DESCRIPTOR = 512  # above any that a command hands on
TIMEOUT_S = 900


class WarmPython:
    """The process that is forked from; it ends when this side of the channel is closed.

    RuntimeError where it cannot be forked from: a thread that is lost in a fork may hold a lock for
    ever.
    """

    def __init__(
        self, variables: Mapping[str, str], python: str = sys.executable, more: Sequence[str] = ()
    ) -> None:
        self.python = python
        self.lock = threading.Lock()
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python, __file__, str(theirs.fileno()), *more],
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
            asked = {"arguments": arguments, "folder": str(folder), "variables": dict(variables)}
            with self.lock:
                send(self.channel, asked, [*streams, write])
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

    def __init__(
        self, variables: Mapping[str, str], python: str = sys.executable, more: Sequence[str] = ()
    ) -> None:
        self.like = dict(variables)
        self.python = python
        self.more = more
        self._pythons: dict[int, WarmPython] = {}
        self._turns, self._lock = cycle(range(SEEDS)), threading.Lock()

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

    @contextlib.contextmanager
    def forking(self) -> Iterator[None]:
        """Let the Python commands that this process itself starts be forked as well."""
        if sys.platform != "linux":
            yield
            return
        spare = Spare(self._fork_spare, self.like)
        spare.install()
        try:
            yield
        finally:
            spare.remove()

    def _fork_spare(self) -> tuple[int, socket.socket]:
        """Fork a spare of this process; return its id, and the channel to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            begun = self._next().begin([], folder=Path(), variables={}, streams=[theirs.fileno()])
        pid = int(ours.recv(16))
        begun.wait()
        return pid, ours

    def close(self) -> None:
        for each in self._pythons.values():
            each.close()

    def _forks(self, arguments: Sequence[str], variables: Mapping[str, str]) -> bool:
        return sys.platform == "linux" and can_be_forked(arguments, variables, self.like)

    def _next(self) -> WarmPython:
        with self._lock:
            turn = next(self._turns)
            if turn not in self._pythons:
                self._pythons[turn] = WarmPython(self.like, self.python, self.more)
            return self._pythons[turn]


Process = Forked | subprocess.Popen[str]
Begin = Callable[..., Process]


@contextlib.contextmanager
def forked(
    variables: Mapping[str, str], python: str = sys.executable, more: Sequence[str] = ()
) -> Iterator[WarmPythons]:
    """Yield a runner, whose Pythons end with it, and have more modules than `LOADED` at hand."""
    with contextlib.closing(WarmPythons(variables, python, more)) as pythons:
        yield pythons


class Replaced(BaseException):
    """The command of this process gives way to that of the arguments."""


class Spare:
    """A copy of a process as it was before its command ran, from which that starts its commands.

    It is forked by `fork` when the first command starts. What a spare starts is a child of the
    process itself, by these steps: the spare forks the new process and the next spare, and ends,
    while the process is a subreaper: it is whom the kernel gives the children of a spare that has
    ended.
    """

    def __init__(
        self, fork: Callable[[], tuple[int, socket.socket]], variables: Mapping[str, str]
    ) -> None:
        self.fork = fork
        self.pid = 0
        self.channel: socket.socket | None = None
        self.like = variables
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.start_cold, self.spawn_cold = subprocess._fork_exec, os.posix_spawnp
        self.pass_cold = multiprocessing.util.spawnv_passfds
        self.replace_cold = os.execvp

    def start(self) -> None:
        """Fork it."""
        self.pid, self.channel = self.fork()

    def install(self) -> None:
        """Let what this process starts be forked: by `subprocess`, `posix_spawnp` or "spawn"."""
        subprocess._fork_exec, os.posix_spawnp = self.fork_exec, self.posix_spawnp
        multiprocessing.util.spawnv_passfds = self.spawnv_passfds

    def remove(self) -> None:
        """Start processes cold again, and end the spare."""
        subprocess._fork_exec, os.posix_spawnp = self.start_cold, self.spawn_cold
        multiprocessing.util.spawnv_passfds = self.pass_cold
        self.end()

    def end(self) -> None:
        """End the spare; not that of the process from which this one was forked."""
        if os.getpid() != self.owner or self.channel is None:
            return
        self.channel.close()
        os.waitpid(self.pid, 0)

    def fork_exec(
        self,
        words: Sequence[Any],
        executables: Sequence[bytes],
        closes: bool,
        kept: Sequence[int],
        folder: str | None,
        variables: Sequence[bytes] | None,
        *others: Any,
    ) -> int:
        """Start a process in the place of `_posixsubprocess.fork_exec`; return its id."""
        streams = [others[at] if others[at] >= 0 else to for to, at in enumerate((0, 3, 5))]
        errors, in_session, before = others[7], others[9], others[-2]
        given = [] if variables is None else [os.fsdecode(each) for each in variables]
        begun = 0
        if closes and before is None and (*executables,) == (os.fsencode(sys.executable),):
            begun = self.begin(
                [os.fsdecode(word) for word in words[1:]],
                os.environ if variables is None else dict(each.split("=", 1) for each in given),
                [*streams, *(each for each in kept if each != errors)],
                folder=os.fsdecode(folder or os.getcwd()),
                in_session=in_session,
            )
        return begun or self.start_cold(
            words, executables, closes, kept, folder, variables, *others
        )

    def posix_spawnp(
        self,
        program: str,
        words: Sequence[str],
        variables: Mapping[str, str],
        setsigdef: Sequence[int] = (),
    ) -> int:
        """Start a process in the place of `os.posix_spawnp`; return its id."""
        begun = 0
        if program == sys.executable:
            ignored = IGNORABLE - {*setsigdef}
            begun = self.begin(words[1:], variables, folder=os.getcwd(), ignored=ignored)
        return begun or self.spawn_cold(program, words, variables, setsigdef=setsigdef)

    def spawnv_passfds(self, path: bytes, words: Sequence[str], kept: Sequence[int]) -> int:
        """Start a process in the place of `multiprocessing.util.spawnv_passfds`; return its id.

        Neither its fork server nor its resource tracker, which outlive what starts them.
        """
        begun = 0
        if os.fsdecode(path) == sys.executable and "--multiprocessing-fork" in words:
            arguments = [word for word in words[1:] if word != "-B"]  # a variable says so, too
            descriptors = [*range(3), *kept]
            begun = self.begin(arguments, os.environ, descriptors, folder=os.getcwd())
        return begun or self.pass_cold(path, words, kept)

    def execvp(self, program: str, words: Sequence[str]) -> None:
        """Begin another command in this process, in the place of `os.execvp`."""
        if program == sys.executable and can_be_forked(words[1:], os.environ, self.like):
            raise Replaced(*words[1:])
        self.replace_cold(program, words)

    def begin(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        descriptors: Sequence[int] = range(3),
        ignored: Set[int] = IGNORABLE,
        **asked: Any,
    ) -> int:
        """Start a Python command, whose first three descriptors are its streams; return its id.

        It is 0 where nothing was started, since that takes an interpreter of its own.
        """
        is_known = bool(arguments) and can_be_forked(arguments, variables, self.like)
        if os.getpid() != self.owner or not is_known:
            return 0
        asked |= {
            "arguments": arguments,
            "variables": dict(variables),
            "targets": [*range(3), *descriptors[3:]],
            "ignored": [each for each in ignored if signal.getsignal(each) is signal.SIG_IGN],
            "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        with self.lock:
            become_subreaper(True)
            if self.channel is None:
                self.start()
            assert self.channel is not None
            send(self.channel, asked, descriptors)
            pid, following = map(int, self.channel.recv(64).split())
            os.waitpid(self.pid, 0)
            self.pid = following
            become_subreaper(False)
        return pid


def become_subreaper(is_one: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_one))


def can_be_forked(
    arguments: Sequence[str], variables: Mapping[str, str], like: Mapping[str, str]
) -> bool:
    """Return whether a command has no option but `OPTIONS`, and start-up variables as in `like`."""
    first = (*split_options(arguments)[1], "-")[0]
    is_known = first in ("-m", "-c") or (not first.startswith("-") and first != __file__)
    added = {*path_in(variables)} - {*path_in(like)}
    return (
        is_known
        and all(
            like.get(name, AS_UNSET.get(name)) == variables.get(name, AS_UNSET.get(name))
            for name in like.keys() | variables.keys()
            if name.startswith(READ_AT_START) and name not in APPLIED_LATER
        )
        and not any(os.path.lexists(os.path.join(*each)) for each in product(added, OVERRIDING))
    )


def split_options(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return those of `OPTIONS` with which a command begins, and the rest of it."""
    end = next((at for at, each in enumerate(arguments) if each not in OPTIONS), len(arguments))
    return arguments[:end], arguments[end:]


def path_in(variables: Mapping[str, str]) -> list[str]:
    return [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]


def send(channel: socket.socket, asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Ask for a process, with the descriptors that it gets."""
    text = json.dumps(asked).encode("ascii")
    socket.send_fds(channel, [len(text).to_bytes(8, "big")], streams)
    channel.sendall(text)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Return what `send` sent, with the descriptors as `streams`; None once the channel is closed."""
    head, streams, _, _ = socket.recv_fds(channel, 8, MAX_STREAMS)
    if not head:
        return None
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += channel.recv(int.from_bytes(head, "big") - len(text)) or os._exit(1)
    return {**json.loads(text), "streams": streams}


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
            asked = receive(channel)
            if asked is None:
                os._exit(0)
            *streams, answers = asked["streams"]
            pid = os.fork()
            if pid == 0:
                channel.close()
                for descriptor in (answers, *ends, *(each for _, each in ends.values())):
                    os.close(descriptor)
                if asked["arguments"]:
                    return stand_by({**asked, "streams": streams})
                if os.fork():
                    os._exit(0)  # the spare is an orphan, which a subreaper takes over
                spare = socket.socket(fileno=streams[0])
                tell(spare.fileno(), os.getpid())
                return be_spare(spare)
            for stream in streams:
                os.close(stream)
            tell(answers, pid)
            end = os.pidfd_open(pid)
            ends[end] = pid, answers
            waiting.register(end, selectors.EVENT_READ)


def tell(answers: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(answers, b"%d\n" % number)


def stand_by(work: dict[str, Any]) -> dict[str, Any]:
    """Fork the spare of this process; return the work of the process that returns.

    That is `work` in this process, and its own in each that is forked from the spare.
    """
    if work.pop("in_session", False):
        os.setsid()
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        spare = Spare(lambda: (pid, ours), work["variables"])
        spare.start()
        spare.install()
        os.execvp = spare.execvp
        atexit.register(spare.end)
        return work
    ours.close()
    for stream in work["streams"]:
        os.close(stream)
    return be_spare(theirs)


def be_spare(channel: socket.socket) -> dict[str, Any]:
    """Fork for the first request this process's command and the next spare, and end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        asked = receive(channel)
        if asked is None:
            os._exit(0)
        own = os.getpid()
        if not (begun := os.fork()):
            channel.close()
            while os.getppid() == own:
                time.sleep(0.001)
            return stand_by(asked)
        for stream in asked["streams"]:
            os.close(stream)
        if following := os.fork():
            channel.send(b"%d %d" % (begun, following))
            os._exit(0)


AT_START = dict(os.environ)
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
    arguments: list[str],
    folder: str,
    variables: dict[str, str],
    streams: list[int],
    **inherited: Any,
) -> None:
    """Be the process that `python ARGUMENTS` starts, to its end."""
    inherit(streams, **inherited)
    try:
        try:
            run_as_main(arguments, folder, variables)
        except Replaced as command:
            run_as_main([*command.args], os.getcwd(), dict(os.environ))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        END.append((end.code or 0) & 0xFF)
    else:
        END.append(0)


def inherit(
    streams: list[int],
    targets: Sequence[int] = range(3),
    ignored: Sequence[int] = (),
    blocked: Sequence[int] = (),
) -> None:
    """Take on what a process has of the one that started it: descriptors and signals."""
    above = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, FREE_DESCRIPTOR) for stream in streams]
    for stream in streams:
        os.close(stream)
    for stream, target in zip(above, targets, strict=True):
        os.dup2(stream, target)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def run_as_main(arguments: list[str], folder: str, variables: dict[str, str]) -> None:
    """Run what `python ARGUMENTS` runs."""
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = (
        folder  # below which a spawned process looks for __main__
    )
    os.environ.clear()
    os.environ.update(variables)
    sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
    sys.modules[
        "numpy"
    ].random.seed()  # as random does by itself: each process draws numbers of its own
    # It would begin again, cold: a forked process has the hashes of what it was forked from.
    for name, value in AS_UNSET.items():
        os.environ.setdefault(name, value)
    sys.orig_argv = [sys.executable, *arguments]
    options, (first, *others) = split_options(arguments)
    if "-u" in options:
        sys.stdout, sys.stderr = unbuffered(sys.stdout), unbuffered(sys.stderr)
    own = {"-m": folder, "-c": ""}.get(first, os.path.dirname(os.path.abspath(first)))
    is_safe = "-P" in options or bool(variables.get("PYTHONSAFEPATH"))
    after = len(path_in(AT_START)) + 1
    sys.path[:after] = [*([] if is_safe else [own]), *map(os.path.abspath, path_in(variables))]
    if first == "-m":
        sys.argv = others
        # What was loaded before the fork may hold objects of this module: it stays.
        warnings.filterwarnings("ignore", ".* found in sys.modules after import of package")
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = [first, *others]
        runpy.run_path(first, run_name="__main__")


def unbuffered(stream: Any) -> TextIO:
    """Return a stream to the same file that hands on each text at once, as with Python's -u."""
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


if __name__ == "__main__":
    atexit.register(leave_at_once)  # before any package: what is registered first is called last
    with socket.socket(fileno=int(sys.argv[1])) as CHANNEL:
        for name in (*LOADED, *sys.argv[2:]):
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
