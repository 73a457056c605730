"""Curves as a screen shows them: every spike is there, in as many ranges as were asked for."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.query.curves import Curve, CurveReader, CurveView, draw_curves, width_for
from assay.record.writer import MetricsWriter
from assay.store.layout import Project, RunFolder
from assay.store.series import Series, read_series
from run_folders import make_run

SECOND = 10**9


def series(
    name: str,
    values: list[float],
    *,
    steps: list[int] | None = None,
    branches: list[int] | None = None,
) -> Series:
    """One point a second, at the steps 1, 2, ... unless others are given."""
    steps = steps if steps is not None else list(range(1, len(values) + 1))
    return Series(
        name=name,
        steps=np.array(steps, np.int64),
        times_ns=np.arange(len(values), dtype=np.int64) * SECOND + 100 * SECOND,
        values=np.array(values, np.float64),
        branches=np.array(branches if branches is not None else [0] * len(values), np.int64),
    )


def of_one_run(view: CurveView, *of: Series) -> list[list[float]]:
    """Where the points of the first metric are drawn on the x axis, a list for each branch."""
    found = draw({each.name: each for each in of}, view, of[0].name)
    return [curve.xs.tolist() for curve in found]


def draw(series: Mapping[str, Series], view: CurveView, *metrics: str) -> list[Curve]:
    """Draw metrics of one run."""
    return draw_curves(["r"], lambda _: series, metrics, view, widths={})


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(st.floats(-1e9, 1e9), st.just(math.nan), st.just(math.inf)),
        min_size=1,
        max_size=300,
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_a_reduced_curve_has_every_spike_and_counts_what_is_not_finite(
    values: list[float], points: int, log: bool
) -> None:
    view = CurveView(points=points, log=log)
    (curve,) = draw({"loss": series("loss", values)}, view, "loss")

    finite = [each for each in values if math.isfinite(each)]
    assert curve.total == len(values) and curve.non_finite == len(values) - len(finite)
    if finite:
        assert np.nanmin(curve.lows) == min(finite) and np.nanmax(curve.highs) == max(finite)
    if curve.non_finite:
        assert curve.non_finite_x == 1 + next(
            i for i, each in enumerate(values) if not math.isfinite(each)
        )
    assert (curve.first_x, curve.last_x) == (1, len(values))
    assert curve.is_raw or len(curve) <= max(1.25 * points, points + 1) + 1


@pytest.mark.parametrize(
    ("view", "at"),
    [
        (CurveView(), [1, 2, 3]),
        (CurveView(x="step"), [1, 2, 3]),
        (CurveView(x="time"), [100, 101, 102]),
        (CurveView(x="elapsed"), [0, 1, 2]),
        (CurveView(x="epoch"), [5, 6]),  # before its first value there is no place
        (CurveView(x="absent"), []),
        (
            CurveView(low=2, high=2),
            [1, 2, 3],
        ),  # with a point on each side, so that the line leaves the picture
    ],
)
def test_a_curve_lies_on_the_axis_that_is_asked_for(view: CurveView, at: list[float]) -> None:
    epoch = series("epoch", [5, 6], steps=[2, 3])

    (drawn,) = of_one_run(view, series("loss", [3, 2, 1]), epoch) or [[]]

    assert drawn == at


def test_each_branch_of_a_resumed_run_is_a_curve_of_its_own_where_branches_are_asked_for() -> None:
    loss = series("loss", [4, 3, 9, 2], steps=[1, 2, 3, 3], branches=[0, 0, 2, 0])

    assert of_one_run(CurveView(branches=True), loss) == [[1, 2, 3], [3]]


def test_an_axis_that_runs_back_is_drawn_in_the_order_of_logging() -> None:
    values = [float(i % 10) for i in range(200)]
    axis = series("epoch", [float(200 - i) for i in range(200)])

    runs = {"loss": series("loss", values), "epoch": axis}
    (curve,) = draw(runs, CurveView(x="epoch", points=20), "loss")

    assert not curve.is_raw and curve.total == 200 and (curve.first_x, curve.last_x) == (1, 200)


def test_a_run_that_is_written_is_followed_and_one_that_has_ended_is_read_again_only_when_it_changed(
    project: Project,
) -> None:
    folder = RunFolder(make_run(project, points={"loss": [3.0, 2.0, 1.0]}))
    reader = CurveReader()

    assert list(reader.series(folder, ["loss"], is_open=True)["loss"].values) == [3, 2, 1]
    assert reader.revision(folder, update=True) == 3
    assert '"loss"' in reader.summaries_json(folder)
    reader.forget(folder)
    assert reader.revision(folder) == 0
    assert list(reader.series(folder, None, is_open=False)["loss"].values) == [3, 2, 1]


def test_a_large_file_is_kept_until_it_changes(project: Project) -> None:
    folder = RunFolder(make_run(project, points={"loss": [1.0] * 40_000}))
    reader = CurveReader()
    first = reader.series(folder, None, is_open=False)

    assert reader.series(folder, None, is_open=False) is first
    with (folder.metrics / "1.rows").open("ab") as file:
        file.write(bytes(8))
    assert reader.series(folder, None, is_open=False) is not first


def test_metrics_that_are_logged_together_lie_at_the_same_places(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics", 1)
    for step in range(900):
        writer.log({"loss": 1.0, "lr": math.nan if step % 2 else 2.0}, step)
    writer.close()
    read = read_series(tmp_path / "metrics")

    loss, rate = draw(read, CurveView(points=20, means=True), "loss", "lr")

    assert read["loss"].steps is read["lr"].steps
    assert loss.xs is rate.xs and (loss.non_finite, rate.non_finite) == (0, 450)
    assert loss.means is not None and set(loss.means) == {1.0}
    assert rate.means is not None and set(rate.means) == {2.0}


def test_means_are_there_where_they_are_asked_for_and_of_what_was_left_behind() -> None:
    steps = [*range(90), *range(50, 90)]
    branches = [0] * 50 + [2] * 40 + [0] * 40
    runs = {"loss": series("loss", [float(i) for i in steps], steps=steps, branches=branches)}

    by_branch = {
        each.branch: each for each in draw(runs, CurveView(branches=True, points=10), "loss")
    }

    assert by_branch[0].means is None
    (wanted,) = draw(runs, CurveView(points=10, means=True), "loss")
    for curve in (by_branch[2], wanted):
        assert curve.means is not None and not curve.is_raw
        assert (curve.lows < curve.means).any() and (curve.means <= curve.highs).all()


@pytest.mark.parametrize("lengths", [(400, 900), (900, 400)])
def test_all_runs_are_divided_alike_though_each_is_let_go_before_the_next_is_read(
    lengths: tuple[int, int],
) -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def read(run: str) -> dict[str, Series]:
        gc.collect()
        assert not any(each() for each in alive)
        found = series("loss", [float(i % 7) for i in range(int(run))])
        alive.append(weakref.ref(found.values))
        return {"loss": found}

    drawn = draw_curves(map(str, lengths), read, ["loss"], CurveView(points=20), widths={})

    assert [(curve.run, curve.total) for curve in drawn] == [(str(n), n) for n in lengths]
    assert {curve.width for curve in drawn} == {width_for(1, 900, 20)}
    assert sorted(map(len, drawn)) == [11, 23]
