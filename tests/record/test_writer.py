"""Metrics writer: no point is lost once `log` has returned, and none is read unlogged."""

from __future__ import annotations

import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError, RecordError
from assay.formats import metrics_file
from assay.record import writer as writer_module
from assay.record.writer import MetricsWriter
from assay.store.series import read_contents, read_series
from assay.store.summaries import summaries

Points = dict[str, list[tuple[int, float]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


def curves(path: Path) -> Points:
    """The points on the curve by metric."""
    return {
        name: list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        for name, series in read_series(path).items()
    }


def write(path: Path, rows: list[tuple[Mapping[str, float], int]], *, attempt: int = 1) -> None:
    writer = MetricsWriter(path, attempt)
    for values, step in rows:
        writer.log(values, step)
    writer.close()


def test_what_was_logged_is_read_back_in_order(path: Path) -> None:
    write(path, [({"loss": 1.5, "acc": 0}, 0), ({"loss": 0.5, "acc": 1}, 1), ({"lr": 0.1}, 1)])

    assert curves(path) == {
        "loss": [(0, 1.5), (1, 0.5)],
        "acc": [(0, 0.0), (1, 1.0)],
        "lr": [(1, 0.1)],
    }


def test_a_point_is_in_the_file_when_log_returns_and_takes_what_the_format_says(
    path: Path,
) -> None:
    writer = MetricsWriter(path)

    for step in range(5):
        writer.log({"loss": 0.5}, step)
        assert (path / "1.rows").stat().st_size == 40 * (step + 1)
    writer.log({f"metric/{i}": 0.5 for i in range(20)}, 5)
    assert (path / "20.rows").stat().st_size == 192
    writer.close()


@pytest.mark.parametrize(
    "kind", ["bool", "int", "numpy", "array of one", "tensor", "tensor with gradient"]
)
def test_whatever_is_a_number_may_be_logged(path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch") if "tensor" in kind else None
    value = {
        "bool": lambda: True,
        "int": lambda: 1,
        "numpy": lambda: np.float32(1),
        "array of one": lambda: np.array([1.0]),
        "tensor": lambda: torch.tensor([1.0]) if torch else None,
        "tensor with gradient": lambda: torch.tensor(1.0, requires_grad=True) if torch else None,
    }[kind]()

    write(path, [({"a": value}, step) for step in (1, np.int64(2), 3)])  # type: ignore[dict-item, misc]

    assert curves(path) == {"a": [(1, 1.0), (2, 1.0), (3, 1.0)]}


@pytest.mark.parametrize(
    "value", ["1.5", None, [1.0, 2.0], np.zeros(2), 1 + 2j, b"1", 10**400, object()]
)
def test_what_is_no_number_is_refused_by_the_name_of_its_metric(path: Path, value: object) -> None:
    writer = MetricsWriter(path)
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


def test_names_are_data(path: Path) -> None:
    names = ["a/b", "a\nb", "x" * 10_000, "‮evil", "\ud800", "../../x", "'; DROP TABLE"]
    names += ["\0", "e\u0301", "é", "\x85", "\u2028", '"set":1']

    write(path, [({name: 1.0, "other": 2.0}, 1) for name in names])

    assert {name: curves(path)[name] for name in names} == {name: [(1, 1.0)] for name in names}
    assert sorted(each.name for each in path.iterdir()) == ["2.rows", "names.jsonl"]


def test_infinities_and_nan_are_kept(path: Path) -> None:
    write(path, [({"a": math.inf}, 1), ({"a": -math.inf}, 2), ({"a": math.nan}, 3)])

    values = read_series(path)["a"].values.tolist()

    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


def test_steps_of_64_bits_are_kept(path: Path) -> None:
    steps = [-1, -(1 << 63), 1 << 32, (1 << 63) - 1, 0, (1 << 32) - 1]

    write(path, [({"a": float(i)}, step) for i, step in enumerate(steps)])

    assert [step for step, _ in curves(path)["a"]] == steps


def test_ten_thousand_names_logged_one_at_a_time_are_one_file_and_one_descriptor(
    path: Path,
) -> None:
    writer = MetricsWriter(path)
    before = len(os.listdir("/proc/self/fd"))
    names = [f"layer/{i}" for i in range(10_000)]
    for step in range(2):
        for i, name in enumerate(names):
            writer.log({name: float(i)}, step)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    writer.close()

    assert sorted(each.name for each in path.iterdir()) == ["1.rows", "names.jsonl"]
    found = curves(path)
    assert list(found) == names
    assert found["layer/77"] == [(0, 77.0), (1, 77.0)]


def test_sets_of_every_size_are_few_files(path: Path) -> None:
    names = [f"m{i}" for i in range(500)]

    write(path, [(dict.fromkeys(names[:count], 1.5), count) for count in range(1, 501)])

    assert len(list(path.iterdir())) < 70
    assert curves(path)["m99"] == [(step, 1.5) for step in range(100, 501)]


def test_a_row_of_many_thousand_metrics_is_kept_whole(path: Path) -> None:
    values = {f"layer/{i:06}": float(i) for i in range(2 * metrics_file.MAX_VALUES + 7)}

    write(path, [(values, 1), (values, 2)])

    assert {name: points[1] for name, points in curves(path).items()} == {
        n: (2, v) for n, v in values.items()
    }


def test_an_empty_log_call_writes_nothing(path: Path) -> None:
    write(path, [({}, 1)])

    assert curves(path) == {}


def test_points_are_in_the_order_of_logging_and_have_the_time_of_the_clock_however_it_is_set(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [0, 1, -5, 3, 3, -100]
    now = time.time_ns()
    times = [now + hour * 3600 * 10**9 for hour in hours]
    for attempt in (1, 2):
        writer = MetricsWriter(path, attempt)
        for i, at_ns in enumerate(times):
            monkeypatch.setattr(writer_module, "time_ns", lambda at_ns=at_ns: at_ns)
            writer.log({"a": float(i), **({"b": 0.0} if i % 2 else {})}, i + 10 * attempt)
        writer.close()

    series = read_series(path)["a"]
    assert series.values.tolist() == 2 * [float(i) for i in range(6)]
    assert series.times_ns.tolist() == 2 * times
    assert summaries(path)["a"].last == 5.0


# --------------------------------------------------------------------------------- threads


def test_four_threads_lose_nothing(path: Path) -> None:
    writer = MetricsWriter(path)

    def work(name: str) -> None:
        for step in range(5_000):
            writer.log({name: float(step), "padding": 0.0}, step)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    found = read_series(path)
    for i in range(4):
        assert found[f"t{i}"].steps.tolist() == list(range(5_000))
        assert found[f"t{i}"].values.tolist() == [float(step) for step in range(5_000)]
    assert len(found["padding"]) == 20_000


# ------------------------------------------------------------------- death and resurrection

LOGGER_PROGRAM = """
import sys
from pathlib import Path
from assay.record.writer import MetricsWriter
writer = MetricsWriter(Path(sys.argv[1]))
for step in range(1, 1_000_000):
    writer.log({"loss": step / 2, "acc": 1.0}, step)
    if step == 10_000:
        print("ready", flush=True)
        if sys.argv[2] == "wait":
            sys.stdin.read()
"""


def logger_process(path: Path, *, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOGGER_PROGRAM, str(path), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_after_kill_9_every_point_that_log_returned_from_is_there(path: Path) -> None:
    with logger_process(path, then="wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        process.send_signal(signal.SIGKILL)
        process.wait()

    assert curves(path)["loss"] == [(step, step / 2) for step in range(1, 10_001)]
    assert summaries(path)["loss"].last == 5000.0


@pytest.mark.slow
def test_a_run_killed_in_full_flight_has_every_step_up_to_its_last_and_can_be_resumed(
    path: Path,
) -> None:
    chance = random.Random(7)
    for _ in range(5):
        shutil.rmtree(path, ignore_errors=True)
        with logger_process(path, then="go on") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()

        reached = len(curves(path)["loss"])
        assert reached >= 10_000
        assert curves(path)["loss"] == [(step, step / 2) for step in range(1, reached + 1)]

        write(path, [({"loss": 0.0, "acc": 0.0}, reached + 1)], attempt=2)
        assert len(curves(path)["loss"]) == reached + 1
        assert not read_contents(path).damages


@pytest.mark.parametrize("tail", ["cut off", "garbage", "zeros"])
def test_a_tail_torn_at_any_byte_costs_the_torn_row_and_nothing_that_follows(
    path: Path, tail: str
) -> None:
    write(path, [({"a": step + 0.5, "b": -1.0}, step) for step in range(1, 6)])
    rows = path / "2.rows"
    whole = rows.read_bytes()
    for at in range(len(whole) - 48, len(whole)):
        torn = {"cut off": b"", "garbage": os.urandom(len(whole) - at), "zeros": bytes(999)}[tail]
        rows.write_bytes(whole[:at] + torn)
        assert [step for step, _ in curves(path)["a"]] == [1, 2, 3, 4]

        write(path, [({"a": 9.0, "b": 9.0}, 9), ({"new": 1.0}, 9)], attempt=2)

        assert [step for step, _ in curves(path)["a"]] == [1, 2, 3, 4, 9]
        assert curves(path)["new"][-1] == (9, 1.0)


def test_a_resumed_run_goes_back_and_the_old_branch_is_kept(path: Path) -> None:
    write(path, [({"a": float(step)}, step) for step in range(1, 11)])
    writer = MetricsWriter(path, 2)

    writer.rewind(6)
    writer.log({"a": 70.0}, 7)
    writer.close()

    assert curves(path)["a"] == [*((step, float(step)) for step in range(1, 7)), (7, 70.0)]
    old = read_series(path, branches=True)["a"]
    assert [
        int(step) for step, branch in zip(old.steps, old.branches, strict=True) if branch == 2
    ] == [7, 8, 9, 10]


def test_what_is_logged_again_at_the_step_that_a_run_goes_back_to_is_there_once(
    path: Path,
) -> None:
    """A step was saved and evaluated, then the run killed: the resumed run evaluates it again."""
    write(path, [({"a": 1.0}, 3), ({"valid/a": 2.0}, 3), ({"a": 1.0}, 4)])
    writer = MetricsWriter(path, 2)

    writer.rewind(3)
    writer.log({"valid/a": 2.0}, 3)
    writer.log({"a": 1.0}, 4)
    writer.close()

    assert curves(path) == {"a": [(3, 1.0), (4, 1.0)], "valid/a": [(3, 2.0)]}


def test_two_writers_of_one_attempt_lose_nothing_and_mix_no_names(path: Path) -> None:
    """On a disk that knows no locks: the second one begins before the first has ended."""
    first = MetricsWriter(path)
    first.log({"a": 1.0}, 1)
    unlocked = path / "names.jsonl"
    shutil.copy(unlocked, path / "copy")
    os.replace(path / "copy", unlocked)  # another file, which the lock of the first is not on
    second = MetricsWriter(path)
    second.log({"b": 2.0}, 2)
    first.log({"a": 3.0}, 3)
    first.close()
    second.close()

    assert curves(path) == {"a": [(1, 1.0), (3, 3.0)], "b": [(2, 2.0)]}


def test_a_second_writer_is_refused_while_the_first_one_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "HOLD_S", 0.0)
    writer = MetricsWriter(path)

    with pytest.raises(RecordError, match="Another process still writes the metrics"):
        MetricsWriter(path, 2)

    writer.close()
    MetricsWriter(path, 2).close()


def test_a_run_whose_metrics_an_earlier_version_wrote_is_refused_by_the_name_of_its_file(
    path: Path,
) -> None:
    path.with_name("metrics.bin").write_bytes(b"\x93ASSAYM\x01")

    for attempt in (lambda: MetricsWriter(path, 2), lambda: read_series(path)):
        shutil.rmtree(path, ignore_errors=True)
        with pytest.raises(RecordError, match=r"metrics\.bin, as an earlier version"):
            attempt()


def test_metrics_of_a_newer_format_are_refused(path: Path) -> None:
    write(path, [({"a": 1.0}, 1)])
    (path / "names.jsonl").write_bytes(metrics_file.line_of({"format": 3}))

    with pytest.raises(RecordError, match="format 3"):
        read_series(path)
    with pytest.raises(RecordError, match="format 3"):
        MetricsWriter(path, 2)


# ---------------------------------------------------------------------------------- no room


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file of this process may become longer than 300,010 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_010, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_training_goes_on_and_the_gap_is_told(path: Path, little_room: None) -> None:
    problems: list[str] = []
    writer = MetricsWriter(path, on_problem=problems.append)

    for step in range(10_000):
        writer.log({"a": 0.5}, step)
    assert len(problems) == 1
    assert "cannot be written" in problems[0]
    kept = len(curves(path)["a"])
    assert kept == 7_500
    assert writer.lost_points == 10_000 - kept

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    writer.log({"a": 0.5}, 10_000)
    writer.close()

    assert problems[1:] == [
        f"Metrics are written again. {10_000 - kept} points were lost, of steps {kept} to 9999."
    ]
    assert [step for step, _ in curves(path)["a"]] == [*range(kept), 10_000]
    assert not read_contents(path).damages


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a disk takes root")
def test_a_disk_that_is_really_full_ends_no_training_and_names_come_with_the_room(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        problems: list[str] = []
        writer = MetricsWriter(disk / "metrics", on_problem=problems.append)
        for step in range(160):
            writer.log({"a": 0.5}, step)
        with (disk / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                pass
        for step in range(160, 5_000):
            writer.log({"a": 0.5}, step)
        writer.log({"new": 0.5}, 5_000)
        (disk / "filler").unlink()
        writer.log({"new": 0.5, "a": 1.0}, 5_001)
        writer.log({"new": 0.5}, 5_002)
        writer.close()

        steps = [step for step, _ in curves(disk / "metrics")["a"]]
        assert steps[:160] == list(range(160))
        assert len(steps) + writer.lost_points - 1 == 5_001
        assert curves(disk / "metrics")["new"] == [(5_001, 0.5), (5_002, 0.5)]
        assert [
            ("cannot be written" in problem, "points were lost" in problem) for problem in problems
        ] == [(True, False), (False, True)]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --------------------------------------------------------------------- what others do to it


@pytest.mark.parametrize("size", [0, 8, 5_000, 200_000])
def test_a_file_that_is_cut_off_costs_points_of_before_and_is_told(path: Path, size: int) -> None:
    problems: list[str] = []
    lost: list[str] = []
    writer = MetricsWriter(path, on_problem=problems.append, on_lost=lost.append)
    for step in range(9_000):
        writer.log({"a": 0.5}, step)
    os.truncate(path / "1.rows", size)
    for step in range(9_000, 9_010):
        writer.log({"a": 0.5}, step)
    writer.check()
    writer.check()
    writer.close()

    said = "metrics was cut off by somebody else while the run wrote it"
    assert problems == [f"{said}: {9_000 - size // 40} calls of `log` are lost."]
    assert lost == ["points of metrics, which was cut off"]
    assert [step for step, _ in curves(path)["a"]] == [*range(size // 40), *range(9_000, 9_010)]


def test_names_that_are_cut_off_are_written_again(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.log({"a": 0.5}, 1)
    writer.rewind(1)
    os.truncate(path / "names.jsonl", 0)
    writer.check()
    writer.log({"b": 0.5}, 2)
    writer.close()

    assert curves(path) == {"a": [(1, 0.5)], "b": [(2, 0.5)]}


@pytest.mark.parametrize("harm", ["deleted", "moved", "replaced", "linked", "folder deleted"])
def test_a_file_that_is_deleted_or_replaced_is_made_again_with_all_its_points(
    path: Path, harm: str
) -> None:
    problems: list[str] = []
    writer = MetricsWriter(path, on_problem=problems.append)
    file, other = path / "1.rows", path.with_name("other")
    for step in range(2_000):
        writer.log({"a": 0.5}, step)
        if step == 1_500:
            match harm:
                case "deleted":
                    file.unlink()
                case "moved":
                    file.rename(other)
                case "replaced":
                    other.write_bytes(b"of somebody else")
                    other.replace(file)
                case "linked":
                    file.rename(other)
                    file.symlink_to(other)
                case "folder deleted":
                    shutil.rmtree(path)
                    writer.log({"new": 0.5, "two": 1.0}, step)
        if step == 1_600:
            writer.check()
            writer.check()
    writer.close()

    assert curves(path)["a"] == [(step, 0.5) for step in range(2_000)]
    assert not file.is_symlink()
    files = "metrics/1.rows was"
    if harm == "folder deleted":
        files = "metrics/names.jsonl, metrics/1.rows, metrics/2.rows were"
        assert curves(path)["new"] == [(1_500, 0.5)]
    assert problems == [
        f"{files} deleted or replaced by somebody else while the run wrote it: no point is lost."
    ]


def test_more_metrics_than_a_record_can_hold_are_refused_by_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_file, "MAX_COLUMNS", 3)
    writer = MetricsWriter(path)
    writer.log({"a": 0.5, "b": 0.5}, 1)
    with pytest.raises(RecordError, match="more than 3 different metrics"):
        writer.log({"c": 0.5, "d": 0.5}, 2)
    writer.log({"c": 0.5}, 3)
    writer.close()

    assert {name: len(points) for name, points in curves(path).items()} == {"a": 1, "b": 1, "c": 1}


# ----------------------------------------------------------------------- who may not write


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


def test_after_the_end_nothing_can_be_logged(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.log({"a": 1.0}, 1)
    writer.close()
    writer.close()

    with pytest.raises(RecordError, match="has ended"):
        writer.log({"a": 2.0}, 2)
    with pytest.raises(RecordError, match="has ended"):
        writer.rewind(0)

    assert curves(path) == {"a": [(1, 1.0)]}


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((RecordError, InputError), match="The metrics cannot be written"):
        MetricsWriter(tmp_path / "file" / "metrics")


# ------------------------------------------------------------------------------ properties

NAMES = st.sampled_from(["a", "b", "c/d", "é", "x" * 300])
VALUES = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
STEPS = (
    st.integers(-5, 30) | st.integers(0, 2) | st.sampled_from([-(1 << 63), 1 << 32, (1 << 63) - 1])
)
LOG = st.tuples(st.just("log"), st.dictionaries(NAMES, VALUES, max_size=4), STEPS)
REWIND = st.tuples(st.just("rewind"), STEPS)
REOPEN = st.tuples(st.just("reopen"))


@pytest.mark.slow
@given(calls=st.lists(LOG | LOG | LOG | REWIND | REOPEN, max_size=40))
def test_any_sequence_of_calls_is_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[object, ...]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "metrics"
    attempt = 1
    writer = MetricsWriter(path, attempt)
    rows: list[tuple[dict[str, float], int]] = []
    left: Points = {}
    back: dict[tuple[str, ...], int] = {}  # what the next row of these names repeats

    def leave(old: Callable[[tuple[str, ...], int], bool]) -> None:
        for values, step in rows:
            if old(tuple(values), step):
                for name, value in values.items():
                    left.setdefault(name, []).append((step, value))
        rows[:] = [(values, step) for values, step in rows if not old(tuple(values), step)]

    for call in calls:
        match call:
            case ("log", dict(values), int(step)):
                writer.log(values, step)
                names = tuple(values)
                if back.get(names) == step:
                    del back[names]
                    leave(lambda each, at, names=names, step=step: (each, at) == (names, step))  # type: ignore[misc]
                rows.append(({name: float(value) for name, value in values.items()}, step))
            case ("rewind", int(step)):
                writer.rewind(step)
                leave(lambda each, at, step=step: at > step)  # type: ignore[misc]
                back = dict.fromkeys((tuple(values) for values, _ in rows), step)
            case _:
                writer.close()
                attempt += 1
                writer = MetricsWriter(path, attempt)
    writer.close()
    curve: Points = {}
    for values, step in rows:
        for name, value in values.items():
            curve.setdefault(name, []).append((step, value))
    left = {name: sorted(points) for name, points in left.items() if points}

    assert curves(path) == curve
    abandoned = {
        name: sorted(
            (int(step), float(value))
            for step, value, branch in zip(
                series.steps, series.values, series.branches, strict=True
            )
            if branch
        )
        for name, series in read_series(path, branches=True).items()
    }
    assert {name: points for name, points in abandoned.items() if points} == left
    assert {name: (s.count, s.last) for name, s in summaries(path).items()} == {
        name: (len(points), points[-1][1]) for name, points in curve.items()
    }


def test_a_metric_can_be_the_x_axis_of_those_beside_it_also_after_a_resume(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.log({"tokens": 10.0, "loss": 3.0}, 1)
    writer.log({"alone": 1.0}, 1)
    writer.axis("tokens")
    writer.log({"tokens": 20.0, "loss": 2.0}, 2)
    writer.close()
    again = MetricsWriter(path, 2)
    again.log({"loss": 1.0, "tokens": 30.0}, 3)
    again.close()

    found = read_series(path)
    assert (found["loss"].axis, found["loss"].xs.tolist()) == ("tokens", [1.0, 20.0, 30.0])
    assert (found["tokens"].axis, found["tokens"].xs.tolist()) == ("", [1.0, 2.0, 3.0])
    assert (found["alone"].axis, found["alone"].xs.tolist()) == ("", [1.0])
    assert found["loss"].steps.tolist() == [1, 2, 3]
