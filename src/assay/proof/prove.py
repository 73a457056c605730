"""Golden runs: the first steps of a config, compared with committed digests or a recorded run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from assay.compose.checks import sound
from assay.compose.launch_settings import Launch
from assay.config import dump, from_plain, plain
from assay.config.loading import Config
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError
from assay.core.golden_file import GoldenFile, parse_line, read_golden, write_golden
from assay.core.verdict import Verdict
from assay.proof.changed_inputs import changed_inputs, is_only_environment
from assay.proof.first_difference import cause_of, first_in_records
from assay.proof.golden import first_golden_difference, golden_lines
from assay.proof.replay import keep_verdict
from assay.proof.training_process import TrainingTask, only_run, train_in_process
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.traces import Alignment, steps_of
from assay.store.known_projects import forget
from assay.store.layout import RUNS_DIR_VARIABLE, make_project

DEFAULT_STEPS = 20


def write_golden_run(
    config: Config, path: Path, launch: Launch, *, steps: int = DEFAULT_STEPS
) -> GoldenFile:
    """Train the first steps of a config and write their digests to a file.

    The config is trained in a temporary project. AssayError for a run that fails, InputError where
    the file cannot be written.
    """
    with _trained(config, launch, steps=steps, threads=None) as view:
        golden = _golden_of(view, steps)
    try:
        write_golden(path, golden)
    except OSError as error:
        raise InputError(f"It cannot be written: {error.strerror}", where=str(path)) from error
    return golden


def prove(
    config: Config,
    against: str,
    launch: Launch,
    *,
    steps: int = DEFAULT_STEPS,
    tell: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Train the first steps of a config, and compare them with a golden file or a recorded run.

    A file says how many `steps`. The number of threads is that of the file or run. A run gets the
    verdict. InputError for a file that is none, and when nothing can be compared.
    """
    if Path(against).is_file() or against.endswith(".json"):
        return _prove_file(config, Path(against), launch)
    return _prove_run(config, find_run(against), launch, steps, tell)


def _prove_file(config: Config, path: Path, launch: Launch) -> Verdict:
    golden, lines = read_golden(path)
    threads = golden.environment.get("threads", "")
    count = int(threads) if threads.isdecimal() else None
    with _trained(config, launch, steps=golden.steps, threads=count) as view:
        found = _golden_of(view, golden.steps)
        run_id = view.id
    if found.algorithm != golden.algorithm:
        raise InputError(
            f"Its fingerprints are {golden.algorithm}, those of this device {found.algorithm}.",
            where=str(path),
            fix="prove it on the kind of device that wrote the file (--device)",
        )
    first = first_golden_difference(lines, [parse_line(each) for each in found.digests])
    changed = _changed_since(golden, found)
    return _verdict(
        (str(path), run_id), Alignment(difference=first), golden.steps, len(lines), changed
    )


def _prove_run(
    config: Config, view: RunView, launch: Launch, steps: int, tell: Callable[[str], None]
) -> Verdict:
    threads = view.environment.get("torch", {}).get("threads")
    with _trained(config, launch, steps=steps, threads=threads) as again:
        found = first_in_records(view, again)
        changed = changed_inputs(view, again)
        runs = (view.id, again.id)
    if not found.compared:
        raise InputError(f"{view.id} has left nothing that compares.", where=str(view.path))
    verdict = _verdict(runs, found, found.last_step, found.compared, changed)
    keep_verdict(view, verdict, tell)
    return verdict


def _verdict(
    runs: tuple[str, str],
    found: Alignment,
    steps: int,
    compared: int,
    changed: Mapping[str, tuple[str, str]],
) -> Verdict:
    first = found.difference
    in_environment = is_only_environment(changed)
    return Verdict(
        question="prove",
        runs=runs,
        equal=first is None,
        first_step=0,
        last_step=steps,
        compared=compared,
        difference=first,
        cause=cause_of(found, in_environment=in_environment) if first is not None else None,
        changed_inputs={name: list(values) for name, values in changed.items()},
        at_ns=time.time_ns(),
    )


@contextmanager
def _trained(
    config: Config, launch: Launch, *, steps: int, threads: int | None
) -> Iterator[RunView]:
    """Train the first steps in a temporary project and OS process; the run is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="assay-prove-")).resolve()
    try:
        project = make_project(folder / "project")
        settings = config.settings.local_file
        if settings is not None and settings.exists():
            shutil.copyfile(settings, project.settings)
        path = project.root / "config.toml"
        path.write_text(_traced_config(sound(config)), encoding="utf-8")
        task = TrainingTask(
            config=str(path),
            user_dirs=[str(each.resolve()) for each in config.user_dirs if each.is_dir()],
            settings=str(project.root),
            threads=threads,
            launch={"device": launch.device, "quiet": True, "stop_at": steps},
        )
        variables = {**os.environ, RUNS_DIR_VARIABLE: str(project.runs_dir), "NO_COLOR": "1"}
        said = train_in_process(task, folder, cwd=Path.cwd(), variables=variables)
        view = only_run(project.runs_dir)
        if said is not None or view is None:
            raise AssayError(f"The run failed, and said:\n{said}")
        yield view
    finally:
        with suppress(OSError):
            forget([folder / "project"])
        shutil.rmtree(folder, ignore_errors=True)


def _traced_config(config: Config) -> str:
    """Return the config as TOML, with every step traced."""
    values = plain(config.root)
    values["trace"] = {"enabled": True, "every": "1 step"}
    return dump(from_plain(values, Origin(source="<prove>")))  # type: ignore[arg-type]


def _golden_of(view: RunView, steps: int) -> GoldenFile:
    """Return the golden digests of a run that traced every step."""
    lines = golden_lines(view, steps)
    environment = view.environment
    torch = environment.get("torch", {})
    kept = {
        "python": environment.get("python"),
        "machine": environment.get("machine"),
        **{name: torch.get(name) for name in ("version", "cuda", "cpu", "threads")},
    }
    algorithm = next((each.algorithm for each in steps_of(view)), "")
    return GoldenFile(
        steps=max((each.step for each in lines), default=0),
        algorithm=algorithm,
        config_hash=view.file.newest.config_hash,
        environment={name: str(value) for name, value in kept.items() if value is not None},
        digests=tuple(" ".join(map(str, each)) for each in lines),
    )


def _changed_since(golden: GoldenFile, found: GoldenFile) -> dict[str, tuple[str, str]]:
    """Return what differs of the environment and the config since a golden file was written."""
    changed = {
        f"environment {name}": (was, found.environment.get(name, "not set"))
        for name, was in golden.environment.items()
        if found.environment.get(name, "not set") != was
    }
    if golden.config_hash != found.config_hash:
        changed["config"] = (golden.config_hash[:8], found.config_hash[:8])
    return changed
