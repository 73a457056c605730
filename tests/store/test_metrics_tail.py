"""A file of metrics that is followed while it is written."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.layout import open_project
from assay.store.metrics_tail import Tail
from assay.store.series import read_series
from assay.store.summaries import summaries
from run_folders import write_metrics


@pytest.fixture
def recorder(tmp_path: Path):
    recorder = start_run(open_project(tmp_path, create=True), AttemptSpec(keep_code=False))
    yield recorder
    recorder.finish()


def equal(tail: Tail, path: Path) -> None:
    whole, followed = read_series(path, branches=True), tail.series(branches=True)
    assert whole.keys() == followed.keys()
    for name, series in whole.items():
        for field in ("steps", "times_ns", "values", "branches"):
            np.testing.assert_array_equal(
                getattr(series, field), getattr(followed[name], field), err_msg=name
            )


def test_a_file_that_is_followed_holds_what_one_look_at_all_of_it_finds(
    recorder: RunRecorder,
) -> None:
    tail, path = Tail(recorder.folder.metrics), recorder.folder.metrics
    assert not tail.update()
    for step in range(30_000):
        recorder.log({"loss": math.sin(step), "acc": step / 7}, step)
        if step % 7_001 == 0:
            recorder.log({"valid": float(step)}, step)
            assert tail.update()
            assert not tail.update()
            equal(tail, path)
    assert tail.update()
    equal(tail, path)
    assert tail.rows == 30_005


def test_what_a_resume_left_behind_is_on_its_branch(recorder: RunRecorder) -> None:
    tail = Tail(recorder.folder.metrics)
    for step in range(10):
        recorder.log({"loss": float(step)}, step)
    tail.update()
    recorder.rewind(4)
    recorder.log({"loss": 40.0}, 5)
    tail.update()
    equal(tail, recorder.folder.metrics)
    assert tail.series()["loss"].values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 40.0]


def test_metrics_that_were_cut_off_or_replaced_are_read_again(recorder: RunRecorder) -> None:
    folder = recorder.folder.metrics
    tail = Tail(folder)
    for step in range(1_000):
        recorder.log({"loss": float(step)}, step)
    tail.update()
    for harm in (
        lambda file: os.truncate(file, 400),
        lambda file: os.replace(shutil.copy(file, folder / "copy"), file),
    ):
        harm(folder / "1.rows")
        tail.update()
        equal(tail, folder)
        assert tail.rows == 10


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "metrics")
    assert not tail.update()
    assert tail.series() == {}
    assert tail.summaries() == {}


def test_a_row_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    write_metrics(tmp_path, {"loss": [0.25, 0.5]})
    file = tmp_path / "metrics" / "1.rows"
    whole = file.read_bytes()
    for part in (bytes(40), whole[40:60], whole[40:60] + bytes(20)):
        file.write_bytes(whole[:40] + part)
        tail = Tail(tmp_path / "metrics")
        tail.update()
        assert tail.series()["loss"].values.tolist() == [0.25]
        file.write_bytes(whole)  # the same file, as the writer goes on
        assert tail.update()
        assert tail.series()["loss"].values.tolist() == [0.25, 0.5]


@example([1e300, 1.0, -1e300])  # the sum of floats is 0
@example([sys.float_info.max] * 49)  # no float, though the mean is one
@example([math.inf, -math.inf, 1.0])
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
def test_the_summaries_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    write_metrics(folder, {"loss": values})
    path = folder / "metrics"
    tail = Tail(path)
    tail.update()
    mine, theirs = tail.summaries()["loss"], summaries(path)["loss"]
    assert mine.mean == pytest.approx(theirs.mean, nan_ok=True)
    assert math.isfinite(mine.mean) or not all(map(math.isfinite, values))
    for name in ("last", "step", "count", "min", "at_min", "max", "at_max"):
        assert getattr(mine, name) == pytest.approx(
            getattr(theirs, name), nan_ok=True, rel=0, abs=0
        ), name
