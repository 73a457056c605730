"""Batches of streams: any number of workers, several ranks, and going on exactly."""

from __future__ import annotations

import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import InputError
from assay.engine import chain
from assay.engine.data import streams
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.data.streams import Stream
from warm_python import Begin

SRC = Path(__file__).resolve().parents[3] / "src"


def with_noise(item: int) -> np.ndarray[Any, Any]:
    return np.array(
        [item, random.random(), np.random.random(), torch.rand(1, dtype=torch.float64).item()]
    )


def as_tensor(item: int) -> torch.Tensor:
    return torch.tensor([float(item)])


def odd(item: int) -> bool:
    return item % 3 != 1


def rows(count: int = 50, *, batch: int = 4) -> Stream:
    stages = [
        streams.Shuffle(16),
        streams.SplitByWorker(),
        streams.Filter(odd),
        streams.Map(with_noise, random=True),
        streams.Batch(batch),
    ]
    return chain([SequenceWrapper(range(count)), *stages])  # type: ignore[no-any-return]


def seen(loader: StreamLoader, epoch: int, start: int = 0) -> list[Any]:
    return [[batch.tolist() for batch in window.batches] for window in loader.windows(epoch, start)]


@pytest.mark.parametrize(
    ("accumulate", "workers"),
    [
        (1, 0),
        (1, 3),
        (2, 1),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((1, 1), (2, 0), (2, 3))),
    ],
)
def test_a_stream_goes_on_exactly_from_any_step_with_any_number_of_workers(
    workers: int, accumulate: int
) -> None:
    how: dict[str, Any] = {"seed": 3, "workers": workers, "accumulate": accumulate}
    whole = [seen(StreamLoader(rows(), **how), epoch) for epoch in (0, 1)]
    assert whole[0] != whole[1] and len(whole[0]) > 3

    for stop in range(len(whole[1])) if workers < 2 else (1, 2, len(whole[1]) - 1):
        first = StreamLoader(rows(), **how)
        windows = first.windows(1, 0)
        before = [[batch.tolist() for batch in next(windows).batches] for _ in range(stop)]
        windows.close()  # type: ignore[attr-defined]
        kept = json.loads(json.dumps(first.state_dict()))
        random.seed(stop)
        second = StreamLoader(rows(), **how)
        second.load_state_dict(kept)

        assert before + seen(second, 1, stop) == whole[1]


@pytest.mark.parametrize("workers", [0, 3])
def test_workers_together_give_each_item_once(workers: int) -> None:
    loader = StreamLoader(rows(), workers=workers)

    items = [int(row[0]) for window in seen(loader, 0) for batch in window for row in batch]

    assert sorted(items) == [item for item in range(50) if odd(item)]


@pytest.mark.thorough
@pytest.mark.row("A69")
def test_workers_of_two_processes_together_give_each_item_once(
    tmp_path: Path, begin: Begin
) -> None:
    script = f"""
import sys, json, torch.distributed as dist
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from engine.data.test_stream_loader import rows, seen
from assay.engine.data.stream_loader import StreamLoader
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
loader = StreamLoader(rows(), workers=3, rank=rank, ranks=2)
items = [int(row[0]) for window in seen(loader, 0) for batch in window for row in batch]
everyone = [None, None]
dist.all_gather_object(everyone, items)
if rank == 0:
    print(json.dumps(everyone))
dist.destroy_process_group()
"""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    processes = [
        begin("-c", script, str(rank), folder=tmp_path, variables=environment, reads="stdout")
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]

    first, second = json.loads(outputs[0].splitlines()[-1])

    assert first and second and sorted(first + second) == [item for item in range(50) if odd(item)]


@pytest.mark.row("A69")
def test_a_stream_that_each_worker_would_give_whole_is_refused() -> None:
    whole = chain([SequenceWrapper(range(9)), streams.Batch(2)])

    several: list[dict[str, Any]] = [{"workers": 2}, {"ranks": 2}]
    for how in several:
        with pytest.raises(InputError, match="each give whole") as caught:
            StreamLoader(whole, **how)
        assert "SplitByWorker" in caught.value.fix
    assert len(list(StreamLoader(whole, workers=1))) == 5


@pytest.mark.row("A71")
def test_a_stage_that_makes_tensors_in_a_worker_is_named_once() -> None:
    stages = [streams.SplitByWorker(), streams.Map(as_tensor), streams.Batch(2)]
    loader = StreamLoader(chain([SequenceWrapper(range(9)), *stages]), workers=2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            list(loader.windows(epoch, 0))

    assert [
        "as_tensor makes tensors in a loader worker" in str(each.message) for each in caught
    ] == [True]


@pytest.mark.row("A72")
def test_a_collate_function_is_the_users_wherever_it_is_given() -> None:
    def strings(samples: list[Any]) -> str:
        return "-".join(map(str, samples))

    bare = chain([SequenceWrapper(range(4)), streams.Batch(3)])
    own = chain([SequenceWrapper(range(4)), streams.Batch(3)], collate=strings)

    assert list(StreamLoader(own)) == ["0-1-2", "3"]
    assert list(StreamLoader(bare, collate=strings)) == ["0-1-2", "3"]
    assert [batch.tolist() for batch in StreamLoader(bare)] == [[0, 1, 2], [3]]


def late_noise(item: int) -> float:
    return item + (random.random() + np.random.random() if item > 12 else 0.0)


def late_parts(item: int) -> Any:
    yield item
    if item > 12:
        yield from (item + random.random() for _ in range(2))


def late_drop(item: float) -> bool:
    return item < 12 or random.random() < 0.7


def by_hand(items: Any) -> Any:
    for item in items:
        yield late_noise(item)


DRAWING: dict[str, list[Any]] = {
    "map": [streams.Map(late_noise)],
    "map before a buffer": [streams.Map(late_noise), streams.Shuffle(8)],
    "filter": [streams.Filter(late_drop)],
    "parts": [streams.FlatMap(late_parts), streams.Shuffle(8)],
    "a generator": [by_hand],
    "all": [streams.FlatMap(late_parts), streams.Filter(late_drop), streams.Map(late_noise)],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DRAWING)
def test_a_stage_that_begins_to_draw_late_goes_on_exactly_though_it_says_nothing(
    name: str, workers: int
) -> None:
    def make() -> StreamLoader:
        stages = [streams.SplitByWorker(), *DRAWING[name], streams.Batch(2)]
        return StreamLoader(
            chain([SequenceWrapper(range(24)), *stages]), workers=workers, collate=noisy_list
        )

    whole, positions = [], []
    loader = make()
    for window in loader.windows(1, 0):
        whole.append(window.batches[0])
        positions.append(loader.state_dict())

    for step in range(1, len(whole), 3):
        random.seed(step)
        again = make()
        again.load_state_dict(positions[step - 1])
        assert [window.batches[0] for window in again.windows(1, step)] == whole[step:]


def noisy_list(samples: list[Any]) -> list[Any]:
    return [*samples, random.random(), float(torch.rand(()))]


def test_loading_a_stream_leaves_the_global_generators_as_they_were() -> None:
    random.seed(2)
    state = random.getstate()

    list(StreamLoader(rows()).windows(0, 0))

    assert random.getstate() == state


def test_a_position_of_other_workers_is_refused() -> None:
    loader = StreamLoader(rows(), workers=2)
    list(loader.windows(0, 0))
    kept = loader.state_dict()

    with pytest.raises(InputError, match="2 workers of 1 ranks, not 0 of 1"):
        StreamLoader(rows()).load_state_dict(kept)


def test_without_a_position_the_batches_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    loader = StreamLoader(rows())
    whole = seen(loader, 0)

    with caplog.at_level("WARNING", logger="assay"):
        assert seen(StreamLoader(rows()), 0, 3) == whole[3:]
    assert "made again" in caplog.text


def test_the_steps_of_an_epoch_are_known_where_the_items_are() -> None:
    def loader(*stages: Any, **how: Any) -> StreamLoader:
        return StreamLoader(
            chain([SequenceWrapper(range(50)), streams.SplitByWorker(), *stages]), **how
        )

    for how in (
        {},
        {"workers": 3},
        {"workers": 2, "accumulate": 3},
        {"workers": 3, "ranks": 2, "rank": 1},
    ):
        known = loader(streams.Batch(4), **how)
        assert known.steps_per_epoch == len(known) == len(seen(known, 0))
    unknown = loader(streams.Filter(odd), streams.Batch(4))
    assert unknown.steps_per_epoch is None
    with pytest.raises(TypeError, match="length"):
        len(unknown)


def test_exactness_names_the_stage_that_is_replayed() -> None:
    def by_hand(items: Any) -> Any:
        yield from items

    assert StreamLoader(rows()).exactness() == "exact (position)"
    exactness = StreamLoader(
        chain([SequenceWrapper(range(3)), by_hand, streams.Batch(1)])
    ).exactness()
    assert exactness.startswith("not tried (replayed: ") and "by_hand" in exactness
