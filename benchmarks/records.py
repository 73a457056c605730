"""What many runs, many points and many files cost the record. CPU time, unless it says wall.

    eight      Eight processes log twenty metrics at once, each into a run of its own: from the
               first call to the end of the last one, by the clock, over all points. 5 us a point
               are 200,000 points a second together. `to_write`: in CPU time and in turns, their
               throughput as a ratio to that of eight processes that do `write` for each call, as
               who logs by hand must for the row to outlive a kill: the same bytes, made of the
               same values (`struct`). `to_ready_write`: the same bytes, made beforehand. `one`:
               of a single metric.
    end        The end of a run of 10,000,000 log calls of one metric: its CPU time, and the memory
               that the process has then over what it had at first.
    snapshot   Begin and end of a run in a project of 5,000 files that were kept before; git's own
               time counts.
    points     A curve of 1,000,000 points: read, and reduced to 2,000 ranges.
    filter     Of 10,000 runs those with a metric below a value and a parameter above another: what
               the question takes once the runs are there, and with finding out what has changed
               (`whole`). No run is opened.
    reindex    The index of 10,000 runs, made anew.

Told are medians; of `end` and `reindex`, which take long, one time.
"""

from __future__ import annotations

import os
import resource
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import time_ns
from typing import Any

from figures import Figure, machine, options, show
from startup import project_with

import assay
from assay.formats.metrics_file import row_bytes, row_values
from assay.query.catalog import Asked, open_catalog
from assay.query.expression import parse
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.writer import MetricsWriter
from assay.store.index import Index, Moment, reindex
from assay.store.layout import Project, open_project
from assay.store.series import read_series

PROCESSES, METRICS = 8, 20
ASKED = "train/loss < 0.5 and optimizer.lr > 0.05"


def cpu_s() -> float:
    """CPU time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def middle(work: Callable[[], object], rounds: int) -> float:
    """The CPU time of one round, without the first."""
    took = []
    for _ in range(rounds + 1):
        begun = cpu_s()
        work()
        took.append(cpu_s() - begun)
    return median(took[1:])


def row_of(metrics: int) -> dict[str, float]:
    return {f"train/metric_{i}": 1.0 / (i + 1) for i in range(metrics)}


Act = tuple[Callable[[int], object], Callable[[], object]]
"""What is done at each step, and at the end."""


def log_many(folder: str, metrics: int) -> Act:
    recorder = start_run(open_project(Path(folder)), AttemptSpec(keep_code=False))
    values = row_of(metrics)
    return (lambda step: recorder.log(values, step)), recorder.finish


def write_many(folder: str, metrics: int) -> Act:
    file, values = new_file(folder), row_of(metrics)
    pack = struct.Struct(f"<IIQqq{metrics}d").pack

    def write(step: int) -> None:
        os.write(file, pack(0, 0, step, step, time_ns(), *values.values()))

    return write, lambda: os.close(file)


def write_ready(folder: str, metrics: int) -> Act:
    file, row = new_file(folder), bytes(row_bytes(row_values(metrics)))
    return (lambda step: os.write(file, row)), lambda: os.close(file)


def new_file(folder: str) -> int:
    return os.open(f"{folder}/{os.getpid()}.bin", os.O_CREAT | os.O_WRONLY | os.O_APPEND)


def repeat(
    make: Callable[[str, int], Act], folder: str, metrics: int, calls: int, ready: Any, spent: Any
) -> None:
    """Do one thing many times between two waits, and add up the CPU time of all processes."""
    act, end = make(folder, metrics)
    ready.wait()
    begun = cpu_s()
    for step in range(calls):
        act(step)
    with spent.get_lock():
        spent.value += cpu_s() - begun
    ready.wait()  # what comes after the last call is not logging
    end()


def by_eight(
    make: Callable[[str, int], Act], folder: Path, metrics: int, calls: int
) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds of all, for eight processes at once."""
    context = get_context("spawn")
    ready, spent = context.Barrier(PROCESSES + 1), context.Value("d", 0.0)
    several = [
        context.Process(
            target=repeat, args=(make, str(folder), metrics, calls, ready, spent), daemon=True
        )
        for _ in range(PROCESSES)
    ]
    for each in several:
        each.start()
    ready.wait()
    begun = time.perf_counter()
    ready.wait()
    took = time.perf_counter() - begun
    for each in several:
        each.join()
    return took, spent.value


def eight(folder: Path, calls: int, rounds: int) -> Iterator[Figure]:
    folder.mkdir()
    open_project(folder, create=True)
    for name, metrics in (("eight", METRICS), ("eight.one", 1)):
        makes = (log_many, write_many, write_ready)
        turns = [[by_eight(make, folder, metrics, calls) for make in makes] for _ in range(rounds)]
        us = median(log[0] for log, *_ in turns) / (PROCESSES * metrics * calls) * 1e6
        if metrics == METRICS:
            yield Figure(name=f"records.{name}.wall_us_a_point", value=us, unit="us", at_most=5.0)
            yield Figure(name=f"records.{name}.points_a_second", value=round(1e6 / us))
        for at, to in enumerate(("to_write", "to_ready_write"), 1):
            ratios = [turn[at][1] / turn[0][1] for turn in turns]
            note = f"{min(ratios):.2f} to {max(ratios):.2f}"
            yield Figure(name=f"records.{name}.{to}", value=median(ratios), note=note)


def end_long(folder: str, calls: int, told: Any) -> None:
    recorder = start_run(open_project(Path(folder)), AttemptSpec(keep_code=False))
    for step in range(calls):
        recorder.log({"train/loss": 0.5}, step)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = cpu_s()
    recorder.finish()
    told.put((cpu_s() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb))


def end(folder: Path, calls: int) -> Iterator[Figure]:
    folder.mkdir()
    open_project(folder, create=True)
    fresh = get_context("spawn")
    told = fresh.Queue()
    process = fresh.Process(target=end_long, args=(str(folder), calls, told))
    process.start()
    took_s, more_kb = told.get()
    process.join()
    yield Figure(name="records.end.cpu_s", value=took_s, unit="s", at_most=0.005)
    yield Figure(name="records.end.memory_mb", value=more_kb / 1024, unit="MB", at_most=1)


def snapshot(folder: Path, files: int, rounds: int) -> Iterator[Figure]:
    folder.mkdir()
    for i in range(files):
        place = folder / f"package_{i % 50}"
        place.mkdir(exist_ok=True)
        (place / f"module_{i}.py").write_text(f"VALUE = {i}\n" * 20)
    time.sleep(2.1)  # a file that was written just now is read again, in case that it still changes

    def once() -> None:
        run = assay.start(project=folder, keep_output=False)
        run.log({"loss": 1.0}, 1)
        run.finish()

    once()
    wall = []

    def timed() -> None:
        begun = time.perf_counter()
        once()
        wall.append(time.perf_counter() - begun)

    yield Figure(
        name="records.snapshot.cpu_ms", value=middle(timed, rounds) * 1e3, unit="ms", at_most=150
    )
    yield Figure(name="records.snapshot.wall_ms", value=median(wall[1:]) * 1e3, unit="ms")


def points(folder: Path, count: int, rounds: int) -> Iterator[Figure]:
    folder.mkdir()
    file = folder / "metrics"
    writer = MetricsWriter(file)
    for step in range(count):
        writer.log({"train/loss": 1.0 / (step + 1)}, step)
    writer.close()
    read_ms = middle(lambda: read_series(file), rounds) * 1e3
    yield Figure(name="records.points.read_ms", value=read_ms, unit="ms", at_most=300)
    curve = read_series(file)["train/loss"]
    reduce_ms = middle(lambda: curve.reduce(2000), 50) * 1e3
    yield Figure(name="records.points.reduce_ms", value=reduce_ms, unit="ms", at_most=2)


def many_runs(project: Project, rounds: int) -> Iterator[Figure]:
    begun = cpu_s()
    reindex(project)
    yield Figure(name="records.reindex.cpu_s", value=cpu_s() - begun, unit="s", at_most=60)
    index = Index(project)
    condition = parse(ASKED, open_catalog(project).names())
    total = len(index.all_rows())

    def ask() -> None:
        assert len(index.select(condition, Moment(now_ns=time.time_ns(), states={}))) == total

    yield Figure(
        name="records.filter.cpu_ms", value=middle(ask, rounds) * 1e3, unit="ms", at_most=50
    )
    asked = Asked(where=ASKED)
    whole = middle(lambda: open_catalog(project).select(asked).rows(), rounds)
    yield Figure(name="records.filter.whole_cpu_ms", value=whole * 1e3, unit="ms")


def main() -> None:
    asked = options("What many runs, many points and many files cost the record.")
    calls, files, count, runs, rounds = (
        (2_000, 100, 20_000, 50, 2) if asked.quick else (100_000, 5_000, 10**6, 10**4, 9)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = str(folder)
        for variable in [
            each for each in os.environ if each == "ASSAY" or each.startswith("ASSAY_")
        ]:
            del os.environ[variable]
        figures = [
            *eight(folder / "eight", calls, 1 if asked.quick else min(rounds, 5)),
            *end(folder / "end", 100 * calls),
            *snapshot(folder / "snapshot", files, rounds),
            *points(folder / "points", count, rounds),
            *many_runs(open_project(project_with(runs, folder / "runs")), rounds),
        ]
    show("records: many runs, points and files", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    main()
