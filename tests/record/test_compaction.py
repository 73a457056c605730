"""Compaction loses nothing, or does nothing. More of it, with rewinds and resumes: `test_writer.py`."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core import frames
from assay.record import compaction
from assay.record.compaction import compact
from assay.record.writer import MetricsWriter
from assay.store.series import read_contents, read_series


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """20,000 rows of one metric, and some of others."""
    path = tmp_path / "metrics.bin"
    writer = MetricsWriter(path)
    for step in range(20_000):
        writer.log({"loss": step / 3}, step)
        if step % 1000 == 0:
            writer.log({"acc": 0.5, "loss": -1.0}, step)
    writer.close()
    return path


def test_a_compacted_file_is_smaller_and_reads_the_same(path: Path) -> None:
    before, size = read_series(path), path.stat().st_size

    assert compact(path)

    after = read_series(path)
    assert path.stat().st_size < 0.8 * size
    for name, series in before.items():
        assert after[name].steps.tolist() == series.steps.tolist()
        assert after[name].values.tobytes() == series.values.tobytes()
        assert abs(after[name].times_ns - series.times_ns).max() < frames.TICK_NS


def test_the_bits_of_a_nan_survive(tmp_path: Path) -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]
    writer = MetricsWriter(tmp_path / "metrics.bin")
    for step, value in enumerate([odd, -0.0, math.inf, 5e-324]):
        writer.log({"a": value}, step)
    writer.close()
    before = read_series(tmp_path / "metrics.bin")["a"].values.tobytes()

    assert compact(tmp_path / "metrics.bin")

    assert read_series(tmp_path / "metrics.bin")["a"].values.tobytes() == before


def test_compacting_twice_changes_nothing(path: Path) -> None:
    assert compact(path)
    once = path.read_bytes()

    assert compact(path)

    assert path.read_bytes() == once


def test_damage_to_a_compacted_file_costs_one_extent_and_not_the_rest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXTENT_BYTES", 1 << 15)
    assert compact(path)
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1

    contents = read_contents(bytes(data))

    assert 0 < contents.damaged_bytes < 100_000
    assert sum(len(block.steps) for block in contents.blocks) > 10_000


def test_on_any_doubt_the_old_file_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    real = compaction._file

    def one_bit_wrong(blocks: list[compaction.Block]) -> Iterator[bytes]:
        for block in blocks:
            block.columns[0][0] += 1
        yield from real(blocks)
        for block in blocks:
            block.columns[0][0] -= 1

    monkeypatch.setattr(compaction, "_file", one_bit_wrong)

    assert not compact(path)

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_disk_that_is_full_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compaction.os, "fsync", full)

    assert not compact(path)

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_without_points_can_be_compacted(tmp_path: Path) -> None:
    MetricsWriter(tmp_path / "metrics.bin").close()

    assert compact(tmp_path / "metrics.bin")
    assert (tmp_path / "metrics.bin").stat().st_size == frames.FILE_HEAD_BYTES
