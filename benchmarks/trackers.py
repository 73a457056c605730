"""What a log call and a run cost with other trackers, beside assay's, in one process.

Each records the same numbers offline into a folder of its own, in the way its documentation shows
first, with what watches the machine and the console switched off:

    one        a call with one scalar at each step
    twenty     a call with twenty (TensorBoard and others that take one name at a time: twenty
               calls)
    run        begin, one call, end, in a process that has had some

They take turns, round after round; a slow one logs fewer steps. `us` is what a step waits for it,
by the clock; `cpu_us` is the CPU time of the thread that logs. Not counted is what goes on beside
that thread: wandb writes in a process of its own, trackio and TensorBoard in a thread. `ms` is by
the clock, too. Told are medians over the rounds; `ratio` is the median of the ratio to assay in the
same round: of `cpu_us`, as a busy machine spoils the clock, and of `ms`. `bytes_a_point` is what
the folder grew by, all told.

Made for the environment of `peers.py`. A tracker that is not
installed is left out.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from figures import Figure, machine, options, show

import assay

Log = Callable[[Mapping[str, float], int], object]
Begun = tuple[Log, Callable[[], object]]


def with_assay(folder: Path) -> Begun:
    run = assay.start(project=folder, keep_output=False)
    return run.log, run.finish


def with_tensorboard(folder: Path) -> Begun:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp(dir=folder))

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def with_trackio(folder: Path) -> Begun:
    import trackio

    trackio.init(project="benchmark", auto_log_gpu=False, auto_log_cpu=False)
    return lambda values, step: trackio.log(dict(values), step=step), trackio.finish


def with_wandb(folder: Path) -> Begun:
    import wandb

    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    run = wandb.init(project="benchmark", dir=str(folder), mode="offline", settings=quiet)
    return lambda values, step: run.log(dict(values), step=step), run.finish


def with_aim(folder: Path) -> Begun:
    from aim import Run

    run = Run(repo=str(folder), system_tracking_interval=None, capture_terminal_logs=False)
    return lambda values, step: run.track(dict(values), step=step), run.close


def with_mlflow(folder: Path) -> Begun:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.start_run()
    return lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run


TRACKERS: dict[str, tuple[Callable[[Path], Begun], int]] = {
    "assay": (with_assay, 20_000),
    "trackio": (with_trackio, 2_000),
    "tensorboard": (with_tensorboard, 2_000),
    "wandb": (with_wandb, 1_000),
    "aim": (with_aim, 500),
    "mlflow": (with_mlflow, 100),
}
"""How each begins a run, and how many steps it logs in a round."""

CASES = {"one": 1, "twenty": 20}


def offline(home: Path) -> None:
    """Everything that anybody writes goes below `home`, and nothing over the network."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        os.environ[name] = str(home)
    os.environ |= {
        "TRACKIO_DIR": str(home / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name in [each for each in os.environ if each == "ASSAY" or each.startswith("ASSAY_")]:
        del os.environ[name]
    os.chdir(home)


def measured(home: Path, rounds: int, *, share: float) -> Iterator[Figure]:
    here = {
        name: each
        for name, each in TRACKERS.items()
        if name == "assay" or importlib.util.find_spec(name)
    }
    clock: dict[tuple[str, str], list[float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}
    points, sizes = dict.fromkeys(here, 0), dict.fromkeys(here, 0)
    for i in range(-1, rounds):
        order = list(here.items())
        for name, (begin, most) in order if i % 2 else order[::-1]:
            folder = home / name
            folder.mkdir(exist_ok=True)
            begun = perf_counter()
            log, end = begin(folder)
            log({"train/loss": 1.0}, 0)
            end()
            if i >= 0:
                clock.setdefault(("run", name), []).append((perf_counter() - begun) * 1e3)
            before = size_of(folder)
            for case, count in CASES.items():
                steps = max(10, int(most * share) // (1 if count == 1 else 5))
                values = {f"train/metric_{k}": 1.0 / (k + 1) for k in range(count)}
                log, end = begin(folder)
                log(values, 0)
                begun, begun_cpu = perf_counter(), thread_time()
                for step in range(1, steps + 1):
                    log(values, step)
                took, took_cpu = perf_counter() - begun, thread_time() - begun_cpu
                end()
                points[name] += (steps + 1) * count
                if i >= 0:
                    clock.setdefault((case, name), []).append(took / steps * 1e6)
                    cpu.setdefault((case, name), []).append(took_cpu / steps * 1e6)
            sizes[name] += size_of(folder) - before
    for case in ("run", *CASES):
        for name in here:
            took = clock[case, name]
            unit = "ms" if case == "run" else "us"
            yield Figure(name=f"trackers.{case}.{name}.{unit}", value=median(took), unit=unit)
            if case != "run":
                yield Figure(
                    name=f"trackers.{case}.{name}.cpu_us", value=median(cpu[case, name]), unit="us"
                )
            compared = clock if case == "run" else cpu
            pairs = zip(compared[case, name], compared[case, "assay"], strict=True)
            yield Figure(
                name=f"trackers.{case}.{name}.ratio",
                value=median(theirs / ours for theirs, ours in pairs),
            )
    for name in here:
        if not sizes[name]:
            raise SystemExit(f"error: {name} kept nothing in its folder: nothing was compared")
        yield Figure(
            name=f"trackers.{name}.bytes_a_point", value=sizes[name] / points[name], unit="B"
        )


def size_of(folder: Path) -> int:
    """Bytes on the disk: a file may be longer than what is in it."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def silence() -> Iterator[None]:
    for name in ("mlflow", "alembic", "aim", "wandb"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    asked = options("What a log call and a run cost with other trackers.")
    where: dict[str, Any] = machine()
    for name in TRACKERS.keys() - {"assay"}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            where[name] = importlib.metadata.version(name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        offline(Path(folder))
        rounds, share = (1, 0.02) if asked.quick else (7, 1.0)
        with silence():
            figures = list(measured(Path(folder), rounds, share=share))
        os.chdir("/")
    show("trackers: one log call, one run", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
