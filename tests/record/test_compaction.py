"""Compaction loses nothing, or does nothing; see also `test_writer.py` for rewinds and resumes."""

from __future__ import annotations

import math
import random
import shutil
import signal
import struct
import subprocess
import sys
from array import array
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from assay.formats import frames, metrics_file
from assay.formats.metrics_file import Chunk
from assay.interop.foreign_run import curve
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


def test_curves_of_another_tool_keep_their_branches_and_are_in_order_by_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.bin"
    loss = curve(1, "loss", [1, 2, 3, 3], [10, 20, 30, 60], [0.1, 0.2, 0.3, 0.4], [0, 0, 2, 0])
    other = curve(2, "acc", [1, 3], [15, 65], [0.5, 0.6])

    compaction.write_compacted(path, [loss, other])

    curves, whole = read_series(path), read_series(path, branches=True)
    assert curves["loss"].values.tolist() == [0.1, 0.2, 0.4]
    assert sorted(whole["loss"].branches.tolist()) == [0, 0, 0, 2]
    rows = [
        (time_ns, place)
        for block in read_contents(path).blocks
        for time_ns, place in zip(block.times_ns, block.orders, strict=True)
    ]
    assert [time_ns for time_ns, _ in sorted(rows, key=lambda row: row[1])] == [
        *(10, 15, 20, 30, 60, 65)
    ]


def test_a_compacted_file_is_smaller_and_reads_the_same(path: Path) -> None:
    before, size = read_series(path), path.stat().st_size

    assert compact(path)

    after = read_series(path)
    assert path.stat().st_size < 0.85 * size
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


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 7, 51, 20_000])
def test_a_flipped_bit_of_a_compacted_file_costs_a_64th_of_a_curve_or_8_points(
    tmp_path: Path, rows: int
) -> None:
    path = tmp_path / "metrics.bin"
    writer = MetricsWriter(path)
    for step in range(rows):
        writer.log({"loss": step / 3}, step)
    writer.close()
    assert compact(path)
    whole = path.read_bytes()
    chance = random.Random(rows)

    for place in sorted(
        {*range(200), *(chance.randrange(len(whole)) for _ in range(100))} & {*range(len(whole))}
    ):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)

        contents = read_contents(bytes(flipped))

        (damage,) = contents.damages
        assert damage.offset <= place < damage.end
        read = {
            step: value
            for block in contents.blocks
            for step, value in zip(block.steps, block.columns[0], strict=True)
        }
        assert len(read) >= rows - max(8, rows // 64)
        assert all(value == step / 3 for step, value in read.items())


def test_a_compacted_file_of_which_a_sector_is_lost_is_read_but_for_that(path: Path) -> None:
    assert compact(path)
    whole = path.read_bytes()

    for begin in range(512, len(whole), 4096):
        contents = read_contents(whole[:begin] + bytes(512) + whole[begin + 512 :])

        assert sum(len(block.steps) for block in contents.blocks) >= 20_020 - 2 * 20_000 // 64 - 20
        assert contents.damages


def test_on_any_doubt_the_old_file_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    real = metrics_file.pack_chunk

    def one_bit_wrong(chunk: Chunk, **fast: Any) -> bytes:
        column = array("d", chunk.columns[0])
        column[-1] = math.nextafter(column[-1], math.inf)
        return real(replace(chunk, columns=(column, *chunk.columns[1:])), **fast)

    monkeypatch.setattr(metrics_file, "pack_chunk", one_bit_wrong)

    assert not compact(path)

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_lacks_a_row_does_not_take_the_place_of_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    read = compaction.read_chunks
    monkeypatch.setattr(
        compaction, "read_chunks", lambda path, outline: islice(read(path, outline), 10)
    )

    assert not compact(path)

    assert path.read_bytes() == before


def test_a_folder_that_is_removed_meanwhile_ends_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction.os, "fsync", lambda descriptor: shutil.rmtree(path.parent))

    assert not compact(path)

    assert not path.parent.exists()


_KILLED = """
import os, signal, sys
from pathlib import Path
from assay.record import compaction

def kill(function):
    def killing(*given, **named):
        if sys.argv[3] == "after":
            function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    return killing

place = {"append": (compaction, "_append"), "fsync": (os, "fsync"), "replace": (os, "replace")}
module, name = place[sys.argv[2]]
setattr(module, name, kill(getattr(module, name)))
compaction.compact(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["append", "fsync", "replace"])
def test_a_kill_at_any_point_of_it_loses_nothing(path: Path, where: str, when: str) -> None:
    before = read_series(path)

    killed = subprocess.run([sys.executable, "-c", _KILLED, str(path), where, when], check=False)

    assert killed.returncode == -signal.SIGKILL
    after = read_series(path)
    assert {name: each.values.tobytes() for name, each in after.items()} == {
        name: each.values.tobytes() for name, each in before.items()
    }
    MetricsWriter(path, 2).close()
    assert compact(path)


_PEAK = """
import sys
from pathlib import Path
from assay.record.compaction import compact
from assay.store.summaries import summaries

def peak_kb():
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1])

for path in map(Path, sys.argv[1:]):
    assert compact(path)
    summaries(path)
    print(peak_kb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_memory_that_it_takes_does_not_grow_with_the_length_of_the_run(tmp_path: Path) -> None:
    paths = [tmp_path / "short.bin", tmp_path / "long.bin"]
    for path, rows in zip(paths, (100_000, 1_600_000), strict=True):
        writer = MetricsWriter(path)
        for step in range(rows):
            writer.log({"loss": 0.5}, step)
        writer.close()

    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *map(str, paths)], check=True, capture_output=True, text=True
    )

    short_kb, long_kb = map(int, done.stdout.split())
    assert long_kb - short_kb < 6_000, "the longer file has 38 MB"


def test_a_disk_that_is_full_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
