"""Worker processes: the same batches as without them, and one clear error if one fails."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing.queues
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from assay.core.errors import InputError
from assay.engine.data import workers as workers_module
from assay.engine.data.loader import Loader
from assay.engine.data.worker_faults import WorkerError

# Without another word Python forks here. The tests that spawn import torch once more in each
# process.


class Noisy:
    """Each item comes with a number from each global generator."""

    def __init__(self, n: int = 23) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


class NoisyBatches(Noisy):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Images(Noisy):
    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 8, 8), index, dtype=torch.uint8), torch.tensor(index)


class Where(Noisy):
    """Says which process loads it."""

    def __getitem__(self, index: int) -> Any:
        return os.getpid()


class Bad(Noisy):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("no such image")
        return index


class Slow(Noisy):
    def __getitem__(self, index: int) -> Any:
        time.sleep(30 if index == 7 else 0)
        return index


class Dies(Noisy):
    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def __getitem__(self, index: int) -> Any:
        if index == 7 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Odd(Exception):
    """An error that cannot be copied: its constructor wants more than its text."""

    def __init__(self, what: str, more: int) -> None:
        super().__init__(f"{what} {more}")


class RaisesOdd(Noisy):
    def __getitem__(self, index: int) -> Any:
        raise Odd("strange", index)


class Closed(Noisy):
    """Its items cannot be sent."""

    def __getitem__(self, index: int) -> Any:
        return lambda: index


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def epoch_of(
    dataset: Any, workers: int, *, epoch: int = 1, start: int = 0, **options: Any
) -> list[Any]:
    """The samples of every batch of every window."""
    given = {
        "batch_size": 6,
        "accumulate": 2,
        "shuffle": True,
        "seed": 4,
        "collate": as_list,
    } | options
    loader = Loader(dataset, workers=workers, **given)  # type: ignore[arg-type]
    try:
        return [
            (window.samples, window.sizes, list(window.batches))
            for window in loader.windows(epoch, start)
        ]
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("dataset", [Noisy(), NoisyBatches()], ids=["sample", "batch"])
def test_workers_change_nothing(dataset: Noisy, workers: int) -> None:
    whole = epoch_of(dataset, 0)

    assert epoch_of(dataset, workers) == whole
    assert epoch_of(dataset, workers, start=2) == whole[2:]
    assert epoch_of(dataset, workers, prefetch=7) == whole


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_however_workers_are_started_they_give_the_same(start_method: str) -> None:
    assert epoch_of(Noisy(), 2, start_method=start_method) == epoch_of(Noisy(), 0)


def test_tensors_come_through_shared_memory_as_they_are() -> None:
    loader = Loader(Images(), batch_size=4, workers=2)

    batches = list(loader)
    loader.close()

    assert torch.equal(torch.cat([labels for _, labels in batches]), torch.arange(23))
    for images, labels in batches:
        assert images.shape[1:] == (3, 8, 8) and images.dtype == torch.uint8
        assert torch.equal(images[:, 0, 0, 0].long(), labels)


@pytest.mark.row("B19")
def test_what_workers_draw_differs_between_samples_and_not_between_runs() -> None:
    drawn = [
        sample for _, _, batches in epoch_of(Noisy(), 2) for batch in batches for sample in batch
    ]

    for generator in (1, 2, 3):
        assert len({sample[generator] for sample in drawn}) == len(drawn) == 23
    assert drawn == [
        sample for _, _, batches in epoch_of(Noisy(), 2) for batch in batches for sample in batch
    ]


def test_workers_stay_from_epoch_to_epoch_unless_they_must_not() -> None:
    def pids(loader: Loader) -> set[int]:
        return {int(pid) for batch in loader for pid in batch}

    with_persistent = Loader(Where(), batch_size=4, workers=2)
    first = pids(with_persistent)
    assert len(first) == 2 and os.getpid() not in first
    assert pids(with_persistent) == first
    with_persistent.close()
    assert not any(map(psutil.pid_exists, first))
    assert not pids(with_persistent) & first  # closed is not the end
    with_persistent.close()

    anew = Loader(Where(), batch_size=4, workers=2, persistent_workers=False)
    first = pids(anew)
    assert not any(map(psutil.pid_exists, first))
    assert not pids(anew) & first


def test_workers_go_with_their_loader() -> None:
    loader = Loader(Where(), batch_size=4, workers=2)
    pids = {int(pid) for batch in loader for pid in batch}

    del loader
    gc.collect()

    assert not any(map(psutil.pid_exists, pids))


def test_an_iteration_that_is_given_up_does_not_reach_the_next() -> None:
    loader = Loader(Noisy(40), batch_size=4, shuffle=True, workers=2, collate=as_list)
    whole = [
        window.batches
        for window in Loader(Noisy(40), batch_size=4, shuffle=True, collate=as_list).windows(3, 0)
    ]

    for start in (0, 5, 2):
        assert next(loader.windows(3, start)).batches == whole[start]
    assert [window.batches for window in loader.windows(3, 4)] == whole[4:]
    loader.close()


def test_two_iterations_at_once_do_not_meet() -> None:
    loader = Loader(Noisy(), batch_size=4, workers=2, collate=as_list)

    assert all(one == other for one, other in zip(loader, loader, strict=True))
    loader.close()


def test_batches_too_large_for_a_pipe_are_no_deadlock() -> None:
    loader = Loader(Noisy(60_000), batch_size=20_000, workers=2, prefetch=4, collate=len)

    assert list(loader) == [20_000] * 3
    loader.close()


def test_no_data_needs_no_batch_of_a_worker() -> None:
    loader = Loader(Noisy(0), batch_size=4, workers=2)

    assert list(loader) == []
    loader.close()


def test_a_function_prepares_each_worker_and_torch_knows_which_it_is() -> None:
    numbers: list[int] = []

    class Told(Noisy):
        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            assert info is not None and info.dataset is self
            return tuple(numbers), info.id, info.num_workers, torch.get_num_threads()

    loader = Loader(Told(8), batch_size=1, workers=2, worker_init=numbers.append, collate=as_list)

    assert [batch[0] for batch in loader] == [((i % 2,), i % 2, 2, 1) for i in range(8)]
    assert numbers == []
    loader.close()


# ------------------------------------------------------------------------------------------------------ what goes wrong


def failing(dataset: Any, **options: Any) -> BaseException:
    """What iterating over the data raises."""
    loader = Loader(dataset, batch_size=4, workers=2, **options)
    with pytest.raises(Exception) as caught:
        list(loader)
    loader.close()
    return caught.value


def test_an_error_in_a_worker_is_raised_as_it_is_with_the_sample_and_the_line() -> None:
    error = failing(Bad())

    assert isinstance(error, OSError) and str(error) == "no such image"
    sample, where = error.__notes__
    assert sample == "while loading the sample 7 of data.train"
    assert (
        where.startswith("in loader worker 1:\n")
        and "test_workers.py" in where
        and "in __getitem__" in where
    )


def test_batches_before_the_error_are_given_and_the_loader_works_after_it() -> None:
    loader = Loader(Bad(), batch_size=4, workers=2)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="no such image"):
        next(batches)

    assert [window.samples for window in loader.windows(0, 2)] == [4, 4, 4, 3]
    loader.close()


def test_an_error_that_cannot_be_copied_keeps_its_words() -> None:
    error = failing(RaisesOdd())

    assert isinstance(error, RuntimeError) and str(error) == "Odd: strange 0"
    assert "in loader worker 0" in error.__notes__[-1]


def test_a_batch_that_cannot_be_sent_is_told() -> None:
    error = failing(Closed(), collate=as_list)

    assert "lambda" in str(error)
    assert "in loader worker 0" in error.__notes__[-1]  # type: ignore[attr-defined]


def test_a_killed_worker_is_one_clear_error_and_no_end_of_the_loader(tmp_path: Path) -> None:
    loader = Loader(Dies(tmp_path / "died"), batch_size=4, workers=2, split="valid")

    with pytest.raises(WorkerError) as caught:
        list(loader)

    assert "The loader worker 1 of data.valid (pid " in caught.value.what
    assert caught.value.what.endswith(") was killed by SIGKILL.")
    assert "memory ran out" in caught.value.fix
    assert [len(batch) for batch in loader] == [4, 4, 4, 4, 4, 3]
    loader.close()


class EndsWithLock(Noisy):
    """Is killed or stopped while it holds the lock of the queue that all workers write to."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            for thing in gc.get_objects():
                if type(thing) is multiprocessing.queues.Queue and thing._thread is not None:  # type: ignore[attr-defined]
                    thing._wlock.acquire()  # type: ignore[attr-defined]
            os.kill(os.getpid(), self.number)
        return index


def test_a_worker_that_is_killed_with_the_lock_of_the_queue_is_told() -> None:
    error = failing(EndsWithLock(signal.SIGKILL))

    assert isinstance(error, WorkerError) and "loader worker 1" in error.what
    assert "was killed by SIGKILL" in error.what


def test_a_worker_that_is_stopped_with_the_lock_of_the_queue_is_told() -> None:
    error = failing(EndsWithLock(signal.SIGSTOP), timeout_s=2.5)

    assert isinstance(error, WorkerError) and "loader worker 1" in error.what
    assert "at sample 13" in error.what and "stopped: by SIGSTOP" in error.where


def test_what_is_no_tensor_comes_whole_however_large() -> None:
    class Texts(Noisy):
        def __getitem__(self, index: int) -> Any:
            return str(index) * 200_000

    loader = Loader(Texts(), batch_size=4, workers=2, collate=as_list)
    batches = list(loader)
    loader.close()

    assert [text for batch in batches for text in batch] == [str(i) * 200_000 for i in range(23)]


def test_a_worker_that_ends_itself_is_told_with_its_code() -> None:
    class Leaves(Noisy):
        def __getitem__(self, index: int) -> Any:
            os._exit(3)

    error = failing(Leaves())

    assert isinstance(error, WorkerError) and "ended with exit code 3" in error.what


def test_a_worker_that_crashes_was_not_killed() -> None:
    class Crashes(Noisy):
        def __getitem__(self, index: int) -> Any:
            faulthandler.disable()  # that of pytest would tell all about it
            os.kill(os.getpid(), signal.SIGSEGV)

    error = failing(Crashes())

    assert isinstance(error, WorkerError) and "crashed (SIGSEGV)" in error.what


ORPHANS = """
import os, sys, time
import torch
from assay.engine import Loader, chain
from assay.engine.data import streams
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.stream_loader import StreamLoader

class Sleepy:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
        time.sleep(1000)

if sys.argv[2] == "stream":
    stages = [streams.SplitByWorker(), streams.Map(Sleepy().__getitem__), streams.Batch(2)]
    loader = StreamLoader(chain([SequenceWrapper(range(8)), *stages]), workers=2)
else:
    loader = Loader(Sleepy(), batch_size=2, workers=2, start_method=sys.argv[2])
if __name__ == "__main__":
    next(iter(loader))
"""


@pytest.mark.usefixtures("forking")
@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("how", ["fork", "spawn", "stream"])
def test_workers_that_are_in_the_middle_of_a_sample_end_with_a_parent_that_is_killed(
    how: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    folder = tmp_path / "pids"
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(folder), how]) as parent:
        until = time.monotonic() + 100
        while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        workers = [psutil.Process(int(each.name)) for each in folder.iterdir()]
        parent.kill()

    gone, alive = psutil.wait_procs(workers, timeout=100)

    assert (len(gone), alive) == (2, [])


SHARED = """
import sys
import torch
from assay.engine import Loader

class Samples:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((64,), float(i))

if __name__ == "__main__":
    with_workers = Loader(Samples(), batch_size=2, workers=2, start_method=sys.argv[1])
    assert sum(1 for _ in with_workers) == 4
    with_workers.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="batches travel by files elsewhere")
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_leave_no_temporary_file(
    how: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if how != "forkserver":  # which would outlive what it was forked from
        request.getfixturevalue("forking")
    script = tmp_path / "script.py"
    script.write_text(SHARED)
    # Short, as the path of a socket has at most 108 bytes.
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(
            [sys.executable, str(script), how],
            env={**os.environ, "TMPDIR": temporary},
            check=True,
            timeout=100,
        )

        assert os.listdir(temporary) == []


def test_a_batch_that_takes_too_long_is_told() -> None:
    error = failing(Slow(), timeout_s=2.5)  # more than a worker needs to start on a busy machine

    assert isinstance(error, WorkerError)
    assert re.fullmatch(
        r"The loader worker 1 of data\.train \(pid \d+\) has been at sample 7 for 2\.5 s\.",
        error.what,
    )
    assert re.match(r".*test_workers\.py:\d+ in __getitem__", error.where)
    assert "data.train.timeout says how long" in error.fix


def wait_for_ever() -> None:
    """Blocks inside of the kernel, where no code of Python runs."""
    reader, _writer = os.pipe()
    os.read(reader, 1)


class Hangs(Noisy):
    """The seventh sample waits for what never comes; the worker may be stopped besides."""

    def __init__(self, *, stops: bool = False) -> None:
        super().__init__()
        self.stops = stops

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            if self.stops:
                os.kill(os.getpid(), signal.SIGSTOP)
            wait_for_ever()
        return super().__getitem__(index)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes become seconds, which is still more than a batch takes on a busy machine."""
    for name, seconds in {"WARN_S": 0.4, "LIMIT_S": 3.0, "_SLICE_S": 0.1}.items():
        monkeypatch.setattr(workers_module, name, seconds)


def test_a_worker_that_hangs_is_told_with_its_sample_and_its_stack_then_it_ends_the_run(
    impatient: None,
) -> None:
    loader = Loader(Hangs(), batch_size=2, workers=2)
    told: list[str] = []
    loader.warn = told.append
    batches = iter(loader)

    with pytest.raises(WorkerError) as caught:
        list(batches)

    said = told[-1]
    who = r"The loader worker 1 of data\.train \(pid \d+\) has been at sample 7 for"
    assert re.match(
        rf"{who} [\d.]+ s\. The run ends if that lasts 3 s \(data\.train\.timeout\)\.", said
    )
    assert re.match(rf"{who} [\d.]+ s\.$", caught.value.what)
    for text in (said, caught.value.where):
        stack = [line.strip() for line in text.splitlines()][-2:]
        assert re.search(r"test_workers\.py:\d+ in wait_for_ever$", stack[0]), text
        assert re.search(r"test_workers\.py:\d+ in __getitem__$", stack[1]), text


def test_a_worker_that_was_stopped_is_told_as_such(impatient: None) -> None:
    loader = Loader(Hangs(stops=True), batch_size=2, workers=2)
    loader.warn = lambda message: None

    with pytest.raises(WorkerError) as caught:
        list(loader)

    assert "has been at sample 7" in caught.value.what
    assert "it is stopped: by SIGSTOP" in caught.value.where


def test_a_batch_that_is_late_is_waited_for_and_nothing_is_lost(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "LIMIT_S", 60.0)

    class Late(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                time.sleep(1.0)
            return super().__getitem__(index)

    loader, told = Loader(Late(), batch_size=2, workers=2), []
    loader.warn = told.append

    found = list(loader)
    loader.close()

    assert any("has been at sample 7" in each for each in told)
    assert [[x.tolist() for x in batch] for batch in found] == [
        [x.tolist() for x in batch] for batch in Loader(Late(), batch_size=2)
    ]


def test_a_worker_that_cannot_be_prepared_is_told() -> None:
    def broken(number: int) -> None:
        raise OSError(f"no disk for {number}")

    error = failing(Noisy(), worker_init=broken)

    assert isinstance(error, OSError) and str(error) == "no disk for 0"
    assert "while data.train.worker_init prepared worker 0" in error.__notes__


def test_what_cannot_be_sent_to_a_spawned_worker_is_refused_with_what_to_do() -> None:
    class Local(Noisy):
        pass

    error = failing(Local(), start_method="spawn")

    assert (
        isinstance(error, InputError)
        and "cannot be sent to them" in error.what
        and "Local" in error.what
    )
    assert 'start_method = "fork"' in error.fix


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_for_the_process_that_trains(number: signal.Signals) -> None:
    loader = Loader(Where(60), batch_size=2, workers=2)
    batches = iter(loader)
    pids = {int(next(batches)[0]) for _ in range(2)}

    for pid in pids:
        os.kill(pid, number)

    assert len(list(batches)) == 28
    assert all(map(psutil.pid_exists, pids))
    loader.close()


@pytest.mark.parametrize("options", [{"workers": -1}, {"prefetch": 0}])
def test_numbers_that_mean_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least"):
        Loader(Noisy(), batch_size=2, **options)  # type: ignore[arg-type]
