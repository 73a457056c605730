"""A long file is read a window at a time, and nobody sees where one begins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import Damage
from assay.formats.metrics_file import Chunk, KeySet, Row, Rows
from assay.record.compaction import compact
from assay.record.writer import MetricsWriter
from assay.store import chunk_stream
from assay.store.chunk_stream import read_windows
from assay.store.vectors import FAST


@pytest.fixture(params=["mapped", "written", "compacted"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Rows of two key sets in several extents, two attempts, and one that a long step makes wide."""
    path = tmp_path / "metrics.bin"
    for attempt in (1, 2):
        writer = MetricsWriter(path, attempt, preallocate=request.param == "mapped")
        writer.rewind(3_000 * (attempt - 1))
        for step in range(12_000):
            writer.log({"loss": step / 3, "lr": 0.1}, step)
            if step % 100 == 0:
                writer.log({"valid/loss": step / 7}, step)
        writer.log({"loss": 1.0}, 1 << 40)
        writer.close()
    assert request.param != "compacted" or compact(path)
    return path


def read_flat(items: object) -> list[object]:
    """Each row alone, in the order of the file."""
    flat: list[object] = []
    for item in items:  # type: ignore[attr-defined]
        match item:
            case Chunk():
                flat += zip(
                    [(item.keys.id, item.branch)] * len(item.steps),
                    item.steps,
                    item.times_ns,
                    *item.columns,
                    [-1] * len(item.steps) if item.places is None else item.places,
                    strict=True,
                )
            case Rows():
                flat += zip(
                    [item.keys.id] * len(item.steps),
                    item.steps,
                    item.times_ns,
                    *item.columns,
                    strict=True,
                )
            case Row():
                flat.append((item.keys.id, item.step, item.time_ns, *item.values))
            case _:
                flat.append(item)
    return flat


@pytest.mark.parametrize("window", [1_000, 4_096, 100_000])
def test_windows_of_any_size_hold_what_the_whole_file_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(chunk_stream, "WINDOW_BYTES", window)

    assert read_flat(read_windows(path)) == read_flat(metrics_reader.read_rows(path.read_bytes()))


def test_damage_is_told_as_of_the_whole_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_stream, "WINDOW_BYTES", 50_000)
    whole = path.read_bytes()
    chance = random.Random(5)

    for _ in range(20):
        flipped = bytearray(whole)
        flipped[chance.randrange(frames.FILE_HEAD_BYTES, 400_000)] ^= 1
        path.write_bytes(flipped)

        found = read_flat(read_windows(path))

        assert found == read_flat(metrics_reader.read_rows(bytes(flipped)))
        assert sum(isinstance(item, Damage) for item in found) <= 1


def test_chunks_of_one_length_come_as_one(path: Path) -> None:
    assert compact(path)
    one_by_one = list(metrics_reader.read_rows(path.read_bytes()))
    joined = list(metrics_reader.read_rows(path.read_bytes(), vectors=FAST))

    assert len(joined) < len(one_by_one)
    assert read_flat(joined) == read_flat(one_by_one)


@pytest.mark.parametrize("wrong", ["rows", "time"])
def test_a_chunk_that_says_what_cannot_be_costs_no_other_one(wrong: str) -> None:
    keys = KeySet(0, ("loss",))
    good = metrics_file.pack_chunk(Chunk(keys, 0, [1, 2], [0, 0], ([1.0, 2.0],)))
    payload, rows = bytearray(good[frames.FRAME_HEAD_BYTES :]), 2
    if wrong == "rows":
        rows = 1_000
    else:
        payload[16:24] = (2**63 - 1).to_bytes(8, "little")
        payload[48:56] = b"\1" * 8
    bad = frames.pack(metrics_file.CHUNK, keys.id, rows, bytes(payload))
    body = metrics_file.pack_keys(keys) + good + bad + good
    head = frames.pack_extent(
        metrics_file.FORM,
        sequence=0,
        attempt=0,
        base_ns=0,
        end=frames.FILE_HEAD_BYTES + frames.EXTENT_HEAD_BYTES + len(body),
    )

    found = list(
        metrics_reader.read_rows(frames.file_head(metrics_file.FORM) + head + body, vectors=FAST)
    )

    assert [type(each) for each in found] == [Chunk, Damage, Chunk]


@pytest.mark.parametrize("values", [1, 3, 13, 40])
def test_frames_are_found_damaged_where_they_are_many_as_where_they_are_few(values: int) -> None:
    chance = random.Random(values)
    rows = [frames.pack(7, step, 0, chance.randbytes(8 * values)) for step in range(3_000)]
    whole, size = b"".join(rows), len(rows[0])

    assert FAST.count_intact is not None
    for _ in range(50):
        flipped = bytearray(whole + bytes(5 * size))
        flipped[chance.randrange(size, len(whole))] ^= 1 << chance.randrange(8)
        data = memoryview(flipped)

        assert FAST.count_intact(data, size) == frames.count_intact_frames(data, size)
    assert FAST.count_intact(memoryview(whole), size) == len(rows)
