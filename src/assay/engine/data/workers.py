"""Worker processes that load batches ahead, in the order in which they are asked for.

Each worker has a pipe of its own: a worker that is killed in the middle of a message harms no
other, and is noticed at once. Tensors come through shared memory that has no name, so nothing is
left when a process is killed.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from threading import Event, Thread
from time import monotonic, perf_counter
from typing import Any, Literal, NamedTuple

import torch
import torch.multiprocessing  # which teaches pickle to send tensors through shared memory

from assay.core import signals
from assay.core.errors import InputError
from assay.core.parent_death import end_with, main_pid
from assay.core.signals import is_crash
from assay.engine.data.randomness import Fetch
from assay.engine.data.worker_faults import (
    NOTHING,
    STARTING,
    Patience,
    WorkerError,
    on_request,
    stack_of,
    standing_still,
)
from assay.engine.numerics import private_torch

StartMethod = Literal["fork", "spawn", "forkserver"]
Task = tuple[int, int, Sequence[int]]
"""Epoch, position, indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Process that a worker ends with, 0 if it is no child. `ends_it`: the kernel may do so."""

    pid: int
    ends_it: bool


_GRACE_S = 2.0
"""Seconds of grace before a worker is reported: the whole process group may have been stopped."""
_SLICE_S = 5.0
WATCH_S = 2.0
"""How often an idle worker looks whether the process that it works for is still there."""
MAX_UNREAD_BYTES = 32_000
"""Size of the tasks waiting in a worker's pipe; with a full pipe, both sides would deadlock."""
_UNKILLABLE_S = 5.0


class Workers:
    """Pool of `workers` OS processes that run `fetch`, from the first use until `close`.

    `prefetch`: batches that each has ready or in the making. `timeout_s`: how long a batch may
    take, 0 for ever; None for a time that is learned from those before. A worker that is silent for
    longer is told with its stack, first by `warn`, then by the WorkerError that ends the run.
    `init` is called in each process with its number.
    """

    def __init__(
        self,
        fetch: Fetch,
        workers: int,
        *,
        prefetch: int = 2,
        timeout_s: float | None = None,
        init: Callable[[int], object] | None = None,
        start_method: StartMethod | None = None,
        warn: Callable[[str], object] = lambda message: None,
    ) -> None:
        self.fetch = fetch
        self.workers = workers
        self.prefetch = prefetch
        self.patience = Patience(timeout_s)
        self.init = init
        self.start_method = start_method
        self.warn = warn
        self.is_busy = False
        self._processes: list[_Process] = []
        self._owed: list[deque[Task]] = [deque() for _ in range(workers)]
        self._receiving: tuple[int, float] | None = None
        self._silent: WorkerError | None = None
        self._guard: Thread | None = None
        self._closed = Event()
        weakref.finalize(self, _end, self._processes, os.getpid(), self._closed)

    def run(self, tasks: Iterable[Task]) -> Generator[Any]:
        """Yield the batch of each task, in order; an error of one is raised in its place."""
        self.start()
        self._forget()
        self.is_busy = True
        try:
            yield from self._in_order(iter(tasks))
        finally:
            self.is_busy = False

    def start(self) -> None:
        """Start the processes unless they run; from the main thread, with which they end."""
        if not self._processes:
            self._start()

    def _in_order(self, tasks: Iterator[Task]) -> Iterator[Any]:
        first = next(tasks, None)
        if first is None:
            return
        ahead = max(1, min(self.prefetch, MAX_UNREAD_BYTES // (9 * len(first[2]) + 100)))
        sent = 0
        for task in chain([first], islice(tasks, self.workers * ahead - 1)):
            self._send(sent % self.workers, task)
            sent += 1
        received = 0
        while received < sent:
            batch = self._receive(received % self.workers)
            received += 1
            following = next(tasks, None)
            if following is not None:  # goes to the worker that has just given one
                self._send(sent % self.workers, following)
                sent += 1
            yield batch

    def _forget(self) -> None:
        """Receive and drop the batches of an iteration that was given up."""
        for number in range(self.workers):
            while self._owed[number]:
                try:
                    self._receive(number)
                except WorkerError:
                    raise
                except Exception:  # of a sample that nobody waits for
                    continue

    def close(self) -> None:
        """End the processes; they start again at the next use."""
        _end(self._processes, os.getpid(), self._closed)
        if self._guard is not None:
            self._guard.join()
        self._guard = self._silent = None
        self._owed = [deque() for _ in range(self.workers)]

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        method = context.get_start_method()
        # A worker of a fork server is no child of this process; its pipe alone tells that the
        # parent is gone.
        parent = Parent(pid=os.getpid() if method != "forkserver" else 0, ends_it=bool(main_pid()))
        # Workers, which are killed, share tensors by sockets. Those lie in the temporary folder of
        # the process that starts them, if it has one by then: it removes the folder as it ends.
        multiprocessing.util.get_temp_dir()
        for number in range(self.workers):
            self._processes.append(
                self._start_one(context, number, parent, is_forked=method == "fork")
            )
        self._closed.clear()
        self._guard = Thread(
            target=_guard, args=(weakref.ref(self), self._closed), name="assay-guard", daemon=True
        )
        self._guard.start()

    def _start_one(self, context: Any, number: int, parent: Parent, *, is_forked: bool) -> _Process:
        mine, theirs = context.Pipe()
        reader, writer = context.Pipe(duplex=False)
        at = context.RawValue("q", STARTING)
        # A forked process inherits the ends of this process, and would keep them open.
        inherited = [end for each in self._processes for end in (each.connection, each.stack)]
        inherited += [mine, reader]
        process = context.Process(
            target=_work,
            args=(
                self.fetch,
                theirs,
                writer,
                at,
                inherited if is_forked else [],
                self.init,
                number,
                self.workers,
                parent,
            ),
            name=f"assay-{self.fetch.split}-{number}",
            daemon=True,
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            for end in (mine, theirs, reader, writer):
                end.close()
            self.close()
            raise InputError(
                f"data.{self.fetch.split}: what worker processes need cannot be sent to them:"
                f" {error}",
                fix='Define it at the top of a module, or set start_method = "fork".',
            ) from error
        except BaseException:  # Ctrl-C too leaves no process behind
            self.close()
            raise
        theirs.close()
        writer.close()
        return _Process(process, mine, reader, at)

    def _send(self, number: int, task: Task) -> None:
        try:
            self._processes[number].connection.send(task)
        except OSError as error:
            raise self._error_of_ended(number) from error
        self._owed[number].append(task)

    def _receive(self, number: int) -> Any:
        connection = self._processes[number].connection
        if not wait([connection], self.patience.say_s):
            self._wait(number)
        self._receiving = number, monotonic()
        try:
            seconds, batch, error = connection.recv()
        except (EOFError, OSError) as ended:
            error = self._silent or self._error_of_ended(number)
            self.close()
            raise error from ended
        finally:
            self._receiving = None
        self.patience.took(seconds)
        self._owed[number].popleft()
        if error is not None:
            raise error
        return batch

    def _wait(self, number: int) -> None:
        """Wait for a late worker: warn, and raise WorkerError when the time limit is over."""
        say_s, end_s = self.patience.say_s, self.patience.end_s
        assert say_s is not None and end_s is not None
        connection = self._processes[number].connection
        if wait([connection], min(say_s, _GRACE_S)):
            return
        if end_s > say_s:
            what, where = self._standing_still(number, say_s)
            self.warn(
                f"{what} The run ends if that lasts {end_s:.0f} s ({self._timeout}).\n  at:  "
                f"{where}"
            )
        # In slices: a clock that ran on while all processes were stopped together counts for one of
        # them only.
        for _ in range(round((end_s - say_s) / _SLICE_S)):
            if wait([connection], _SLICE_S):
                return
        error = self._too_silent(number, end_s)
        self.close()
        raise error

    def guard(self) -> None:
        """Kill a worker that lets go of no batch, so that whoever receives it learns that.

        The descriptors of shared tensors come from a thread of the worker. One that is stopped, or
        that holds the interpreter lock, has sent the batch and yet does not answer, and `recv` has
        no time limit.
        """
        receiving, end_s = self._receiving, self.patience.end_s
        if (
            receiving is None
            or end_s is None
            or monotonic() - receiving[1] < end_s
            or self._silent is not None
        ):
            return
        number, since = receiving
        error = self._too_silent(number, end_s)
        if self._receiving == (number, since):
            self._silent = error
            self._processes[number].process.kill()

    @property
    def _timeout(self) -> str:
        return f"data.{self.fetch.split}.timeout"

    def _too_silent(self, number: int, seconds: float) -> WorkerError:
        what, where = self._standing_still(number, seconds)
        fix = f"Look at what it waits for. {self._timeout} says how long a batch may take."
        return WorkerError(what, where=where, fix=fix)

    def _standing_still(self, number: int, seconds: float) -> tuple[str, str]:
        process, _, stack, at = self._processes[number]
        owed = list(self._owed[number])
        if any(at.value in indices for _, _, indices in owed):
            where = f"sample {at.value}"
        else:
            where = f"the samples {', '.join(map(str, owed[0][2]))}"
        who = f"The loader worker {number} of data.{self.fetch.split}"
        pid = process.pid or 0
        if at.value == STARTING:
            frames = ["it is being started: it imports modules and unpickles the data set"]
        else:
            frames = stack_of(pid, stack)
        return standing_still(who, pid, where, seconds, frames, self.patience)

    def _error_of_ended(self, number: int) -> WorkerError:
        process = self._processes[number].process
        process.join(1.0)
        code, pid = process.exitcode, process.pid
        self.close()
        fix = "What it printed above says why."
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"
            fix = (
                "Look at the C code that it calls."
                if is_crash(-code)
                else "Something outside ended it."
            )
            fix = _OUT_OF_MEMORY if -code == signal.SIGKILL else fix
        return WorkerError(
            f"The loader worker {number} of data.{self.fetch.split} (pid {pid}) {how}.", fix=fix
        )


_OUT_OF_MEMORY = (
    "Most likely the memory ran out (dmesg | tail): use fewer workers, smaller "
    "batches or less prefetch."
)


class _Process(NamedTuple):
    """Worker process with its pipes, and the shared index of the sample it is loading."""

    process: BaseProcess
    connection: Connection
    stack: Connection
    at: Any


def _guard(workers: weakref.ref[Workers], closed: Event) -> None:
    """Guard the workers until they are closed or collected."""
    while not closed.wait(_SLICE_S):
        found = workers()
        if found is not None:
            found.guard()
        del found  # it would live as long as this waits


def _end(processes: list[_Process], owner: int, closed: Event) -> None:
    if os.getpid() != owner:
        return  # a copy in a forked process: they are not its own
    closed.set()
    for process, connection, stack, _ in processes:
        connection.close()
        stack.close()
        # signals that ask politely are ignored there, and nothing there needs an ending
        process.kill()
    for process, *_ in processes:
        process.join(_UNKILLABLE_S)
        if process.is_alive():
            # It waits inside of the kernel, for a disk that is gone: Python, as it exits, would
            # wait for it too.
            # `_children` is a private name of CPython 3.11 to 3.14; without it only that exit would
            # hang.
            getattr(multiprocessing.process, "_children", set()).discard(process)
        else:
            process.close()
    processes.clear()


def _work(
    fetch: Fetch,
    connection: Connection,
    stack: Connection,
    at: Any,
    ours: Sequence[Connection],
    init: Callable[[int], object] | None,
    number: int,
    workers: int,
    parent: Parent,
) -> None:
    """Run the loop of a worker process: receive tasks, send batches."""
    if parent.pid and parent.ends_it:
        end_with(parent.pid)
    # Ends of the parent: while a copy is open here, nobody learns that the parent is gone.
    for each in ours:
        each.close()
    # A signal to all processes of a run means its first one, which finishes the step and needs
    # batches for it.
    signals.ignore()
    torch.set_num_threads(1)
    prepare_worker(fetch, number=number, workers=workers)
    on_request(stack)
    fetch.at, at.value = at, NOTHING
    broken = _error_of_init(init, number, fetch.split)
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            while not connection.poll(WATCH_S):
                if parent.pid and os.getppid() != parent.pid:
                    return
            task = connection.recv()
            connection.send_bytes(_answer(fetch, task, broken, number))


def prepare_worker(fetch: Fetch, *, number: int, workers: int) -> None:
    """Let data sets find that they are loaded in a worker process."""
    dataset: Any = fetch.dataset
    private_torch.set_worker_info(number=number, workers=workers, seed=fetch.seed, dataset=dataset)


def _error_of_init(
    init: Callable[[int], object] | None, number: int, split: str
) -> Exception | None:
    """Call the user's `worker_init`; return the error that it raises, for the loading process."""
    if init is None:
        return None
    try:
        init(number)
    except Exception as error:  # of the user's function: the process that asked raises it
        error.add_note(f"while data.{split}.worker_init prepared worker {number}")
        return _sendable(error, number)
    return None


def _answer(fetch: Fetch, task: Task, broken: Exception | None, number: int) -> Any:
    """Return the message with the batch of a task, or with its error."""
    begun = perf_counter()
    try:
        batch = None if broken else fetch(*task)
        return ForkingPickler.dumps((perf_counter() - begun, batch, broken))
    except Exception as error:  # of the user's data: the process that asked raises it
        return ForkingPickler.dumps((perf_counter() - begun, None, _sendable(error, number)))


def _sendable(error: Exception, number: int) -> Exception:
    """Return the error with its traceback as a note; a RuntimeError if it cannot be pickled."""
    where = "".join(traceback.format_tb(error.__traceback__)[1:]).rstrip()
    error.add_note(f"in loader worker {number}:\n{where}")
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return error
    except Exception:  # whatever a class of the user does when it is copied
        pass
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        plain.add_note(note)
    return plain
