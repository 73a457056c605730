"""Reader of metrics: whatever has happened to the files costs what it touches, and is told."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import RecordError
from assay.formats import metrics_file
from assay.formats.metrics_file import KeySet, row_bytes
from assay.interop.foreign_run import block_of
from assay.record.writer import MetricsWriter
from assay.store import metrics_reader
from assay.store.series import MetricsContents, read_contents, read_series
from assay.store.summaries import summaries
from assay.store.write_blocks import write_blocks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


def log_rows(path: Path, count: int, names: tuple[str, ...] = ("loss",)) -> Path:
    """Log rows at the steps from 0 on; return the file of rows."""
    writer = MetricsWriter(path)
    for step in range(count):
        writer.log(dict.fromkeys(names, float(step)), step)
    writer.close()
    return path / metrics_file.rows_file(metrics_file.row_values(len(names)))


def steps_of(contents: MetricsContents) -> list[int]:
    return [int(step) for block in contents.blocks for step in block.steps]


@pytest.mark.parametrize("names", [("a",), tuple(f"m{i}" for i in range(20))], ids=("1", "20"))
def test_each_flipped_bit_of_a_file_of_rows_costs_one_row_and_is_told(
    path: Path, names: tuple[str, ...]
) -> None:
    file = log_rows(path, 3, names)
    whole, size = file.read_bytes(), row_bytes(len(names))

    for place in range(0, 8 * len(whole), 1 if len(names) == 1 else 61):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)

        contents = read_contents(path)

        lost = place // 8 // size
        assert steps_of(contents) == [step for step in range(3) if step != lost]
        assert [(each.begin, each.end) for each in contents.damages] == [
            (lost * size, (lost + 1) * size)
        ]
        assert contents.missing == {len(names): 1}


def test_a_flipped_bit_of_the_names_costs_nothing_and_is_told(path: Path) -> None:
    log_rows(path, 3)
    file = path / "names.jsonl"
    whole = file.read_bytes()

    for place in range(8 * len(whole) - 8):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)

        contents = read_contents(path)

        assert steps_of(contents) == [0, 1, 2]
        assert contents.blocks[0].keys == KeySet(("loss",))
        assert contents.damaged_names


def test_rows_whose_names_are_lost_are_told_and_the_others_are_read(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.log({"gone": 1.0}, 1)
    writer.log({"loss": 2.0}, 2)
    writer.close()
    file = path / "names.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"gone"', b'"evil"'))

    contents = read_contents(path)

    assert (steps_of(contents), contents.nameless) == ([2], 1)


@pytest.mark.parametrize("count", [5, 3_000])
def test_bytes_that_are_taken_out_or_put_in_cost_the_rows_they_touch(
    path: Path, count: int
) -> None:
    file = log_rows(path, count)
    whole, chance = file.read_bytes(), random.Random(5)

    for _ in range(60):
        at, size = chance.randrange(len(whole)), chance.randrange(1, 100)
        if chance.random() < 0.5:
            end = min(len(whole), at + size)
            harmed, touched = whole[:at] + whole[end:], range(at // 40, (end - 1) // 40 + 1)
        else:
            harmed = whole[:at] + chance.randbytes(size) + whole[at:]
            touched = range(at // 40, at // 40 + (1 if at % 40 else 0))
        file.write_bytes(harmed)

        found = steps_of(read_contents(path))

        assert set(range(count)) - set(found) <= set(touched)
        assert found == sorted(found)


def test_a_file_cut_at_any_byte_has_all_rows_before_it(path: Path) -> None:
    file = log_rows(path, 4)
    whole = file.read_bytes()

    for length in range(len(whole)):
        file.write_bytes(whole[:length])

        contents = read_contents(path)

        assert steps_of(contents) == list(range(length // 40))
        assert [each.torn for each in contents.damages] == ([True] if length % 40 else [])
        assert contents.missing == {1: 4 - length // 40}


def test_a_damaged_part_is_passed_over_in_work_in_proportion_to_its_length(path: Path) -> None:
    """Rows of the right set with wrong checksums: what a search would try one by one."""
    file = log_rows(path, 100)
    whole = file.read_bytes()
    hostile = bytearray(whole[:40] * 20_000)
    for at in range(0, len(hostile), 40):
        hostile[at] ^= 1
    file.write_bytes(whole + hostile + whole)

    contents = read_contents(path)

    assert len(steps_of(contents)) == 200
    assert [(each.begin, each.end) for each in contents.damages] == [(4_000, 4_000 + len(hostile))]


def test_windows_of_any_size_hold_what_the_whole_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MetricsWriter(path)
    for step in range(300):
        writer.log({"a": float(step)}, step)
        writer.log({"a": float(step), "b": 1.0} if step % 3 else {"c": 2.0}, step)
        if step in (100, 200):
            writer.rewind(step - 50)
    writer.close()
    file = path / "1.rows"
    data = bytearray(file.read_bytes())
    data[2_000:2_100] = os.urandom(100)
    file.write_bytes(data)
    series, whole, contents = read_series(path, branches=True), summaries(path), read_contents(path)

    for window in (48, 100, 1_000, 5_001):
        monkeypatch.setattr(metrics_reader, "WINDOW_BYTES", window)
        assert summaries(path) == whole
        again = read_contents(path)
        assert (again.damages, again.missing) == (contents.damages, contents.missing)
        for name, one in read_series(path, branches=True).items():
            for field in ("steps", "times_ns", "values", "branches"):
                np.testing.assert_array_equal(getattr(one, field), getattr(series[name], field))


def hostile_files() -> Iterator[tuple[str, bytes]]:
    yield "1.rows", b"\0" * 100_000
    yield "1.rows", os.urandom(10_000)
    yield "names.jsonl", b"\xff" * 1000
    for text in (
        {"set": -1, "names": ["a"]},
        {"set": 1, "names": []},
        {"set": 1, "names": "a", "axis": "x"},
        {"set": 1, "names": 7},
        {"set": [1], "names": ["a"]},
        {"rewind": "x", "attempt": 1, "place": 1},
        {"rewind": 10**400, "attempt": 1, "place": 1},
        {"end": {"x": 1}},
        {"end": []},
        {"format": 2, "set": None},
        {"unknown": 1},
    ):
        yield "names.jsonl", metrics_file.line_of(text)


@pytest.mark.parametrize(("name", "data"), list(hostile_files()))
def test_noise_and_nonsense_are_never_raised(path: Path, name: str, data: bytes) -> None:
    log_rows(path, 3)
    with (path / name).open("ab") as file:
        file.write(data)

    assert steps_of(read_contents(path)) == [0, 1, 2]
    assert summaries(path)["loss"].count == 3
    MetricsWriter(path, 2).close()


@pytest.mark.parametrize("name", ["1.rows", "names.jsonl"])
def test_what_is_no_file_is_refused(path: Path, name: str) -> None:
    log_rows(path, 3)
    (path / name).unlink()
    os.mkfifo(path / name)

    with pytest.raises(RecordError, match="named pipe"):
        read_contents(path)


def test_a_folder_that_holds_nothing_yet_has_no_curves(path: Path) -> None:
    assert read_series(path) == summaries(path) == {}
    path.mkdir()
    assert read_series(path) == summaries(path) == {}


def test_curves_of_another_tool_keep_their_branches_and_are_in_order_by_time(path: Path) -> None:
    loss = block_of(
        ["loss"], [1, 2, 3, 3], [10, 20, 30, 60], [[0.1, 0.2, 0.3, 0.4]], branches=[0, 0, 2, 0]
    )
    other = block_of(["acc", "x"], [1, 3], [15, 65], [[0.5, 0.6], [7.0, 8.0]], axis=1)

    write_blocks(path, [loss, other])

    curves, whole = read_series(path), read_series(path, branches=True)
    assert curves["loss"].values.tolist() == [0.1, 0.2, 0.4]
    assert sorted(whole["loss"].branches.tolist()) == [0, 0, 0, 2]
    assert curves["acc"].xs.tolist() == [7.0, 8.0]
    contents = read_contents(path)
    rows = [
        (int(place), int(time_ns))
        for block in contents.blocks
        for place, time_ns in zip(block.places, block.times_ns, strict=True)
    ]
    assert [time_ns for _, time_ns in sorted(rows)] == [10, 15, 20, 30, 60, 65]
    assert (contents.damages, contents.missing) == ((), {})


def test_a_run_without_a_point_can_be_written(path: Path) -> None:
    write_blocks(path, [])

    assert read_series(path) == {}
