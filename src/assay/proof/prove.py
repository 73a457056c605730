"""Golden runs: the first steps of a config, compared with committed digests or a recorded run."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from assay.compose.checks import sound
from assay.compose.launch_settings import Launch
from assay.compose.other_process import ProcessTask
from assay.config import dump, from_plain, open_config, plain
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.core.diagnostics import Origin
from assay.core.errors import InputError
from assay.core.golden_file import GoldenFile, parse_line, read_golden, write_golden
from assay.core.project import RUNS_DIR_VARIABLE
from assay.core.verdict import Verdict
from assay.proof.cause import cause_of
from assay.proof.changed_inputs import changed_inputs
from assay.proof.first_difference import first_in_records
from assay.proof.golden import align_golden, golden_lines
from assay.proof.replay import keep_verdict
from assay.proof.scratch_project import find_only_run, train_in_scratch
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.traces import ABSENT, Alignment, steps_of
from assay.store.known_projects import forget
from assay.store.layout import make_project

DEFAULT_STEPS = 20


def write_golden_run(
    config: Config, path: Path, launch: Launch, *, steps: int = DEFAULT_STEPS
) -> GoldenFile:
    """Train the first steps of a config and write their digests to a file.

    The config is trained in a temporary project. InputError for a run that fails, and where the
    file cannot be written.
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
    verdict. InputError for a file that is none, for a run that fails or has another model, and when
    nothing can be compared.
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
    try:
        aligned = align_golden(lines, [parse_line(each) for each in found.digests])
    except InputError as error:
        fix = f"write it again if that is intended: assay prove CONFIG --write {path}"
        raise InputError(f"cannot compare: {error.what}", where=str(path), fix=fix) from error
    aligned.last_step = golden.steps
    return _verdict((str(path), run_id), aligned, _changed_since(golden, found))


def _prove_run(
    config: Config, view: RunView, launch: Launch, steps: int, tell: Callable[[str], None]
) -> Verdict:
    threads = view.environment.get("torch", {}).get("threads")
    with _trained(config, launch, steps=steps, threads=threads) as again:
        found = first_in_records(view, again)
        changed = {
            name: values
            for name, values in changed_inputs(view, again, found.difference).items()
            if not _is_elsewhere(name, values[1], view, config)
        }
        runs = (view.id, again.id)
        repeats = None
        if found.difference is not None and not changed:
            with _trained(config, launch, steps=steps, threads=threads) as twice:
                repeats = first_in_records(again, twice).difference is None
    if not found.compared:
        raise InputError(f"{view.id} has left nothing that compares.", where=str(view.path))
    first = found.difference
    if first is not None and first.phase == "init" and ABSENT in (first.left, first.right):
        who = view.id if first.right == ABSENT else "the model of now"
        raise InputError(
            f"cannot compare: only {who} has the weight {first.module}.{first.name}.",
            where=str(view.path),
        )
    verdict = _verdict(runs, found, changed, repeats)
    keep_verdict(view, verdict, tell)
    return verdict


def _is_elsewhere(name: str, how: str, view: RunView, config: Config) -> bool:
    """Return True for a file that is not gone: it lies in no folder of the config's modules."""
    kind, _, path = name.partition(" ")
    place = Path(view.file.project) / path
    folders = [folder.resolve() for folder in config.user_dirs]
    return (kind, how) == ("code", "removed") and not any(map(place.is_relative_to, folders))


def _verdict(
    runs: tuple[str, str],
    found: Alignment,
    changed: Mapping[str, tuple[str, str]],
    repeats: bool | None = None,
) -> Verdict:
    first = found.difference
    return Verdict(
        question="prove",
        runs=runs,
        equal=first is None,
        first_step=0,
        last_step=found.last_step,
        compared=found.compared,
        difference=first,
        cause=cause_of(found, changed, repeats=repeats),
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
        path = project.settings.with_name("prove.toml")  # in no snapshot: it is no code
        path.write_text(_traced_config(sound(config)), encoding="utf-8")
        traced = replace(
            open_config(path, [f"threads={threads}"] if threads is not None else []),
            user_dirs=tuple(each for each in config.user_dirs if each.is_dir()),
            settings=Settings(project.root),
        )
        short = Launch(device=launch.device, quiet=True, stop_at=steps)
        task = replace(ProcessTask.of("replay", traced, short), tells="end")
        variables = {**os.environ, RUNS_DIR_VARIABLE: str(project.runs_dir), "NO_COLOR": "1"}
        said = train_in_scratch(task, folder, cwd=Path.cwd(), variables=variables)
        view = find_only_run(project.runs_dir)
        if said is not None or view is None:
            raise InputError(f"cannot compare: the run failed, and said:\n{said}")
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
