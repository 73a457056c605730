"""A file of metrics that is followed while it is written."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.formats import frames, metrics_file
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.layout import open_project
from assay.store.metrics_tail import Tail
from assay.store.series import read_series
from assay.store.summaries import summaries


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
    for step in range(30_000):  # over more than one extent
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


def test_a_file_that_was_compacted_is_read_again(recorder: RunRecorder) -> None:
    tail = Tail(recorder.folder.metrics)
    for step in range(20_000):
        recorder.log({"loss": float(step)}, step)
    tail.update()
    recorder.finish()
    assert tail.update()
    equal(tail, recorder.folder.metrics)


def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "metrics.bin")
    assert not tail.update()
    assert tail.series() == {}
    assert tail.summaries() == {}


def test_a_frame_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.bin"
    head = frames.file_head(metrics_file.FORM)
    head += frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=0, end=4096)
    head += metrics_file.pack_keys(metrics_file.KeySet(0, ("loss",)))
    frame = metrics_file.pack_wide(0, 7, 7, [0.5])
    for part in (frame[:8], frame[:20]):
        path.write_bytes((head + part).ljust(4096, b"\0"))
        tail = Tail(path)
        tail.update()
        assert tail.series() == {}
        with open(path, "r+b") as file:  # the same file, as the writer goes on
            file.seek(len(head))
            file.write(frame)
        assert tail.update()
        assert tail.series()["loss"].values.tolist() == [0.5]


@example([1e300, 1.0, -1e300])  # the sum of floats is 0
@example([sys.float_info.max] * 49)  # no float, though the mean is one
@example([math.inf, -math.inf, 1.0])
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
def test_the_summaries_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "metrics.bin"
    data = frames.file_head(metrics_file.FORM)
    data += frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=0, end=0)
    data += metrics_file.pack_keys(metrics_file.KeySet(0, ("loss",)))
    data += b"".join(
        metrics_file.pack_wide(0, step, step, [value]) for step, value in enumerate(values, 1)
    )
    path.write_bytes(data)
    tail = Tail(path)
    tail.update()
    mine, theirs = tail.summaries()["loss"], summaries(path)["loss"]
    assert mine.mean == pytest.approx(theirs.mean, nan_ok=True)
    assert math.isfinite(mine.mean) or not all(map(math.isfinite, values))
    for name in ("last", "step", "count", "min", "at_min", "max", "at_max"):
        assert getattr(mine, name) == pytest.approx(
            getattr(theirs, name), nan_ok=True, rel=0, abs=0
        ), name
