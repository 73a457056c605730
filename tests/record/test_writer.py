"""Metrics writer: no point is lost once `log` has returned, and none is read unlogged."""

from __future__ import annotations

import itertools
import math
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError, RecordError
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.metrics_file import Row
from assay.record import compaction
from assay.record import writer as writer_module
from assay.record.compaction import compact
from assay.record.mapped_extent import EXTENT_BYTES
from assay.record.writer import MAX_ROW_NAMES, MetricsWriter
from assay.store.series import read_contents, read_series
from assay.store.summaries import fold_file, summaries

SECOND_NS = 1_000_000_000

Points = dict[str, list[tuple[int, float]]]


@pytest.fixture(params=[True, False], ids=["mapped", "written"])
def preallocate(request: pytest.FixtureRequest) -> bool:
    """Both ways in which bytes reach the file."""
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.bin"


def curves(path: Path) -> Points:
    """The points on the curve by metric."""
    return {
        name: list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        for name, series in read_series(path).items()
    }


def write(
    path: Path, rows: list[tuple[Mapping[str, float], int]], *, attempt: int = 1, preallocate: bool
) -> None:
    writer = MetricsWriter(path, attempt, preallocate=preallocate)
    for values, step in rows:
        writer.log(values, step)
    writer.close()


def test_what_was_logged_is_read_back_in_order(path: Path, preallocate: bool) -> None:
    write(
        path,
        [({"loss": 1.5, "acc": 0}, 0), ({"loss": 0.5, "acc": 1}, 1), ({"lr": 0.1}, 1)],
        preallocate=preallocate,
    )

    assert curves(path) == {
        "loss": [(0, 1.5), (1, 0.5)],
        "acc": [(0, 0.0), (1, 1.0)],
        "lr": [(1, 0.1)],
    }


def test_one_metric_takes_24_bytes_a_point_and_twenty_at_most_9(path: Path) -> None:
    writer = MetricsWriter(path)

    for step in range(1000):
        writer.log({"loss": 0.5}, step)
    one = writer_position(writer)
    for step in range(1000):
        writer.log({f"metric/{i}": 0.5 for i in range(20)}, step)
    twenty = writer_position(writer) - one
    writer.close()

    overhead = 500  # heads and the names
    assert one <= 24_000 + overhead
    assert twenty <= 9 * 20_000 + overhead


def writer_position(writer: MetricsWriter) -> int:
    assert writer._map is not None
    return writer._map.tell()


@pytest.mark.parametrize(
    "kind", ["bool", "int", "numpy", "array of one", "tensor", "tensor with gradient"]
)
def test_whatever_is_a_number_may_be_logged(path: Path, kind: str, preallocate: bool) -> None:
    torch = pytest.importorskip("torch") if "tensor" in kind else None
    value = {
        "bool": lambda: True,
        "int": lambda: 1,
        "numpy": lambda: np.float32(1),
        "array of one": lambda: np.array([1.0]),
        "tensor": lambda: torch.tensor([1.0]) if torch else None,
        "tensor with gradient": lambda: torch.tensor(1.0, requires_grad=True) if torch else None,
    }[kind]()

    write(path, [({"a": value}, 1), ({"a": value}, np.int64(2))], preallocate=preallocate)  # type: ignore[dict-item, list-item]

    assert curves(path) == {"a": [(1, 1.0), (2, 1.0)]}


@pytest.mark.parametrize(
    "value", ["1.5", None, [1.0, 2.0], np.zeros(2), 1 + 2j, b"1", 10**400, object()]
)
def test_what_is_no_number_is_refused_by_the_name_of_its_metric(
    path: Path, value: object, preallocate: bool
) -> None:
    writer = MetricsWriter(path, preallocate=preallocate)
    writer.log({"good": 1.0, "bad/one": 2.0}, 1)

    with pytest.raises(RecordError, match="'bad/one'"):
        writer.log({"good": 1.0, "bad/one": value}, 2)  # type: ignore[dict-item]
    writer.close()

    assert curves(path) == {"good": [(1, 1.0)], "bad/one": [(1, 2.0)]}


@pytest.mark.parametrize("step", [1.5, "3", None, 1 << 63])
def test_a_step_is_a_whole_number_of_64_bits(path: Path, step: object) -> None:
    writer = MetricsWriter(path)

    with pytest.raises(RecordError, match="step"):
        writer.log({"a": 1.0}, step)  # type: ignore[arg-type]

    writer.close()


def test_a_log_without_a_step_is_answered_with_the_call_that_is_meant(path: Path) -> None:
    writer = MetricsWriter(path)

    with pytest.raises(RecordError, match="needs the step") as caught:
        writer.log({"a": 1.0})

    writer.close()
    assert "run.log(values, 1)" in caught.value.fix


@pytest.mark.parametrize("name", ["", 3, "x" * 70_000])
def test_a_name_is_text_of_sensible_length(path: Path, name: object) -> None:
    writer = MetricsWriter(path)

    with pytest.raises(RecordError, match="name"):
        writer.log({name: 1.0}, 1)  # type: ignore[dict-item]

    writer.close()


def test_values_that_are_no_mapping_are_refused_with_an_example(path: Path) -> None:
    writer = MetricsWriter(path)

    with pytest.raises(RecordError, match="numbers by name"):
        writer.log([1.0], 1)  # type: ignore[arg-type]

    writer.close()


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "a\nb",
        "x" * 10_000,
        "‮evil",
        "\ud800",
        "../../x",
        "'; DROP TABLE",
        "\0",
        "e\u0301",
        "é",
    ],
)
def test_names_are_data(path: Path, name: str, preallocate: bool) -> None:
    write(path, [({name: 1.0, "other": 2.0}, 1)], preallocate=preallocate)

    assert curves(path) == {name: [(1, 1.0)], "other": [(1, 2.0)]}
    assert compact(path)
    assert curves(path) == {name: [(1, 1.0)], "other": [(1, 2.0)]}


def test_infinities_and_nan_are_kept(path: Path) -> None:
    write(
        path, [({"a": math.inf}, 1), ({"a": -math.inf}, 2), ({"a": math.nan}, 3)], preallocate=True
    )

    values = read_series(path)["a"].values.tolist()

    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


def test_steps_that_a_short_frame_cannot_hold_get_a_wide_one_and_the_file_does_not_grow(
    path: Path, preallocate: bool
) -> None:
    steps = [-1, -(1 << 63), 1 << 32, (1 << 63) - 1, 0, (1 << 32) - 1]

    write(path, [({"a": float(i)}, step) for i, step in enumerate(steps)], preallocate=preallocate)

    assert [step for step, _ in curves(path)["a"]] == steps
    assert path.stat().st_size <= EXTENT_BYTES


def test_a_new_extent_begins_before_the_clock_of_the_old_one_wraps(
    path: Path, monkeypatch: pytest.MonkeyPatch, preallocate: bool
) -> None:
    clocks = Clocks(monkeypatch)
    writer = MetricsWriter(path, preallocate=preallocate)
    writer.log({"a": 1.0}, 1)
    day_ns = 24 * 3600 * 1_000_000_000

    clocks.move(wall_s=86_400, monotonic_s=86_400)
    writer.log({"a": 2.0}, 2)
    clocks.move(wall_s=86_400, monotonic_s=86_400)
    writer.log({"a": 3.0}, -1)
    writer.close()

    times = read_series(path)["a"].times_ns
    assert [(int(b - a) + 500_000_000) // day_ns for a, b in itertools.pairwise(times)] == [1, 1]


@pytest.mark.thorough
def test_a_row_of_many_thousand_metrics_is_kept_whole(path: Path, preallocate: bool) -> None:
    values = {f"layer/{i:06}": float(i) for i in range(2 * MAX_ROW_NAMES + 7)}

    write(path, [(values, 1), (values, 2)], preallocate=preallocate)

    assert {name: points[1] for name, points in curves(path).items()} == {
        n: (2, v) for n, v in values.items()
    }
    assert compact(path)
    assert len(curves(path)) == len(values)


def test_an_empty_log_call_writes_nothing(path: Path) -> None:
    write(path, [({}, 1)], preallocate=True)

    assert curves(path) == {}


def test_points_are_in_the_order_of_logging_though_the_clock_was_set_back_between_attempts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, [({"a": 1.0}, 1), ({"a": 2.0, "b": 1.0}, 2)], preallocate=True)
    hour_ago = time.time_ns() - 3600 * 1_000_000_000
    monkeypatch.setattr(writer_module.time, "time_ns", lambda: hour_ago)

    write(path, [({"a": 3.0, "b": 2.0}, 3), ({"a": 4.0}, 4)], attempt=2, preallocate=True)

    for _ in range(3):
        series = read_series(path)["a"]
        assert series.values.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert abs(int(series.times_ns[-1]) - hour_ago) <= writer_module.STEP_NS
        assert summaries(path)["a"].last == 4.0
        assert compact(path)


def test_a_file_of_before_has_its_points_in_the_order_of_their_times_and_what_comes_later_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [({"a": 1.0}, 1), ({"a": 2.0, "b": 0.0}, 2), ({"a": 3.0}, 3), ({"a": 4.0, "b": 0.0}, 4)]
    for row in rows:
        write(path, [row], preallocate=True)
    with monkeypatch.context() as patch:
        read = compaction.read_chunks
        patch.setattr(
            compaction,
            "read_chunks",
            lambda path, outline: (replace(it, places=None) for it in read(path, outline)),
        )
        assert compact(path)
        patch.setattr(writer_module.time, "time_ns", lambda: 1_000_000_000 * SECOND_NS)
        write(path, [({"a": 5.0}, 5)], attempt=2, preallocate=True)

    for _ in range(3):
        assert read_series(path)["a"].values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert summaries(path)["a"].last == 5.0
        assert compact(path)


class Clocks:
    """Wall and monotonic clock of the writer, set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ns, self.monotonic_ns = time.time_ns(), 10_000 * SECOND_NS
        patch.setattr(writer_module, "monotonic_ns", lambda: self.monotonic_ns)
        patch.setattr(writer_module.time, "time_ns", lambda: self.wall_ns)

    def move(self, *, wall_s: float, monotonic_s: float) -> None:
        self.wall_ns += int(wall_s * SECOND_NS)
        self.monotonic_ns += int(monotonic_s * SECOND_NS)


@pytest.mark.parametrize(
    "checks_s",
    [
        (8 * 3600, 0.25),
        (2, 2),
        (86400, 3600, 0.25),
        (-8 * 3600, 0.25),
        (3600, -7200, 86400, -2),
    ],
)
@pytest.mark.parametrize("is_suspended", [True, False])
def test_points_have_the_wall_clocks_time_again_after_it_was_set_or_stood_still(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    preallocate: bool,
    checks_s: Sequence[float],
    is_suspended: bool,
) -> None:
    """What runs on in a suspended machine is the wall clock alone."""
    clocks = Clocks(monkeypatch)
    writer = MetricsWriter(path, preallocate=preallocate)
    expected: list[int] = []

    def log() -> None:
        for names in ("a", "ab"):
            writer.log(dict.fromkeys(names, float(len(expected))), len(expected))
        writer.log({"c": 1.0}, -1)
        expected.append(clocks.wall_ns)
        clocks.move(wall_s=0.01, monotonic_s=0.01)

    log()
    for ahead_s in checks_s:
        clocks.move(wall_s=ahead_s, monotonic_s=0.0 if is_suspended else 0.1)
        writer.check()
        writer.prepare()
        log()
        log()
    size = writer.path.stat().st_size
    writer.close()

    def assert_right(*, after: str) -> None:
        for name, every in (("a", 2), ("b", 1), ("c", 1)):
            times = read_series(path)[name].times_ns
            late = [abs(int(t) - wall) for t, wall in zip(times[::every], expected, strict=True)]
            assert max(late) <= writer_module.STEP_NS, (name, after)
            assert (np.diff(read_series(path)[name].steps) >= 0).all(), (name, after)
        assert read_contents(path).damages == ()
        assert [value for _, value in curves(path)["b"]] == [float(i) for i in range(len(expected))]

    assert_right(after="writing")
    assert compact(path)
    assert_right(after="compaction")
    assert size <= EXTENT_BYTES, "an extent in what is left of the one before"


@pytest.mark.parametrize("back_s", [0.005, 5.0, 9_000.0, 20_000.0])
def test_a_monotonic_clock_that_goes_back_loses_no_point_and_no_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, preallocate: bool, back_s: float
) -> None:
    clocks = Clocks(monkeypatch)
    writer = MetricsWriter(path, preallocate=preallocate)
    writer.log({"a": 0.0}, 0)
    clocks.move(wall_s=1.0, monotonic_s=1.0)
    writer.log({"a": 1.0}, 1)

    clocks.move(wall_s=1.0, monotonic_s=-back_s)
    writer.log({"a": 2.0}, 2)
    writer.log({"a": 3.0}, -3)
    writer.check()
    writer.log({"a": 4.0}, 4)
    writer.close()

    series = read_series(path)["a"]
    assert series.values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert abs(int(series.times_ns[-1]) - clocks.wall_ns) <= writer_module.STEP_NS


def test_a_clock_that_is_not_set_begins_no_extent(
    path: Path, monkeypatch: pytest.MonkeyPatch, preallocate: bool
) -> None:
    clocks = Clocks(monkeypatch)
    writer = MetricsWriter(path, preallocate=preallocate)
    for step in range(100):
        writer.log({"a": 1.0}, step)
        clocks.move(wall_s=1.0001, monotonic_s=1.0)
        writer.check()
    writer.close()

    heads = [each for each in frames.scan(path.read_bytes()) if isinstance(each, frames.Extent)]
    assert len(heads) == 1


def test_room_is_looked_for_again_after_the_clock_went_back(
    path: Path, little_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    writer = MetricsWriter(path, preallocate=True)
    for step in range(12_000):
        writer.log({"a": 0.5}, step)
    assert writer.lost_points
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)

    clocks.move(wall_s=2.0, monotonic_s=-3600.0)
    writer.log({"a": 0.5}, 12_000)
    writer.close()

    assert curves(path)["a"][-1][0] == 12_000


# ------------------------------------------------------------------------------------------------------------- threads


def test_four_threads_lose_nothing_while_the_file_grows(path: Path, preallocate: bool) -> None:
    writer = MetricsWriter(path, preallocate=preallocate)
    count = 20_000 if preallocate else 3_000

    def work(name: str) -> None:
        for step in range(count):
            writer.log({name: float(step), "padding": 0.0}, step)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    found = read_series(path)
    for i in range(4):
        assert found[f"t{i}"].steps.tolist() == list(range(count))
        assert found[f"t{i}"].values.tolist() == [float(step) for step in range(count)]


def test_an_extent_made_ahead_by_another_thread_is_used_and_nothing_is_lost(path: Path) -> None:
    grown = threading.Event()
    writer = MetricsWriter(path, preallocate=True, on_grown=grown.set)
    over = threading.Event()

    def ahead() -> None:
        while not over.is_set():
            grown.wait(0.01)
            grown.clear()
            writer.prepare()

    helper = threading.Thread(target=ahead)
    helper.start()
    for step in range(60_000):
        writer.log({"loss": step / 2, "acc": 1.0}, step)
    over.set()
    helper.join()
    writer.close()

    found = read_series(path)
    assert found["loss"].values.tolist() == [step / 2 for step in range(60_000)]
    assert found["acc"].steps.tolist() == list(range(60_000))


def test_growing_takes_the_extent_that_was_made_ahead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MetricsWriter(path, preallocate=True)
    while writer._spare is None:
        writer.log({"loss": 0.5}, 1)
        writer.prepare()
    made, before = writer._spare, path.stat().st_size
    monkeypatch.setattr("assay.record.writer.map_extent", None)

    for _ in range(EXTENT_BYTES // 24):
        writer.log({"loss": 0.5}, 1)

    assert writer._map is made.map
    assert path.stat().st_size == before
    writer.close()
    assert path.stat().st_size < before, "what was not written to is given back"


def test_an_extent_made_ahead_that_is_too_small_is_made_again(path: Path) -> None:
    writer = MetricsWriter(path, preallocate=True)
    while writer._spare is None:
        writer.log({"loss": 0.5}, 1)
        writer.prepare()
    names = [f"{i}-{'x' * 100}" for i in range(5000)]

    writer.log(dict.fromkeys(names, 1.5), 2)
    writer.log({"loss": 2.5}, 3)
    writer.close()

    found = curves(path)
    assert found[names[-1]] == [(2, 1.5)]
    assert found["loss"][-1] == (3, 2.5)


def test_a_file_left_with_an_extent_made_ahead_is_gone_on_with(path: Path) -> None:
    writer = MetricsWriter(path, preallocate=True)
    while writer._spare is None:
        writer.log({"loss": 0.5}, 1)
        writer.prepare()
    count = len(curves(path)["loss"])
    image = path.read_bytes()  # as a process that was killed leaves it
    writer.close()
    path.write_bytes(image)

    again = MetricsWriter(path, 2, preallocate=True)
    again.log({"loss": 1.5}, 2)
    again.close()

    assert curves(path)["loss"] == [(1, 0.5)] * count + [(2, 1.5)]


def test_what_was_grown_may_be_filled_by_others_before_it_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MetricsWriter(path, preallocate=True)
    writer.log({"a": 0.5}, 0)
    filled = []

    def fill() -> None:
        with pytest.raises(ValueError, match="out of range"):
            while True:
                filled.append(writer._out[0](metrics_file.pack_rewind(1 << 40, 1)))

    grow = writer._grow

    def grow_for_others(need: int) -> None:
        grow(need)
        if len(filled) < 3 * EXTENT_BYTES // 24:
            fill()

    monkeypatch.setattr(writer, "_grow", grow_for_others)
    fill()
    writer.log({"a": 1.5}, 1)
    fill()
    writer.log({"new": 2.5}, 2)
    fill()
    writer.rewind(1 << 40)
    monkeypatch.undo()
    writer.close()

    assert len(filled) > 2 * EXTENT_BYTES // 24
    assert curves(path) == {"a": [(0, 0.5), (1, 1.5)], "new": [(2, 2.5)]}


# ---------------------------------------------------------------------------------------------- death and resurrection

LOGGER_PROGRAM = """
import sys
from pathlib import Path
from assay.record.writer import MetricsWriter
writer = MetricsWriter(Path(sys.argv[1]), preallocate=sys.argv[2] == "True")
for step in range(1, 1_000_000):
    writer.log({"loss": step / 2, "acc": 1.0}, step)
    if step == 10_000:
        print("ready", flush=True)
        if sys.argv[3] == "wait":
            sys.stdin.read()
"""


def logger_process(path: Path, *, preallocate: bool, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOGGER_PROGRAM, str(path), str(preallocate), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_after_kill_9_every_point_that_log_returned_from_is_there(
    path: Path, preallocate: bool
) -> None:
    with logger_process(path, preallocate=preallocate, then="wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        process.send_signal(signal.SIGKILL)
        process.wait()

    expected = [(step, step / 2) for step in range(1, 10_001)]
    assert curves(path)["loss"] == expected
    assert summaries(path)["loss"].last == 5000.0


@pytest.mark.slow
def test_a_run_killed_in_full_flight_has_every_step_up_to_its_last_and_can_go_on(
    path: Path, preallocate: bool
) -> None:
    chance = random.Random(7)
    for _ in range(5):
        path.unlink(missing_ok=True)
        with logger_process(path, preallocate=preallocate, then="go on") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()

        reached = len(curves(path)["loss"])
        assert reached >= 10_000
        assert curves(path)["loss"] == [(step, step / 2) for step in range(1, reached + 1)]

        write(path, [({"loss": 0.0, "acc": 0.0}, reached + 1)], attempt=2, preallocate=preallocate)
        assert len(curves(path)["loss"]) == reached + 1
        assert not read_contents(path).damages


def last_frame(data: bytes) -> tuple[int, int]:
    """Offset and size of the last frame of values."""
    found = [
        item for item in frames.scan(data) if isinstance(item, frames.Frame) and item.tag < 0xFF00
    ]
    return found[-1].offset, frames.FRAME_HEAD_BYTES + len(found[-1].payload)


@pytest.mark.parametrize("cut", ["zeroed", "cut off", "garbage"])
def test_a_tail_torn_at_any_byte_costs_the_torn_row_and_nothing_else(
    path: Path, preallocate: bool, cut: str
) -> None:
    rows: list[tuple[Mapping[str, float], int]] = [
        ({"a": step + 0.5, "b": -1.0}, step) for step in range(1, 6)
    ]
    write(path, rows, preallocate=preallocate)
    whole = path.read_bytes()
    offset, size = last_frame(whole)

    for at in range(offset, offset + size):
        tail = {
            "zeroed": bytes(len(whole) - at),
            "cut off": b"",
            "garbage": os.urandom(offset + size - at),
        }[cut]
        if cut == "garbage":
            tail += bytes(len(whole) - at - len(tail))
        torn = whole[:at] + tail
        if torn == whole:
            continue
        path.write_bytes(torn)

        assert [step for step, _ in curves(path)["a"]] == [1, 2, 3, 4]
        write(
            path, [({"a": 9.0, "b": 9.0}, 9), ({"new": 1.0}, 9)], attempt=2, preallocate=preallocate
        )

        contents = read_contents(path)
        assert not contents.damages
        assert [step for step, _ in curves(path)["a"]] == [1, 2, 3, 4, 9]
        assert compact(path)
        assert [step for step, _ in curves(path)["a"]] == [1, 2, 3, 4, 9]


@pytest.mark.parametrize("length", range(0, 48, 5))
def test_a_file_cut_off_in_its_first_frames_is_begun_again(path: Path, length: int) -> None:
    write(path, [({"a": 1.0}, 1)], preallocate=True)
    path.write_bytes(path.read_bytes()[:length])

    write(path, [({"a": 2.0}, 2)], attempt=2, preallocate=True)

    assert curves(path) == {"a": [(2, 2.0)]}


def test_damage_in_the_middle_is_not_taken_for_a_torn_tail(path: Path) -> None:
    write(path, [({"a": float(step)}, step) for step in range(100)], preallocate=True)
    data = bytearray(path.read_bytes())
    offset, size = last_frame(bytes(data))
    middle = offset - 50 * size
    data[middle + 20] ^= 1
    path.write_bytes(data)

    write(path, [({"a": 1000.0}, 1000)], attempt=2, preallocate=True)

    assert path.read_bytes()[middle + size : offset + size] == data[middle + size : offset + size]
    assert curves(path)["a"][-1] == (1000, 1000.0)
    assert not compact(path), "what may be saved by hand is not thrown away"


def test_each_of_fifty_thousand_points_outlives_a_flipped_bit_anywhere_but_in_itself(
    path: Path,
) -> None:
    write(path, [({"loss": float(step)}, step) for step in range(50_000)], preallocate=True)
    whole = path.read_bytes()
    chance = random.Random(1)

    for place in [*range(0, 200, 7), *(chance.randrange(len(whole)) for _ in range(20))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)

        contents = read_contents(bytes(flipped))

        assert sum(len(block.steps) for block in contents.blocks) >= 49_999
        assert contents.damages


@pytest.mark.parametrize("damaged", ["the extent", "its key set"])
def test_damage_to_the_head_of_an_extent_costs_no_other_extent(path: Path, damaged: str) -> None:
    write(path, [({"loss": float(step)}, step) for step in range(30_000)], preallocate=True)
    data = bytearray(path.read_bytes())
    begin = frames.FILE_HEAD_BYTES + (0 if damaged == "the extent" else frames.EXTENT_HEAD_BYTES)
    data[begin : begin + 64] = b"\xaa" * 64  # both copies

    rows = [item for item in metrics_reader.read(bytes(data)) if isinstance(item, Row)]

    assert [row.step for row in rows] == list(range(30_000))


def test_damage_is_told_when_a_run_is_resumed_and_its_number_is_given_to_no_other_set(
    path: Path,
) -> None:
    write(path, [({"a": float(step)}, step) for step in range(5)], preallocate=False)
    write(path, [({"b": float(step)}, step) for step in range(5)], attempt=2, preallocate=False)
    data = bytearray(path.read_bytes())
    begin = data.index(metrics_file.pack_keys(metrics_file.KeySet(1, ("b",))))
    data[begin : begin + 64] = b"\xaa" * 64  # the definition of the set `b`, both copies
    path.write_bytes(data)
    problems: list[str] = []

    writer = MetricsWriter(path, 3, on_problem=problems.append)
    writer.log({"c": 9.0}, 9)
    writer.close()

    assert problems == [f"The metrics so far are damaged at byte {begin}: 64 bytes cannot be read."]
    assert curves(path) == {"a": [(step, float(step)) for step in range(5)], "c": [(9, 9.0)]}


def test_another_kind_of_file_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"my thesis, chapter one")

    with pytest.raises(RecordError, match="not a file of that kind"):
        MetricsWriter(path)

    assert path.read_bytes() == b"my thesis, chapter one"


def test_a_resumed_run_goes_back_and_the_old_branch_is_kept(path: Path, preallocate: bool) -> None:
    write(path, [({"a": float(step)}, step) for step in range(1, 11)], preallocate=preallocate)
    writer = MetricsWriter(path, 2, preallocate=preallocate)

    writer.rewind(6)
    writer.log({"a": 70.0}, 7)
    writer.close()

    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 6.0), (7, 70.0)]
    assert curves(path)["a"] == expected
    assert compact(path)
    assert curves(path)["a"] == expected
    old = read_series(path, branches=True)["a"]
    assert [
        int(step) for step, branch in zip(old.steps, old.branches, strict=True) if branch == 2
    ] == [7, 8, 9, 10]


def test_what_is_logged_again_at_the_step_that_a_run_goes_back_to_is_there_once(
    path: Path, preallocate: bool
) -> None:
    """A step was saved and evaluated, then the run killed: the resumed run evaluates it again."""
    write(path, [({"a": 1.0}, 3), ({"valid/a": 2.0}, 3), ({"a": 1.0}, 4)], preallocate=preallocate)
    writer = MetricsWriter(path, 2, preallocate=preallocate)

    writer.rewind(3)
    writer.log({"valid/a": 2.0}, 3)
    writer.log({"a": 1.0}, 4)
    writer.close()

    for _ in range(2):
        assert curves(path) == {"a": [(3, 1.0), (4, 1.0)], "valid/a": [(3, 2.0)]}
        assert compact(path)


@pytest.mark.parametrize("second", [True, False], ids=["then mapped", "then written"])
def test_a_compacted_file_can_be_gone_on_with(path: Path, preallocate: bool, second: bool) -> None:
    write(path, [({"a": 1.0}, 1), ({"a": 2.0, "b": 1.0}, 2)], preallocate=preallocate)
    assert compact(path)

    write(path, [({"b": 3.0}, 3), ({"a": 3.0, "b": 4.0}, 4)], attempt=2, preallocate=second)

    assert curves(path) == {
        "a": [(1, 1.0), (2, 2.0), (4, 3.0)],
        "b": [(2, 1.0), (3, 3.0), (4, 4.0)],
    }
    assert compact(path)
    assert curves(path) == {
        "a": [(1, 1.0), (2, 2.0), (4, 3.0)],
        "b": [(2, 1.0), (3, 3.0), (4, 4.0)],
    }


# -------------------------------------------------------------------------------------------------------------- no room


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file of this process may become longer than 300 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_training_goes_on_and_the_gap_is_told(
    path: Path, little_room: None, monkeypatch: pytest.MonkeyPatch, preallocate: bool
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_NS", 0)
    problems: list[str] = []
    writer = MetricsWriter(path, on_problem=problems.append, preallocate=preallocate)

    for step in range(20_000):
        writer.log({"a": 0.5}, step)
    assert len(problems) == 1
    assert "cannot be written" in problems[0]
    kept = len(curves(path)["a"])
    assert writer.lost_points == 20_000 - kept > 0

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    writer.log({"a": 0.5}, 20_000)
    writer.close()

    assert problems[1:] == [
        f"Metrics are written again. {20_000 - kept} points were lost, of steps {kept} to 19999."
    ]
    assert [step for step, _ in curves(path)["a"]] == [*range(kept), 20_000]


def test_growing_is_tried_again_at_most_once_a_second(
    path: Path, little_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MetricsWriter(path, preallocate=True)
    tries = []
    real = os.posix_fallocate

    def counted(descriptor: int, offset: int, length: int) -> None:
        tries.append(length)
        real(descriptor, offset, length)

    monkeypatch.setattr(writer_module.os, "posix_fallocate", counted)
    now = time.monotonic_ns()
    monkeypatch.setattr(writer_module, "monotonic_ns", lambda: now)
    for step in range(12_000):
        writer.log({"a": 0.5}, step)

    assert writer.lost_points > 100
    assert len(tries) == 1
    writer.close()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a disk takes root")
def test_a_disk_that_is_really_full_ends_no_training(tmp_path: Path, preallocate: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        problems: list[str] = []
        writer = MetricsWriter(
            disk / "metrics.bin", on_problem=problems.append, preallocate=preallocate
        )
        (disk / "filler").write_bytes(bytes(400_000))
        for step in range(60_000):
            writer.log({"a": 0.5}, step)
        (disk / "filler").unlink()
        writer._room_again_ns = 0
        writer.log({"a": 0.5}, 60_000)
        writer.close()

        steps = [step for step, _ in curves(disk / "metrics.bin")["a"]]
        assert steps[-1] == 60_000
        assert len(steps) + writer.lost_points == 60_001
        assert [
            ("cannot be written" in problem, "points were lost" in problem) for problem in problems
        ] == [
            (True, False),
            (False, True),
        ]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --------------------------------------------------------------------------------------------- what others do to it


@pytest.mark.parametrize("size", [0, 8, 5_000, 200_000])
@pytest.mark.parametrize("looked", [False, True])
def test_a_file_that_is_cut_off_costs_points_and_not_the_process(
    path: Path, size: int, looked: bool
) -> None:
    """In an OS process of its own: without the guard of the map it ends by SIGBUS."""
    script = f"""
import os
from pathlib import Path
from assay.record.writer import MetricsWriter
problems, lost = [], []
writer = MetricsWriter(Path({str(path)!r}), on_problem=problems.append, on_lost=lost.append, preallocate=True)
for step in range(9_000):
    writer.log({{"a": 0.5}}, step)
os.truncate({str(path)!r}, {size})
if {looked}:
    writer.check()
for step in range(9_000, 40_000):
    writer.log({{"a": 0.5}}, step)
writer.check()
writer.close()
assert len(problems) == len(lost) == 1, problems
print(problems[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "metrics.bin was cut off by somebody else" in done.stdout
    steps = [step for step, _ in curves(path)["a"]]
    assert steps[-20_000:] == list(range(20_000, 40_000))
    assert steps == sorted(steps)


def test_more_metrics_than_a_record_can_hold_are_refused_by_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_file, "MAX_COLUMNS", 3)
    writer = MetricsWriter(path)
    writer.log({"a": 0.5, "b": 0.5}, 1)
    with pytest.raises(RecordError, match="more than 3 metrics in one record"):
        writer.log({"c": 0.5, "d": 0.5}, 2)
    writer.log({"c": 0.5}, 3)
    writer.close()

    assert {name: len(points) for name, points in curves(path).items()} == {"a": 1, "b": 1, "c": 1}


def test_a_file_that_is_overwritten_with_something_else_is_set_aside(
    path: Path, preallocate: bool
) -> None:
    lost: list[str] = []
    writer = MetricsWriter(path, on_lost=lost.append, preallocate=preallocate)
    writer.log({"a": 0.5}, 1)
    path.write_bytes(b"of somebody else")
    writer.check()
    writer.log({"a": 0.25}, 2)
    writer.close()

    assert curves(path) == {"a": [(2, 0.25)]}
    assert path.with_name("metrics.damaged-1.bin").read_bytes() == b"of somebody else"
    assert lost == ["points of metrics.bin, which was cut off"]


@pytest.mark.parametrize("harm", ["deleted", "moved", "replaced", "linked"])
def test_a_file_that_is_deleted_or_replaced_is_made_again_with_all_its_points(
    path: Path, harm: str, preallocate: bool
) -> None:
    problems: list[str] = []
    writer = MetricsWriter(path, on_problem=problems.append, preallocate=preallocate)
    other = path.with_name("other")
    for step in range(20_000):
        writer.log({"a": 0.5}, step)
        if step == 15_000:
            match harm:
                case "deleted":
                    path.unlink()
                case "moved":
                    path.rename(other)
                case "replaced":
                    other.write_bytes(b"of somebody else")
                    other.replace(path)
                case "linked":
                    path.rename(other)
                    path.symlink_to(other)
        if step == 16_000:
            writer.check()
            writer.check()
    writer.close()

    assert curves(path)["a"] == [(step, 0.5) for step in range(20_000)]
    assert not path.is_symlink()
    assert problems == [
        "metrics.bin was deleted or replaced by somebody else while the run wrote it: no point is lost."
    ]


# ------------------------------------------------------------------------------------------------- who may not write


def test_a_forked_process_cannot_write_into_its_parents_run(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.log({"a": 1.0}, 1)

    child = os.fork()
    if child == 0:
        try:
            writer.log({"a": 666.0}, 666)
        except RecordError:
            os._exit(7)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    writer.log({"a": 2.0}, 2)
    writer.close()

    assert os.waitstatus_to_exitcode(status) == 7
    assert curves(path) == {"a": [(1, 1.0), (2, 2.0)]}


def test_fork_while_another_thread_holds_the_lock_does_not_hang_the_child(path: Path) -> None:
    writer = MetricsWriter(path)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            writer.log({"new": 1.0}, 1)
        except RecordError:
            os._exit(7)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()
    writer.close()

    assert os.waitstatus_to_exitcode(status) == 7


def test_after_the_end_nothing_can_be_logged(path: Path, preallocate: bool) -> None:
    writer = MetricsWriter(path, preallocate=preallocate)
    writer.log({"a": 1.0}, 1)
    writer.close()
    writer.close()

    with pytest.raises(RecordError, match="has ended"):
        writer.log({"a": 2.0}, 2)
    with pytest.raises(RecordError, match="has ended"):
        writer.rewind(0)

    assert curves(path) == {"a": [(1, 1.0)]}


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises((RecordError, InputError), match="The metrics cannot be written"):
        MetricsWriter(tmp_path / "nowhere" / "metrics.bin")


# ----------------------------------------------------------------------------------------------------------- properties

NAMES = st.sampled_from(["a", "b", "c/d", "é", "x" * 300])
VALUES = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
STEPS = (
    st.integers(-5, 30) | st.integers(0, 2) | st.sampled_from([-(1 << 63), 1 << 32, (1 << 63) - 1])
)
LOG = st.tuples(st.just("log"), st.dictionaries(NAMES, VALUES, max_size=4), STEPS)
REWIND = st.tuples(st.just("rewind"), STEPS)
REOPEN = st.tuples(st.just("reopen"))


@pytest.mark.slow
@given(
    calls=st.lists(LOG | LOG | LOG | REWIND | REOPEN | st.tuples(st.just("compact")), max_size=40),
    preallocate=st.booleans(),
)
def test_any_sequence_of_calls_is_read_back_as_it_was_before_and_after_compaction(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[object, ...]], preallocate: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "metrics.bin"
    attempt = 1
    writer = MetricsWriter(path, attempt, preallocate=preallocate)
    rows: list[tuple[dict[str, float], int]] = []
    left: Points = {}
    back: dict[frozenset[str], int] = {}  # what the next row of these names repeats

    def leave(old: Callable[[frozenset[str], int], bool]) -> None:
        for values, step in rows:
            if old(frozenset(values), step):
                for name, value in values.items():
                    left.setdefault(name, []).append((step, value))
        rows[:] = [(values, step) for values, step in rows if not old(frozenset(values), step)]

    for call in calls:
        match call:
            case ("log", dict(values), int(step)):
                writer.log(values, step)
                names = frozenset(values)
                if back.get(names) == step:
                    del back[names]
                    leave(lambda each, at, names=names, step=step: (each, at) == (names, step))  # type: ignore[misc]
                rows.append(({name: float(value) for name, value in values.items()}, step))
            case ("rewind", int(step)):
                writer.rewind(step)
                leave(lambda each, at, step=step: at > step)  # type: ignore[misc]
                back = dict.fromkeys((frozenset(values) for values, _ in rows), step)
            case (what,):
                writer.close()
                if what == "compact":
                    assert compact(path)
                    back.clear()
                attempt += 1
                writer = MetricsWriter(path, attempt, preallocate=preallocate)
    writer.close()
    curve: Points = {}
    for values, step in rows:
        for name, value in values.items():
            curve.setdefault(name, []).append((step, value))
    left = {name: sorted(points) for name, points in left.items() if points}

    for _ in range(2):
        assert curves(path) == curve
        everything = read_series(path, branches=True)
        abandoned = {
            name: sorted(
                (int(step), float(value))
                for step, value, branch in zip(
                    series.steps, series.values, series.branches, strict=True
                )
                if branch
            )
            for name, series in everything.items()
        }
        assert {name: points for name, points in abandoned.items() if points} == left
        for found in (summaries(path), fold_file(path)):
            assert {name: (s.count, s.last) for name, s in found.items()} == {
                name: (len(points), points[-1][1]) for name, points in curve.items()
            }
        assert compact(path)


@pytest.mark.parametrize("value", [0.7, 0.988555788035147, 1e308, 5e-324])
def test_the_mean_of_equal_values_is_each_of_them(path: Path, value: float) -> None:
    writer = MetricsWriter(path, 1)
    for step in range(3):
        writer.log({"loss": value}, step)
    writer.close()

    assert [each["loss"].mean for each in (summaries(path), fold_file(path))] == [value, value]


def test_the_step_of_an_extreme_is_the_lowest_that_has_it(path: Path) -> None:
    writer = MetricsWriter(path, 1)
    for step, value in ((5, 1.0), (3, 1.0), (4, 0.5), (9, 0.5), (2, 0.5)):
        writer.log({"loss": value}, step)
    writer.close()

    for found in (summaries(path), fold_file(path)):
        assert (found["loss"].at_max, found["loss"].at_min) == (3, 2)


def test_the_bytes_are_those_that_the_format_says(path: Path) -> None:
    writer = MetricsWriter(path, 3)
    writer.log({"loss": 0.25}, 7)
    writer.close()
    data = path.read_bytes()

    assert data[:8] == b"\x93ASSAYM\x01"
    (row,) = [item for item in metrics_reader.read(data) if isinstance(item, Row)]
    assert (row.keys.names, row.step, row.values, row.attempt) == (("loss",), 7, (0.25,), 3)
    assert abs(row.time_ns - time.time_ns()) < 60e9
    offset, size = last_frame(data)
    assert size == 24
    assert struct.unpack_from("<HHI", data, offset + 4) == (3, 0, 7)


def test_a_metric_can_be_the_x_axis_of_those_beside_it_also_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.bin"
    writer = MetricsWriter(path)
    writer.log({"tokens": 10.0, "loss": 3.0}, 1)
    writer.log({"alone": 1.0}, 1)
    writer.axis("tokens")
    writer.log({"tokens": 20.0, "loss": 2.0}, 2)
    writer.close()
    again = MetricsWriter(path, 2)
    again.log({"loss": 1.0, "tokens": 30.0}, 3)
    again.close()

    for _ in ("as written", "compacted"):
        found = read_series(path)
        assert (found["loss"].axis, found["loss"].xs.tolist()) == ("tokens", [1.0, 20.0, 30.0])
        assert (found["tokens"].axis, found["tokens"].xs.tolist()) == ("", [1.0, 2.0, 3.0])
        assert (found["alone"].axis, found["alone"].xs.tolist()) == ("", [1.0])
        assert found["loss"].steps.tolist() == [1, 2, 3]
        assert compact(path)
