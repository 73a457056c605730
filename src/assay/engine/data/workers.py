"""Worker processes that load batches ahead, in the order in which they are asked for.

Each worker has a pipe of its own: a worker that is killed in the middle of a message harms no other, and is noticed at
once. Tensors come through shared memory that has no name, so nothing is left when a process is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import torch
import torch.multiprocessing  # which teaches pickle to send tensors through shared memory
from torch.utils.data._utils import worker as torch_worker  # private: `get_worker_info` reads what is set there

from assay.core import signals
from assay.core.errors import AssayError, InputError
from assay.core.parent import end_with, main_pid
from assay.core.signals import is_crash
from assay.engine.data.randomness import Fetch

StartMethod = Literal["fork", "spawn", "forkserver"]
Task = tuple[int, int, Sequence[int]]
"""Epoch, position, indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Process that a worker works for, 0 if it is no child of it. `ends_it`: the kernel may end it with the parent."""

    pid: int
    ends_it: bool


WATCH_S = 2.0
"""How often an idle worker looks whether the process that it works for is still there."""
MAX_UNREAD_BYTES = 32_000
"""Tasks that wait in the pipe of a worker: more might not fit, and then each would wait for the other for ever."""


class WorkerError(AssayError):
    """A worker process ended, or was silent for too long."""


class Workers:
    """`workers` processes that run `fetch`; they start at the first use and end with `close` or with this object.

    `prefetch`: batches that each has ready or in the making. `timeout_s`: how long a batch may take, 0 for ever.
    `init` is called in each process with its number.
    """

    def __init__(
        self,
        fetch: Fetch,
        workers: int,
        *,
        prefetch: int = 2,
        timeout_s: float = 0.0,
        init: Callable[[int], object] | None = None,
        start_method: StartMethod | None = None,
    ) -> None:
        self.fetch = fetch
        self.workers = workers
        self.prefetch = prefetch
        self.timeout_s = timeout_s
        self.init = init
        self.start_method = start_method
        self.is_busy = False
        self._processes: list[tuple[BaseProcess, Connection]] = []
        self._owed = [0] * workers
        weakref.finalize(self, _end, self._processes, os.getpid())

    def run(self, tasks: Iterable[Task]) -> Generator[Any]:
        """The batch of each task, in order. What loading one raises is raised here in its place."""
        self.start()
        self._forget()
        self.is_busy = True
        try:
            yield from self._in_order(iter(tasks))
        finally:
            self.is_busy = False

    def start(self) -> None:
        """Start the processes, unless they are there. Best from the main thread, with which they then end."""
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
        """Take what somebody asked for who went away."""
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
        _end(self._processes, os.getpid())
        self._owed = [0] * self.workers

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        method = context.get_start_method()
        forked = method == "fork"
        # A worker of a fork server is no child of this process; its pipe alone tells that the parent is gone.
        parent = Parent(pid=os.getpid() if method != "forkserver" else 0, ends_it=bool(main_pid()))
        for number in range(self.workers):
            mine, theirs = context.Pipe()
            ours = [connection for _, connection in self._processes] + [mine]
            process = context.Process(
                target=_work,
                args=(self.fetch, theirs, ours if forked else [], self.init, number, self.workers, parent),
                name=f"assay-{self.fetch.split}-{number}",
                daemon=True,
            )
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                mine.close()
                theirs.close()
                self.close()
                raise InputError(
                    f"data.{self.fetch.split}: what worker processes need cannot be sent to them: {error}",
                    fix='Define it at the top of a module, or set start_method = "fork".',
                ) from error
            except BaseException:  # Ctrl-C too leaves no process behind
                self.close()
                raise
            theirs.close()
            self._processes.append((process, mine))

    def _send(self, number: int, task: Task) -> None:
        try:
            self._processes[number][1].send(task)
        except OSError as error:
            raise self._ended(number) from error
        self._owed[number] += 1

    def _receive(self, number: int) -> Any:
        process, connection = self._processes[number]
        if not wait([connection], self.timeout_s or None):
            pid = process.pid
            self.close()
            raise WorkerError(
                f"The loader worker {number} of data.{self.fetch.split} (pid {pid}) gave no batch in"
                f" {self.timeout_s:g} s.",
                fix=f"Look at what it waits for, or raise data.{self.fetch.split}.timeout.",
            )
        try:
            notes, batch, error = connection.recv()
        except (EOFError, OSError) as ended:
            raise self._ended(number) from ended
        self._owed[number] -= 1
        self.fetch.notes += [note for note in notes if note not in self.fetch.notes]
        if error is not None:
            raise error
        return batch

    def _ended(self, number: int) -> WorkerError:
        process, _ = self._processes[number]
        process.join(1.0)
        code, pid = process.exitcode, process.pid
        self.close()
        fix = "What it printed above says why."
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"
            fix = "Look at the C code that it calls." if is_crash(-code) else "Something outside ended it."
            fix = _OUT_OF_MEMORY if -code == signal.SIGKILL else fix
        return WorkerError(f"The loader worker {number} of data.{self.fetch.split} (pid {pid}) {how}.", fix=fix)


_OUT_OF_MEMORY = "Most likely the memory ran out (dmesg | tail): use fewer workers, smaller batches or less prefetch."


def _end(processes: list[tuple[BaseProcess, Connection]], owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy in a forked process: they are not its own
    for process, connection in processes:
        connection.close()
        process.kill()  # signals that ask politely are ignored there, and nothing there needs an ending
    for process, _ in processes:
        process.join()
        process.close()
    processes.clear()


def _work(
    fetch: Fetch,
    connection: Connection,
    ours: Sequence[Connection],
    init: Callable[[int], object] | None,
    number: int,
    workers: int,
    parent: Parent,
) -> None:
    """The life of a worker process."""
    if parent.pid and parent.ends_it:
        end_with(parent.pid)
    for each in ours:  # of the parent: as long as a copy is open here, nobody learns that the parent is gone
        each.close()
    # A signal to all processes of a run means its first one, which finishes the step and needs batches for it.
    signals.ignore()
    torch.set_num_threads(1)
    dataset: Any = fetch.dataset
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=fetch.seed, dataset=dataset
    )
    fetch.alone = True
    broken: Exception | None = None
    try:
        if init is not None:
            init(number)
    except Exception as error:  # of the user's function: the process that asked raises it
        error.add_note(f"while data.{fetch.split}.worker_init prepared worker {number}")
        broken = _sendable(error, number)
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            while not connection.poll(WATCH_S):
                if parent.pid and os.getppid() != parent.pid:
                    return
            task = connection.recv()
            connection.send_bytes(_answer(fetch, task, broken, number))
            fetch.notes = []


def _answer(fetch: Fetch, task: Task, broken: Exception | None, number: int) -> Any:
    """The message with the batch of a task, or with what went wrong."""
    try:
        return ForkingPickler.dumps((fetch.notes, None if broken else fetch(*task), broken))
    except Exception as error:  # of the user's data: the process that asked raises it
        return ForkingPickler.dumps((fetch.notes, None, _sendable(error, number)))


def _sendable(error: Exception, number: int) -> Exception:
    """The error with where it was raised, which is lost on the way; one that cannot travel becomes a RuntimeError."""
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
