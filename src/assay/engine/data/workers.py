"""Worker processes that load ahead, in order: torch's DataLoader over tasks, or over a stream.

A message of a worker is small: large ones lie in shared memory, as tensors do, and a pipe takes it
whole or not at all. So a worker may be killed at any moment, also while it holds the lock of the
queue, and the loading process reads no half of a message.
"""

from __future__ import annotations

import multiprocessing.util
import os
import pickle
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Event, Thread
from typing import Any, Literal

import torch
import torch.multiprocessing  # which teaches pickle to send tensors through shared memory
from torch.utils.data import DataLoader, Dataset, IterableDataset

from assay.core import signals
from assay.core.errors import InputError
from assay.core.parent_death import end_with, main_pid
from assay.engine.data.worker_faults import (
    BUSY,
    IDLE,
    STARTING,
    WorkerError,
    WorkerView,
    describe_silence,
    describe_worker_end,
    on_request,
)
from assay.engine.numerics import private_torch

StartMethod = Literal["fork", "spawn", "forkserver"]
Task = tuple[int, int, Sequence[int]]
"""Epoch, position, indices."""

WARN_S = 60.0
"""Seconds without a batch after which a worker is named in a warning."""
LIMIT_S = 1800.0
"""Seconds without a batch that end the run: the first batch may unpack whole archives."""
_SLICE_S = 0.5
_MOST_INLINE = 2_048
"""Bytes that are sent through the pipe. It takes 4,096 at once, with what is around them."""
_END = object()


class Workers:
    """Pool of `count` OS processes, from the first use until `close`.

    `load` makes the batch of a task, called with its values; or it is iterable, and each worker
    gives its items: then there are no tasks. `about` is the data set that `get_worker_info` names.
    `prefetch`: batches that each worker has ready or in the making. `timeout_s`: how long a batch
    may take, 0 for ever, None for `LIMIT_S`. `init` is called in each process with its number.
    """

    def __init__(
        self,
        load: Any,
        count: int,
        *,
        split: str,
        about: object = None,
        seed: int = 0,
        prefetch: int = 2,
        timeout_s: float | None = None,
        init: Callable[[int], object] | None = None,
        start_method: StartMethod | None = None,
        warn: Callable[[str], object] = lambda message: None,
    ) -> None:
        self.load = load
        self.count = count
        self.split = split
        self.about = about
        self.seed = seed
        self.prefetch = prefetch
        self.limit_s = LIMIT_S if timeout_s is None else timeout_s or None
        self.init = init
        self.start_method = start_method
        self.warn = warn
        self.is_busy = False
        self._tasks = _Tasks()
        self._views: list[WorkerView] = []
        self._waiting: int | None = None  # number of the batch that is waited for
        self._silence: tuple[int | None, float] = (None, 0.0)
        self._fault: WorkerError | None = None
        self._running = _Running()
        weakref.finalize(self, self._running.end)

    def run(self, tasks: Iterable[Task] = ()) -> Generator[Any]:
        """Start unless the processes run, and return the batch of each task, in order.

        An error of one is raised in its place. Call it in the main thread, with which the processes
        end.
        """
        if self._running.iterator is None:
            self._start()
        else:
            self._forget()
        if not isinstance(self.load, Iterable):
            self._tasks.left = iter(tasks)
            self._await(0, lambda: iter(self._running.loader))  # begins anew, with the first tasks
        self.is_busy = True
        return self._batches()

    def close(self) -> None:
        """End the processes; they start again at the next use."""
        self._running.end()
        self._views = []
        self._fault = None

    def watch(self, seconds: float) -> None:
        """Add to the silence of the workers; name who is silent, and end them over the limit.

        In slices: a clock that ran on while all processes were stopped together counts for one.
        """
        number, silent_s = self._silence
        silent_s = silent_s + seconds if number == self._waiting is not None else 0.0
        self._silence = self._waiting, silent_s
        if self._waiting is None or self._fault is not None or self.limit_s is None:
            return
        if silent_s >= self.limit_s:
            what, where = self._describe_silence(silent_s)
            fix = f"Look at what it waits for. {self._timeout} says how long a batch may take."
            self._fault = WorkerError(what, where=where, fix=fix)
            for process in private_torch.worker_processes(self._running.iterator):
                process.kill()
        elif silent_s >= WARN_S > silent_s - seconds:
            what, where = self._describe_silence(silent_s)
            self.warn(
                f"{what} The run ends if that lasts {self.limit_s:.0f} s ({self._timeout}).\n"
                f"  at:  {where}"
            )

    @property
    def _timeout(self) -> str:
        return f"data.{self.split}.timeout"

    def _describe_silence(self, seconds: float) -> tuple[str, str]:
        return describe_silence(
            self._views,
            [
                process.pid or 0
                for process in private_torch.worker_processes(self._running.iterator)
            ],
            due=(self._waiting or 0) % self.count,
            split=self.split,
            seconds=seconds,
        )

    def _start(self) -> None:
        # Workers, which are killed, share tensors by sockets. Those lie in the temporary folder of
        # the process that starts them, if it has one by then: it removes the folder as it ends.
        multiprocessing.util.get_temp_dir()
        with warnings.catch_warnings():
            # Torch warns of more workers than cores, but workers that wait need none; and of what
            # cannot be pickled, which is an error below.
            warnings.filterwarnings("ignore", message=".*(will create|pickle error)")
            loader = self._make_loader()
            try:
                iterator = iter(loader)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.close()
                raise InputError(
                    f"data.{self.split}: what worker processes need cannot be sent to them:"
                    f" {error}",
                    fix='Define it at the top of a module, or set start_method = "fork".',
                ) from error
        # Torch would raise the end of a worker in the middle of a training step; here it is raised
        # where the batch is waited for, so that the steps before are saved.
        private_torch.forget_worker_pids(iterator)
        self._running.begin(
            loader,
            iterator,
            Thread(
                target=_guard,
                args=(weakref.ref(self), self._running.closed),
                name="assay-guard",
                daemon=True,
            ),
        )

    def _make_loader(self) -> DataLoader[Any]:
        """Return torch's loader, and make what it shares with its workers."""
        context: Any = torch.multiprocessing.get_context(self.start_method)
        pipes = [context.Pipe(duplex=False) for _ in range(self.count)]
        places = [context.RawValue("q", STARTING) for _ in range(self.count)]
        self._views = [
            WorkerView(place, reader) for place, (reader, _) in zip(places, pipes, strict=True)
        ]
        kind = _ServedStream if isinstance(self.load, Iterable) else _ServedTasks
        served = kind(
            self.load,
            about=self.about,
            split=self.split,
            seed=self.seed,
            init=self.init,
            # A worker of a fork server is no child of this process.
            parent=0 if context.get_start_method() == "forkserver" else main_pid(),
            places=places,
            stacks=[writer for _, writer in pipes],
        )
        return DataLoader(
            served,
            batch_size=None,
            sampler=None if kind is _ServedStream else self._tasks,
            collate_fn=_as_it_is,
            num_workers=self.count,
            prefetch_factor=self.prefetch,
            persistent_workers=True,
            worker_init_fn=served.prepare,
            multiprocessing_context=context,
            generator=torch.Generator().manual_seed(self.seed),  # else it draws from the global one
        )

    def _batches(self) -> Generator[Any]:
        number = 0
        try:
            while (message := self._receive(number)) is not _END:
                batch, error = message
                if error is not None:
                    raise error
                number += 1
                yield batch
        finally:
            self.is_busy = False

    def _receive(self, number: int) -> Any:
        """Return (batch, error) of batch `number`; `_END` after the last."""
        packed = self._await(number, lambda: next(self._running.iterator, _END))
        return packed if packed is _END else self._await(number, lambda: _unpack(packed))

    def _await(self, number: int, call: Callable[[], Any]) -> Any:
        """Call what waits for a worker; WorkerError if one died or is silent too long."""
        self._waiting = number
        try:
            return call()
        except Exception as error:
            fault = self._fault or self._find_end(error)
            if fault is None:
                raise
            self.close()
            raise fault from error
        finally:
            self._waiting = None

    def _forget(self) -> None:
        """Receive and drop the batches of an iteration that was given up."""
        self._tasks.left = iter(())
        while self._receive(0) is not _END:
            pass

    def _find_end(self, error: Exception) -> WorkerError | None:
        """Return the error for a worker that has ended, if that is why loading failed."""
        processes = private_torch.worker_processes(self._running.iterator)
        if isinstance(error, OSError | EOFError):  # its socket closed before its end is known
            ended = multiprocessing.connection.wait([each.sentinel for each in processes], _SLICE_S)
            for process in processes:
                if process.sentinel in ended:  # closed a moment before there is an exit code
                    process.join(_SLICE_S)
        is_end = "DataLoader worker" in str(error)
        for number, process in enumerate(processes):
            if process.exitcode or (is_end and process.exitcode == 0):
                return describe_worker_end(number, process, self.split)
        return None


class _Running:
    """Torch's loader and its iterator while the processes run, and the thread that guards them."""

    def __init__(self) -> None:
        self.loader: Any = None
        self.iterator: Any = None
        self.closed = Event()
        self._guard: Thread | None = None
        self._owner = os.getpid()

    def begin(self, loader: DataLoader[Any], iterator: Iterator[Any], guard: Thread) -> None:
        self.loader, self.iterator, self._guard = loader, iterator, guard
        self.closed.clear()
        guard.start()

    def end(self) -> None:
        if os.getpid() != self._owner or self.iterator is None:  # a copy in a forked process
            return
        self.closed.set()
        private_torch.end_workers(self.iterator)
        if self._guard is not None:
            self._guard.join()
        self.loader = self.iterator = self._guard = None


def _guard(workers: weakref.ref[Workers], closed: Event) -> None:
    """Watch the workers until they are closed or collected."""
    while not closed.wait(_SLICE_S):
        pool = workers()
        if pool is not None:
            pool.watch(_SLICE_S)
        del pool  # it would live as long as this waits


class _Tasks:
    """Sampler of torch's loader: the tasks of the iteration that is running."""

    def __init__(self) -> None:
        self.left: Iterator[Task] = iter(())

    def __iter__(self) -> Iterator[Task]:
        while (task := next(self.left, None)) is not None:
            yield task


class _Served:
    """Side of a worker: prepares its OS process, and packs what `load` gives."""

    def __init__(
        self,
        load: Any,
        *,
        about: object,
        split: str,
        seed: int,
        init: Callable[[int], object] | None,
        parent: int,
        places: Sequence[Any],
        stacks: Sequence[Connection],
    ) -> None:
        self.load = load
        self.about = about
        self.split = split
        self.seed = seed
        self.init = init
        self.parent = parent
        self.places = places
        self.stacks = stacks
        self.number = 0
        self.broken: Exception | None = None

    def prepare(self, number: int) -> None:
        """Make the OS process ready; torch calls it once in each."""
        if self.parent:
            end_with(self.parent)
        # A signal to all processes of a run means its first one, which finishes the step and needs
        # batches for it.
        signals.ignore()
        self.number = number
        private_torch.set_worker_info(
            number=number, workers=len(self.places), seed=self.seed, dataset=self.about
        )
        on_request(self.stacks[number])
        self.load.place = self.places[number]
        self.load.place.value = IDLE
        try:
            if self.init is not None:
                self.init(number)
        except Exception as error:  # of the user's function: the process that asked raises it
            error.add_note(f"while data.{self.split}.worker_init prepared worker {number}")
            self.broken = _sendable(error, number)

    def pack(self, load: Callable[[], Any]) -> Any:
        """Return the message with what `load` returns, or with its error."""
        place = self.places[self.number]
        place.value = BUSY
        try:
            batch = None if self.broken else load()
            return batch if batch is _END else _pack(batch, self.broken)
        except Exception as error:  # of the user's data: the process that asked raises it
            return _pack(None, _sendable(error, self.number))
        finally:
            place.value = IDLE


class _ServedTasks(_Served, Dataset[Any]):
    def __getitem__(self, task: Any) -> Any:
        return self.pack(lambda: self.load(*task))


class _ServedStream(_Served, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        items = iter(self.load)
        while (message := self.pack(lambda: next(items, _END))) is not _END:
            yield message


def _pack(batch: Any, error: Exception | None) -> Any:
    body = ForkingPickler.dumps((batch, error))
    if len(body) <= _MOST_INLINE:
        return bytes(body)
    return torch.frombuffer(body, dtype=torch.uint8)


def _unpack(packed: Any) -> Any:
    return pickle.loads(packed if isinstance(packed, bytes) else packed.numpy())


def _as_it_is(item: Any) -> Any:
    return item


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


def call_in_worker(function: Callable[[], Any]) -> Any:
    """Call a function in an OS process forked from this one; here where none can be forked."""
    if "fork" not in torch.multiprocessing.get_all_start_methods():
        return function()
    pool = Workers(_CalledOnce(function), 1, split="train", timeout_s=0, start_method="fork")
    try:
        (value,) = islice(pool.run([()]), 1)  # type: ignore[list-item]
    finally:
        pool.close()
    return value


class _CalledOnce:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.place: Any = None

    def __call__(self) -> Any:
        return self.function()
