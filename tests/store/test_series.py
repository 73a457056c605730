"""Curves and summaries out of files, with and without numpy."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from assay.formats import frames, metrics_file
from assay.formats.metrics_file import KeySet
from assay.formats.run_file import Summary
from assay.store.series import read_contents, read_series
from assay.store.summaries import summaries

Logged = list[tuple[tuple[str, ...], int, tuple[float, ...]]]


def file_of(rows: Logged, *, tail: bytes = b"") -> bytes:
    """A file without preallocated extents, one tick a row."""
    sets: dict[tuple[str, ...], int] = {}
    out = [
        frames.file_head(metrics_file.FORM),
        frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=10**18, end=0),
    ]
    for tick, (names, step, values) in enumerate(rows):
        if names not in sets:
            sets[names] = len(sets)
            out.append(metrics_file.pack_keys(KeySet(sets[names], names)))
        body = metrics_file.values_struct(len(names)).pack(
            metrics_file.values_words(len(names)), sets[names], step, tick, *values
        )
        out.append(frames.crc32(body).to_bytes(4, "little") + body)
    return b"".join(out) + tail


def test_a_summary_is_the_curve_in_a_few_numbers() -> None:
    data = file_of(
        [(("a",), 1, (4.0,)), (("a",), 2, (1.0,)), (("a",), 3, (1.0,)), (("a",), 5, (2.0,))]
    )

    assert summaries(data) == {
        "a": Summary(last=2.0, step=5, count=4, min=1.0, at_min=2, max=4.0, at_max=1, mean=2.0)
    }


def test_a_metric_that_is_logged_in_several_company_is_one_curve() -> None:
    data = file_of(
        [
            (("a",), 1, (3.0,)),
            (("a", "b"), 2, (1.0, 0.0)),
            (("b", "a"), 3, (0.0, 5.0)),
            (("a",), 4, (2.0,)),
        ]
    )

    assert read_series(data)["a"].steps.tolist() == [1, 2, 3, 4]
    assert read_series(data)["a"].values.tolist() == [3.0, 1.0, 5.0, 2.0]
    assert summaries(data)["a"] == Summary(
        last=2.0, step=4, count=4, min=1.0, at_min=2, max=5.0, at_max=3, mean=11 / 4
    )


def test_nan_is_counted_and_is_no_extreme() -> None:
    data = file_of([(("a",), 1, (math.nan,)), (("a",), 2, (1.0,)), (("a",), 3, (math.nan,))])

    found = summaries(data)["a"]

    assert (found.count, found.min, found.max, found.mean) == (3, 1.0, 1.0, 1.0)
    assert math.isnan(found.last)


def test_a_curve_of_nan_alone_has_no_extremes() -> None:
    found = summaries(file_of([(("a",), 7, (math.nan,))]))["a"]

    assert (found.count, found.step) == (1, 7)
    assert all(math.isnan(value) for value in (found.last, found.min, found.max, found.mean))


def test_infinities_of_both_signs_have_a_mean_that_is_no_number() -> None:
    found = summaries(file_of([(("a",), 1, (math.inf,)), (("a",), 2, (-math.inf,))]))["a"]

    assert (found.min, found.max) == (-math.inf, math.inf)
    assert math.isnan(found.mean)


def test_summaries_agree_with_numpy_on_any_curve() -> None:
    chance = random.Random(3)
    rows: Logged = []
    for step in range(2000):
        names = chance.choice([("a",), ("a", "b"), ("b", "a")])
        rows.append((names, step, tuple(chance.gauss(0, 1) for _ in names)))
    data = file_of(rows)

    for name, series in read_series(data).items():
        found = summaries(data)[name]
        assert (found.count, found.last, found.step) == (
            len(series),
            series.values[-1],
            series.steps[-1],
        )
        assert (found.min, found.at_min) == (
            series.values.min(),
            series.steps[series.values.argmin()],
        )
        assert (found.max, found.at_max) == (
            series.values.max(),
            series.steps[series.values.argmax()],
        )
        assert found.mean == pytest.approx(series.values.mean())


def test_only_the_curves_that_were_asked_for_come_back() -> None:
    data = file_of([(("a", "b", "c"), 1, (1.0, 2.0, 3.0))])

    assert list(read_series(data, names=["c", "nowhere", "a"])) == ["c", "a"]


@pytest.mark.parametrize("data", [b"", b"\x93AS", file_of([])])
def test_a_file_that_holds_nothing_yet_has_no_curves(data: bytes) -> None:
    assert summaries(data) == {}
    assert read_series(data) == {}


def test_a_file_that_is_not_there_has_no_curves(tmp_path: Path) -> None:
    assert read_contents(tmp_path / "metrics.bin").blocks == []


def test_what_cannot_be_read_is_told_with_its_place() -> None:
    contents = read_contents(file_of([(("a",), 1, (1.0,))], tail=b"torn off"))

    (damage,) = contents.damages
    assert (damage.end - damage.offset, damage.torn) == (8, True)
    assert list(contents.blocks[0].steps) == [1]


def test_summaries_need_no_numpy() -> None:
    program = "import sys; from assay.store.summaries import summaries; summaries(b''); assert 'numpy' not in sys.modules"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
