"""What many runs, many points and many files cost the record. CPU time, unless it says wall.

    eight      Eight processes log twenty metrics at once, each into a run of its own: from the
               first call to the end of the last one, by the clock, over all points. 5 us a point
               are 200,000 points a second together.
    end        The end of a run of 10,000,000 log calls of one metric: its CPU time, and the memory
               that it takes over what the running process had.
    snapshot   Begin and end of a run in a project of 5,000 files that were kept before; git's own
               time counts.
    points     A finished curve of 1,000,000 points: read, and reduced to 2,000 ranges; `open` is
               one that is still growing.
    filter     Of 10,000 runs those with a metric below a value and a parameter above another: what
               the question takes once the runs are there, and with finding out what has changed
               (`whole`). No run is opened.
    reindex    The index of 10,000 runs, made anew.

Told are medians; of `eight`, `end` and `reindex`, which take long, one time.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from figures import Figure, machine, options, show
from startup import project_with

import assay
from assay.query.catalog import Asked, open_catalog
from assay.query.expression import parse
from assay.record.attempt import AttemptSpec
from assay.record.compaction import compact
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


def log_many(folder: str, calls: int, ready: Any, done: Any) -> None:
    recorder = start_run(open_project(Path(folder)), AttemptSpec(keep_code=False))
    values = {f"train/metric_{i}": 1.0 / (i + 1) for i in range(METRICS)}
    ready.wait()
    for step in range(calls):
        recorder.log(values, step)
    done.wait()  # what comes after the last call is not logging
    recorder.finish()


def eight(folder: Path, calls: int) -> Iterator[Figure]:
    folder.mkdir()
    open_project(folder, create=True)
    context = get_context("spawn")
    ready, done = context.Barrier(PROCESSES + 1), context.Barrier(PROCESSES + 1)
    several = [
        context.Process(target=log_many, args=(str(folder), calls, ready, done), daemon=True)
        for _ in range(PROCESSES)
    ]
    for each in several:
        each.start()
    ready.wait()
    begun = time.perf_counter()
    done.wait()
    took = time.perf_counter() - begun
    for each in several:
        each.join()
    us = took / (PROCESSES * METRICS * calls) * 1e6
    yield Figure(name="records.eight.wall_us_a_point", value=us, unit="us", at_most=5.0)
    yield Figure(name="records.eight.points_a_second", value=round(1e6 / us))


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
    yield Figure(name="records.end.cpu_s", value=took_s, unit="s", at_most=2)
    yield Figure(name="records.end.memory_mb", value=more_kb / 1024, unit="MB", at_most=16)


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
    file = folder / "metrics.bin"
    writer = MetricsWriter(file)
    for step in range(count):
        writer.log({"train/loss": 1.0 / (step + 1)}, step)
    writer.close()
    yield Figure(
        name="records.points.read_open_ms",
        value=middle(lambda: read_series(file), 3) * 1e3,
        unit="ms",
    )
    compact(file)
    read_ms = middle(lambda: read_series(file), rounds) * 1e3
    yield Figure(name="records.points.read_ms", value=read_ms, unit="ms", at_most=30)
    curve = read_series(file)["train/loss"]
    reduce_ms = middle(lambda: curve.reduced(2000), 50) * 1e3
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
            *eight(folder / "eight", calls),
            *end(folder / "end", 100 * calls),
            *snapshot(folder / "snapshot", files, rounds),
            *points(folder / "points", count, rounds),
            *many_runs(open_project(project_with(runs, folder / "runs")), rounds),
        ]
    show("records: many runs, points and files", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    main()
