"""Streams and sequences as chains of stages: their samples, and resuming at any position."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import ArgumentError, InputError
from assay.engine import chain
from assay.engine.data import map_style, streams
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.streams import Pass, Stream
from assay.engine.data.streams.stream import as_stream


def words(text: Any) -> list[str]:
    return [f"{text}{letter}" for letter in "abc"]


def noisy(item: Any) -> tuple[Any, float, float, float]:
    import torch

    return item, random.random(), float(np.random.random()), torch.rand(1).item()


def in_pairs(items: Iterable[Any]) -> Iterator[Any]:
    before = None
    for item in items:
        yield before, item, random.random()
        before = item


def over(stages: list[Any], items: Any = range(23)) -> Stream:
    return chain([SequenceWrapper(list(items)), *stages])  # type: ignore[no-any-return]


def read(stream: Stream, way: Pass | None = None) -> list[Any]:
    cursor = stream.open(way or Pass())
    try:
        return list(cursor)
    finally:
        cursor.close()


STAGES: dict[str, Callable[[], Any]] = {
    "Map": lambda: streams.Map(lambda item: (item, "x")),
    "Map that draws": lambda: streams.Map(noisy, random=True),
    "Filter": lambda: streams.Filter(lambda item: bool(str(item))),
    "Filter that drops": lambda: streams.Filter(lambda item: len(str(item)) % 2 == 0),
    "FlatMap": lambda: streams.FlatMap(words),
    "FlatMap of nothing": lambda: streams.FlatMap(lambda item: [item] * (len(str(item)) % 3)),
    "Batch": lambda: streams.Batch(3),
    "Batch, full only": lambda: streams.Batch(4, drop_last=True),
    "Bucket": lambda: streams.Bucket(2, buffer=5, length=lambda item: len(str(item))),
    "Shuffle": lambda: streams.Shuffle(6),
    "Shuffle of all": lambda: streams.Shuffle(1000),
    "Take": lambda: streams.Take(9),
    "by hand": lambda: in_pairs,
}


@given(
    st.lists(st.sampled_from(sorted(STAGES)), max_size=4),
    st.integers(0, 30),
    st.integers(0, 2**62),
    st.integers(0, 3),
    st.data(),
)
def test_a_stream_goes_on_from_every_position_as_if_it_had_not_stopped(
    names: list[str], count: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    stream = as_stream(over([STAGES[name]() for name in names], range(count)))
    way = Pass(seed=seed, epoch=epoch)
    whole = read(stream, way)
    stop = data.draw(st.integers(0, len(whole)))

    cursor = stream.open(way)
    before = [next(cursor) for _ in range(stop)]
    position = cursor.position()
    random.seed(stop)  # what others draw does not matter
    after = list(stream.open(way, position))

    assert before + after == whole
    length = stream.length(way)
    assert length is None or length == len(whole)


@pytest.mark.row("A70")
@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [8, 8, 4]), (True, [8, 8])])
def test_batches_have_their_size_but_the_last(drop_last: bool, sizes: list[int]) -> None:
    stream = over([streams.Batch(8, drop_last=drop_last)], range(20))

    assert [len(batch) for batch in stream] == sizes
    assert stream.length(Pass()) == len(sizes)


@pytest.mark.row("A66")
def test_a_wrapped_sequence_has_its_length_and_items() -> None:
    wrapped = SequenceWrapper(["a", "b", "c"])

    assert (len(wrapped), wrapped[1], wrapped[-1], list(wrapped)) == (3, "b", "c", ["a", "b", "c"])
    with pytest.raises(ArgumentError, match="no length"):
        SequenceWrapper(iter("abc"))  # type: ignore[arg-type]


@pytest.mark.row("A65")
def test_a_stage_of_sequences_after_a_stream_is_refused_with_the_fix() -> None:
    with pytest.raises(ArgumentError) as caught:
        over([streams.Shuffle(), map_style.MapSequence(str)])

    assert caught.value.inside == ("pipes", 2)
    assert "stream" in caught.value.said and "StreamToSequence" in caught.value.fix
    assert sorted(
        over(
            [streams.Shuffle(), map_style.StreamToSequence(), map_style.MapSequence(str)], range(3)
        )
    ) == ["0", "1", "2"]


@pytest.mark.row("A67")
def test_a_stream_kept_as_a_sequence_is_gone_through_once() -> None:
    asked: list[int] = []

    def source(items: Iterable[int]) -> Iterator[int]:
        asked.append(1)
        yield from items

    kept = over(
        [source, map_style.StreamToSequence(), map_style.MapSequence(lambda item: item * 2)],
        range(5),
    )

    assert [list(kept), list(kept), len(kept), kept[3]] == [[0, 2, 4, 6, 8], [0, 2, 4, 6, 8], 5, 6]  # type: ignore[arg-type, index]
    assert asked == [1]


@pytest.mark.row("A68")
def test_a_shuffled_stream_has_one_order_for_a_seed_and_epoch_and_each_item_once() -> None:
    stream = over([streams.Shuffle(40)], range(100))

    first, again = read(stream, Pass(seed=1)), read(stream, Pass(seed=1))
    second, other = read(stream, Pass(seed=1, epoch=1)), read(stream, Pass(seed=2))

    assert first == again != list(range(100))
    assert len({tuple(each) for each in (first, second, other)}) == 3
    assert sorted(first) == sorted(second) == sorted(other) == list(range(100))


def test_every_item_of_a_block_comes_first_about_as_often() -> None:
    stream = over([streams.Shuffle(5)], range(5))

    firsts = Counter(read(stream, Pass(epoch=epoch))[0] for epoch in range(2000))

    assert all(330 < firsts[item] < 470 for item in range(5))


@pytest.mark.row("A73")
def test_streams_are_mixed_by_weight_and_alike_for_a_seed() -> None:
    mixed = streams.Mix([["a"] * 9000, ["b"] * 9000], [3, 1])

    drawn = read(over_stream(mixed, streams.Take(4000)))

    assert abs(drawn.count("a") / 4000 - 0.75) < 0.02
    assert (
        drawn
        == read(over_stream(mixed, streams.Take(4000)))
        != read(over_stream(mixed, streams.Take(4000)), Pass(seed=1))
    )


def over_stream(*stages: Any) -> Stream:
    return chain(list(stages))  # type: ignore[no-any-return]


@pytest.mark.row("A73")
@given(st.integers(0, 40), st.booleans())
def test_mixed_and_joined_streams_go_on_from_every_position(stop: int, repeat: bool) -> None:
    rows = over([streams.Shuffle(4), streams.Map(noisy, random=True)], range(11))
    for joined in (
        streams.Mix([rows, range(8), rows], [1, 2, 1], repeat=repeat),
        streams.Concat([rows, range(8), rows]),
    ):
        stream = over_stream(joined, streams.Map(noisy, random=True))
        whole = read(stream)
        cursor = stream.open(Pass())
        before = [item for _, item in zip(range(stop), cursor, strict=False)]

        assert before + list(stream.open(Pass(), cursor.position())) == whole


def test_a_mix_that_repeats_ends_when_each_has_ended_once() -> None:
    mixed = read(streams.Mix([range(3), range(100, 140)], [1, 1], repeat=True))

    assert set(range(3)) <= set(mixed) and set(range(100, 140)) <= set(mixed)
    assert Counter(mixed)[0] > 3
    shuffled = streams.Mix(
        [over([streams.Shuffle()], range(50)), range(1000, 2000)], [50, 1], repeat=True
    )
    rounds = [item for item in streams.Take(200).over(shuffled) if item < 50][:100]
    assert rounds[:50] != rounds[50:] and sorted(rounds[:50]) == sorted(rounds[50:])


@pytest.mark.row("A69")
@pytest.mark.parametrize("shards", [1, 3, 6, 40])
def test_shards_together_give_each_item_once(shards: int) -> None:
    stream = over([streams.Shuffle(7), streams.SplitByWorker(), streams.Map(lambda item: item)])

    parts = [read(stream, Pass(shard=shard, shards=shards)) for shard in range(shards)]

    assert sorted(item for part in parts for item in part) == list(range(23))
    for shard, part in enumerate(parts):
        assert stream.length(Pass(shard=shard, shards=shards)) == len(part)


def test_what_an_item_is_drawn_under_does_not_depend_on_what_was_drawn_before() -> None:
    stream = over([streams.Map(noisy, random=True)], range(4))

    random.seed(1)
    first = read(stream)
    random.seed(2)

    assert read(stream) == first
    assert len({item[1] for item in first} | {item[2] for item in first}) == 8
    assert {item[1] for item in read(stream, Pass(epoch=1))}.isdisjoint(item[1] for item in first)


def test_work_ahead_gives_the_same_items_and_errors_where_they_belong() -> None:
    stream = over([streams.Map(lambda item: 1 // (5 - item)), streams.Prefetch(3)], range(9))
    cursor = stream.open(Pass())

    given_first = [next(cursor) for _ in range(5)]
    position = cursor.position()
    with pytest.raises(ZeroDivisionError):
        next(cursor)
    cursor.close()

    assert given_first == [0, 0, 0, 0, 1]
    again = stream.open(Pass(), position)
    with pytest.raises(ZeroDivisionError):
        next(again)
    again.close()


def test_work_ahead_in_a_thread_is_refused_after_a_stage_that_draws() -> None:
    with pytest.raises(ArgumentError, match="noisy before it may draw"):
        over([streams.Map(noisy, random=True), streams.Prefetch()])


def test_sequences_are_mapped_chosen_joined_and_kept() -> None:
    asked: list[int] = []

    def double(item: int) -> int:
        asked.append(item)
        return item * 2

    made = chain(
        [
            SequenceWrapper(range(10)),
            map_style.FilterSequence(lambda item: item % 2 == 0),
            map_style.MapSequence(double),
            map_style.Cache(),
        ]
    )
    joined = map_style.ConcatSequences([made, [100, 101]])

    assert [joined[i] for i in range(len(joined))] == [0, 4, 8, 12, 16, 100, 101]
    assert [joined[1], joined[-1], joined[-3]] == [4, 101, 16]
    assert asked == [0, 2, 4, 6, 8]
    assert list(chain([SequenceWrapper("abcd"), map_style.Select([3, 0])])) == ["d", "a"]
    with pytest.raises(ArgumentError, match="has 4"):
        chain([SequenceWrapper("abcd"), map_style.Select([4])])
    with pytest.raises(ArgumentError, match="one random draw"):
        chain(
            [SequenceWrapper("abcd"), map_style.MapSequence(noisy, random=True), map_style.Cache()]
        )


def test_a_sequence_that_draws_does_so_under_a_key_in_a_stream() -> None:
    stream = chain(
        [SequenceWrapper("abcd"), map_style.MapSequence(noisy, random=True), streams.Batch(3)]
    )

    assert read(stream) == read(stream) != read(stream, Pass(epoch=1))


def test_buckets_hold_items_of_like_length() -> None:
    rows = ["x" * (i * 7 % 50) for i in range(100)]

    batches = read(over([streams.Shuffle(100), streams.Bucket(10, buffer=100)], rows))

    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    assert max(len(batch[-1]) - len(batch[0]) for batch in batches) <= 6
    assert [len(batch[0]) for batch in batches] != sorted(len(batch[0]) for batch in batches)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: chain([]), "there are no pipes"),
        (lambda: chain([streams.Batch(2)]), "Batch needs something before it"),
        (lambda: over([streams.Batch(0)]), "`batch_size` is 0"),
        (lambda: over([streams.Bucket(8, buffer=4)]), "less than a batch"),
        (lambda: over([streams.SplitByWorker(), streams.SplitByWorker()]), "split already"),
        (lambda: over([SequenceWrapper("ab")]), "is a source"),
        (lambda: over([3]), "a int is no pipe"),
        (lambda: streams.Mix([[1], [2]], [1]), "1 `weights` for 2 streams"),
        (lambda: streams.Mix([[1], [2]], [1, 0]), "greater than 0"),
        (lambda: streams.Concat([over([streams.SplitByWorker()]), [1]]), "some have none"),
    ],
)
def test_what_cannot_be_chained_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


def test_what_can_be_gone_through_once_is_no_source() -> None:
    with pytest.raises(InputError, match="once only"):
        chain([iter([1]), streams.Batch(2)])
    with pytest.raises(InputError, match="neither"):
        chain([3, streams.Batch(2)])


@pytest.mark.row("A73")
@pytest.mark.parametrize(("said", "what"), [(22, "there are more"), (24, "there are only 23")])
def test_a_length_that_is_wrong_is_told_at_the_end_of_the_epoch(said: int, what: str) -> None:
    stream = over([streams.Filter(bool), streams.Length(said - 1)])

    assert stream.length(Pass()) == said - 1
    with pytest.raises(InputError, match=what.replace("23", "22")):
        read(stream)
    assert len(read(over([streams.Filter(bool), streams.Length(22)]))) == 22


@pytest.mark.row("E25", "C74")
def test_parts_have_the_sizes_asked_for_and_nothing_in_common() -> None:
    def part(number: int, sizes: list[float], seed: int = 0) -> list[int]:
        return list(
            chain([SequenceWrapper(range(1000)), map_style.RandomSplit(sizes, number, seed=seed)])
        )

    parts = [part(i, [700, 200, 100]) for i in range(3)]

    assert [len(each) for each in parts] == [700, 200, 100]
    assert sorted(item for each in parts for item in each) == list(range(1000))
    assert part(1, [700, 200, 100]) == parts[1] != part(1, [700, 200, 100], seed=1)
    assert [len(part(i, [0.7, 0.2])) for i in range(2)] == [700, 200]
    for wrong in (
        lambda: map_style.RandomSplit([1, 2], 2),
        lambda: map_style.RandomSplit([-1], 0),
        lambda: part(0, [1001]),
    ):
        with pytest.raises(ArgumentError):
            wrong()


@pytest.mark.row("F14")
def test_pipes_are_our_own_and_need_no_torchdata() -> None:
    program = """
import sys
sys.modules["torchdata"] = None  # importing it fails
from assay.engine import chain
from assay.engine.data import map_style, streams
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.data.streams import Stream
chained = chain([map_style.SequenceWrapper(range(6)), streams.Map(str), streams.Batch(4)])
assert isinstance(chained, Stream) and list(chained) == [["0", "1", "2", "3"], ["4", "5"]]
assert len(list(StreamLoader(chain([map_style.SequenceWrapper(range(6)), streams.Batch(4)])))) == 2
assert not [name for name in sys.modules if name.startswith(("torchdata.", "torch.utils.data.datapipes.iter"))
            and name not in before_assay]
"""
    before = "import sys, torch.utils.data\nbefore_assay = set(sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", before + program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
