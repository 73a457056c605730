"""Curves and summaries of metrics."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from assay.formats.run_file import Summary
from assay.record.writer import MetricsWriter
from assay.store.series import read_series
from assay.store.summaries import summaries

Logged = list[tuple[tuple[str, ...], int, tuple[float, ...]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


def write(path: Path, rows: Logged) -> Path:
    writer = MetricsWriter(path)
    for names, step, values in rows:
        writer.log(dict(zip(names, values, strict=True)), step)
    writer.close()
    return path


def test_a_summary_is_the_curve_in_a_few_numbers(path: Path) -> None:
    write(
        path, [(("a",), 1, (4.0,)), (("a",), 2, (1.0,)), (("a",), 3, (1.0,)), (("a",), 5, (2.0,))]
    )

    assert summaries(path) == {
        "a": Summary(last=2.0, step=5, count=4, min=1.0, at_min=2, max=4.0, at_max=1, mean=2.0)
    }


def test_a_metric_that_is_logged_in_several_company_is_one_curve(path: Path) -> None:
    rows: Logged = [
        (("a",), 1, (3.0,)),
        (("a", "b"), 2, (1.0, 0.0)),
        (("b", "a"), 3, (0.0, 5.0)),
        (("a",), 4, (2.0,)),
    ]
    write(path, rows)

    assert read_series(path)["a"].steps.tolist() == [1, 2, 3, 4]
    assert read_series(path)["a"].values.tolist() == [3.0, 1.0, 5.0, 2.0]
    assert summaries(path)["a"] == Summary(
        last=2.0, step=4, count=4, min=1.0, at_min=2, max=5.0, at_max=3, mean=11 / 4
    )


def test_nan_is_counted_and_is_no_extreme(path: Path) -> None:
    write(path, [(("a",), 1, (math.nan,)), (("a",), 2, (1.0,)), (("a",), 3, (math.nan,))])

    found = summaries(path)["a"]

    assert (found.count, found.min, found.max, found.mean) == (3, 1.0, 1.0, 1.0)
    assert math.isnan(found.last)


def test_a_curve_of_nan_alone_has_no_extremes(path: Path) -> None:
    found = summaries(write(path, [(("a",), 7, (math.nan,))]))["a"]

    assert (found.count, found.step) == (1, 7)
    assert all(math.isnan(value) for value in (found.last, found.min, found.max, found.mean))


def test_infinities_of_both_signs_have_a_mean_that_is_no_number(path: Path) -> None:
    found = summaries(write(path, [(("a",), 1, (math.inf,)), (("a",), 2, (-math.inf,))]))["a"]

    assert (found.min, found.max) == (-math.inf, math.inf)
    assert math.isnan(found.mean)


@pytest.mark.parametrize("value", [0.7, 0.988555788035147, 1e308, 5e-324])
def test_the_mean_of_equal_values_is_each_of_them(path: Path, value: float) -> None:
    write(path, [(("a",), step, (value,)) for step in range(3)])

    assert summaries(path)["a"].mean == value


def test_the_step_of_an_extreme_is_the_lowest_that_has_it(path: Path) -> None:
    points = ((5, 1.0), (3, 1.0), (4, 0.5), (9, 0.5), (2, 0.5))
    found = summaries(write(path, [(("a",), step, (value,)) for step, value in points]))["a"]

    assert (found.at_max, found.at_min) == (3, 2)


def test_summaries_agree_with_numpy_on_any_curve(path: Path) -> None:
    chance = random.Random(3)
    rows: Logged = []
    for step in range(2000):
        names = chance.choice([("a",), ("a", "b"), ("b", "a")])
        rows.append((names, step, tuple(chance.gauss(0, 1) for _ in names)))
    write(path, rows)

    for name, series in read_series(path).items():
        found = summaries(path)[name]
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


def test_only_the_curves_that_were_asked_for_come_back(path: Path) -> None:
    write(path, [(("a", "b", "c"), 1, (1.0, 2.0, 3.0))])

    assert list(read_series(path, names=["c", "nowhere", "a"])) == ["c", "a"]
