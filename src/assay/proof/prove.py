"""Golden runs: the first steps of a config, compared with committed digests or a recorded run.

A golden file has a digest for each phase of a step, and for each module of the first and last.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from assay.compose.checks import ensure_sound
from assay.compose.launch import Launch, ProcessTask
from assay.config import dotted, dump, from_plain, open_config, plain, walk
from assay.config.freeze import outside_origins
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.core.diagnostics import Origin
from assay.core.errors import InputError
from assay.formats.golden_file import (
    CALLS,
    DRAWS,
    ORDER,
    WHOLE,
    GoldenFile,
    GoldenLine,
    parse_line,
    read_golden,
    write_golden,
)
from assay.formats.project import RUNS_DIR_VARIABLE
from assay.formats.trace_file import PHASES, SAMPLE_INDICES, Digest, Phase
from assay.formats.verdict import Difference, Verdict
from assay.proof.cause import cause_of, changed_inputs, unlike_inputs
from assay.proof.differences import first_in_records
from assay.proof.scratch_project import find_only_run, train_in_scratch
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.traces import ABSENT, Alignment, ranks_of, shown_digest, steps_of
from assay.record.edits import keep_verdict
from assay.store.known_projects import forget
from assay.store.layout import make_project

_MAX_MODULES = 40
"""Modules with a digest of their own in a step; deeper ones are folded into their parents."""

_WITH_MODULES: tuple[Phase, ...] = ("init", "backward", "optimizer", "state")
_NAMED = 3
_VALUE = struct.Struct("<Q")
_Place: TypeAlias = tuple[int, Phase, str]


def golden_lines(view: RunView, steps: int) -> list[GoldenLine]:
    """Return the digests of steps 0 to `steps` of a run that traced each of them."""
    lines: list[GoldenLine] = []
    for step, digests in sorted(_digests_by_step(view).items()):
        if step <= steps:
            lines += _lines_of_step(step, digests, with_modules=step in (0, 1, steps))
    return lines


def _digests_by_step(view: RunView) -> dict[int, list[Digest]]:
    """Return the digests of all ranks by step, rank after rank."""
    by_step: dict[int, list[Digest]] = {}
    for rank in ranks_of(view):
        for traced in steps_of(view, rank):
            by_step.setdefault(traced.step, []).extend(traced.digests)
    return by_step


def _lines_of_step(step: int, digests: Sequence[Digest], *, with_modules: bool) -> list[GoldenLine]:
    """Return the lines of a step in the order of its phases."""
    found = _drawn_in_forward(step, digests)
    found += _model_lines(step, digests, with_modules=with_modules)
    return sorted(found, key=lambda line: PHASES.index(line.phase))


def _drawn_in_forward(step: int, digests: Sequence[Digest]) -> list[GoldenLine]:
    drawn = [
        each
        for each in digests
        if each.site.kind == "random operation" and each.site.phase == "forward"
    ]
    if not drawn:
        return []
    return [
        GoldenLine(step, "forward", CALLS, _fold_calls(drawn)),
        GoldenLine(step, "forward", DRAWS, _fold(drawn)),
    ]


def _model_lines(
    step: int, digests: Sequence[Digest], *, with_modules: bool
) -> Iterator[GoldenLine]:
    tensors = [each for each in digests if each.site.kind == "tensor"]
    tensors.sort(key=lambda each: PHASES.index(each.site.phase))
    for phase, group in groupby(tensors, key=lambda each: each.site.phase):
        members = list(group)
        if phase == "data":
            order = [each for each in members if each.site.name == SAMPLE_INDICES]
            if order:
                yield GoldenLine(step, phase, ORDER, _fold(order))
        if with_modules and phase in _WITH_MODULES:
            for module, inside in _by_module(members).items():
                yield GoldenLine(step, phase, module, _fold(inside))
        yield GoldenLine(step, phase, WHOLE, _fold(members))


def _by_module(digests: Sequence[Digest]) -> dict[str, list[Digest]]:
    """Group digests by module, folding the deepest modules until few enough are left."""
    paths = [each.site.module.split(".") for each in digests]
    depth = max(map(len, paths), default=1)
    while depth > 1 and len({tuple(path[:depth]) for path in paths}) > _MAX_MODULES:
        depth -= 1
    by_module: dict[str, list[Digest]] = {}
    for path, digest in zip(paths, digests, strict=True):
        if name := ".".join(path[:depth]):
            by_module.setdefault(name, []).append(digest)
    return by_module


def _fold(digests: Sequence[Digest]) -> str:
    """Return one digest of many; the number itself for a single loss."""
    if len(digests) == 1:
        return shown_digest(digests[0])
    mark = 0
    for each in digests:
        site = each.site
        text = f"{site.module} {site.name} {site.dtype} {site.shape} {each.occurrence} "
        mark = crc32(text.encode() + _VALUE.pack(each.fingerprint), mark)
    return f"{mark:08x}"


def _fold_calls(digests: Sequence[Digest]) -> str:
    """Return one digest of how random numbers are drawn, whatever they are."""
    sites = [each.site for each in digests]
    texts = [f"{site.module} {site.name} {site.shape} {site.arguments} " for site in sites]
    return f"{crc32(''.join(texts).encode()):08x}"


def align_golden(golden: Sequence[GoldenLine], found: Sequence[GoldenLine]) -> Alignment:
    """Return the first line that differs, with what was compared before it.

    InputError where the lines are of other places, so that they do not compare.
    """
    left, right = _by_place(golden), _by_place(found)
    for is_kind in (_is_order, _is_average, _is_random):  # files of before have none of them
        if not any(map(is_kind, left)):
            right = {place: digest for place, digest in right.items() if not is_kind(place)}
    alignment = Alignment(first_step=0)
    unlike_draws: _Place | None = None
    for place in [*left, *(each for each in right if each not in left)]:
        step, phase, module = place
        digests = left.get(place, ABSENT), right.get(place, ABSENT)
        if _is_random(place):  # they count if a result of the step differs
            is_first = unlike_draws is None or unlike_draws[0] != step
            if is_first and digests[0] != digests[1]:
                unlike_draws = place
            continue
        if digests[0] != digests[1]:
            _refuse_other_places(left, right)
            if unlike_draws is not None and unlike_draws[0] == step:
                place = unlike_draws
                _, phase, module = place
                digests = left.get(place, ABSENT), right.get(place, ABSENT)
                alignment.kind = "random operation" if module == DRAWS else "operation"
            alignment.difference = Difference(
                step=step,
                phase=phase,
                module="" if module in (WHOLE, ORDER, CALLS, DRAWS) else module,
                name=_name_of(phase, module),
                left=digests[0],
                right=digests[1],
            )
            break
        compared = alignment.traced.get(step, frozenset())
        alignment.traced[step] = compared | {phase} | ({"order"} if module == ORDER else set())
        alignment.last_step = step
    alignment.compared = len(left)
    return alignment


def _is_order(place: _Place) -> bool:
    return place[2] == ORDER


def _is_average(place: _Place) -> bool:
    return place[1] == "average"


def _is_random(place: _Place) -> bool:
    return place[1] == "forward"


def _by_place(lines: Sequence[GoldenLine]) -> dict[_Place, str]:
    return {(line.step, line.phase, line.module): line.digest for line in lines}


def _refuse_other_places(left: Mapping[_Place, str], right: Mapping[_Place, str]) -> None:
    """InputError for runs of another length, and for a model with modules of other names."""
    last, now = (max(step for step, *_ in lines) for lines in (left, right))
    if last != now:
        raise InputError(f"It has the digests of {last} steps, and this run made {now}.")
    names, others = (
        {module for step, phase, module in lines if phase == "init" and module != WHOLE}
        for lines in (left, right)
    )
    gone, new = sorted(names - others), sorted(others - names)
    if gone or new:
        renamed = " and ".join(
            f"{which} {', '.join(modules[:_NAMED])}"
            for which, modules in (("no longer has", gone), ("has the new", new))
            if modules
        )
        raise InputError(f"The model is another one: it {renamed}.")


def _name_of(phase: Phase, module: str) -> str:
    if module == ORDER:
        return SAMPLE_INDICES
    if module in (CALLS, DRAWS):
        return "random numbers" if module == DRAWS else "calls for random numbers"
    return "parameters" if module != WHOLE else f"{phase} digest"


DEFAULT_STEPS = 20


def write_golden_run(
    config: Config, path: Path, launch: Launch, *, steps: int = DEFAULT_STEPS
) -> GoldenFile:
    """Train the first steps of a config and write their digests to a file.

    The config is trained in a temporary project. InputError for a run that fails, and where the
    file cannot be written.
    """
    with _train_first_steps(config, launch, steps=steps, threads=None) as view:
        golden = _golden_of(view, steps, config)
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
    with _train_first_steps(config, launch, steps=golden.steps, threads=count) as view:
        found = _golden_of(view, golden.steps, config)
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
    with _train_first_steps(config, launch, steps=steps, threads=threads) as again:
        alignment = first_in_records(view, again)
        changed = {
            name: values
            for name, values in changed_inputs(view, again, alignment.difference).items()
            if not _is_elsewhere(name, values[1], view, config)
        }
        runs = (view.id, again.id)
        repeats = None
        if alignment.difference is not None and not changed:
            with _train_first_steps(config, launch, steps=steps, threads=threads) as twice:
                repeats = first_in_records(again, twice).difference is None
    first = alignment.difference
    if first is None and not alignment.compared:
        raise InputError(f"{view.id} has left nothing that compares.", where=str(view.path))
    if first is not None and first.phase == "init" and ABSENT in (first.left, first.right):
        who = view.id if first.right == ABSENT else "the model of now"
        raise InputError(
            f"cannot compare: only {who} has the weight {first.module}.{first.name}.",
            where=str(view.path),
        )
    verdict = _verdict(runs, alignment, changed, repeats)
    keep_verdict(view.folder, verdict, tell)
    return verdict


def _is_elsewhere(name: str, how: str, view: RunView, config: Config) -> bool:
    """Return True for a file that is not gone: it lies in no folder of the config's modules."""
    kind, _, path = name.partition(" ")
    place = Path(view.file.project) / path
    folders = [folder.resolve() for folder in config.user_dirs]
    return (kind, how) == ("code", "removed") and not any(map(place.is_relative_to, folders))


def _verdict(
    runs: tuple[str, str],
    alignment: Alignment,
    changed: Mapping[str, tuple[str, str]],
    repeats: bool | None = None,
) -> Verdict:
    first = alignment.difference
    return Verdict(
        question="prove",
        runs=runs,
        equal=first is None,
        first_step=max(alignment.first_step, 0),
        last_step=alignment.last_step,
        compared=alignment.compared,
        difference=first,
        cause=cause_of(alignment, changed, repeats=repeats),
        changed_inputs={name: list(values) for name, values in changed.items()},
        at_ns=time.time_ns(),
    )


@contextmanager
def _train_first_steps(
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
        path.write_text(_traced_config(ensure_sound(config)), encoding="utf-8")
        traced = replace(
            open_config(path, [f"threads={threads}"] if threads is not None else []),
            user_dirs=tuple(each for each in config.user_dirs if each.is_dir()),
            settings=Settings(project.root),
        )
        short = Launch(device=launch.device, quiet=True, stop_at=steps)
        task = replace(ProcessTask.of("replay", traced, short), tells="end")
        variables = {**os.environ, RUNS_DIR_VARIABLE: str(project.runs_dir), "NO_COLOR": "1"}
        output = train_in_scratch(task, folder, cwd=Path.cwd(), variables=variables)
        view = find_only_run(project.runs_dir)
        if output is not None or view is None:
            raise InputError(f"cannot compare: the run failed, and said:\n{output}")
        yield view
    finally:
        with suppress(OSError):
            forget([folder / "project"])
        shutil.rmtree(folder, ignore_errors=True)


def _traced_config(config: Config) -> str:
    """Return the config as TOML, with every operation of every step traced."""
    values = plain(config.root)
    values["trace"] = {"enabled": True, "every": "1 step", "level": "full"}
    return dump(from_plain(values, Origin(source="<prove>")))  # type: ignore[arg-type]


def _golden_of(view: RunView, steps: int, config: Config) -> GoldenFile:
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
        inputs=_inputs_of(view, config),
        digests=tuple(" ".join(map(str, each)) for each in lines),
    )


def _inputs_of(view: RunView, config: Config) -> dict[str, dict[str, str]]:
    """Return digests of the inputs from outside; values are in no file that is published.

    A file that is too large to be read counts by its size: its time is another on each machine.
    """
    seen = view.environment.get("inputs", {})
    origins = outside_origins(config.root)
    values = {
        f"{dotted(path)} ({origins[path]})": _digest_of(repr(plain(node)))
        for path, node in walk(config.root)
        if path in origins
    }
    found = {
        "config": values,
        "variables": {name: _digest_of(text) for name, text in seen.get("variables", {}).items()},
        **{
            kind: {name: text.partition(", of ")[0] for name, text in seen.get(kind, {}).items()}
            for kind in ("libraries", "files")
        },
    }
    return {kind: by_name for kind, by_name in found.items() if by_name}


def _digest_of(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _changed_since(golden: GoldenFile, now: GoldenFile) -> dict[str, tuple[str, str]]:
    """Return what differs of the environment and the config since a golden file was written."""
    changed = {
        f"environment {name}": (was, now.environment.get(name, "not set"))
        for name, was in golden.environment.items()
        if now.environment.get(name, "not set") != was
    }
    if golden.config_hash != now.config_hash:
        changed["config"] = (golden.config_hash[:8], now.config_hash[:8])
    return changed | (unlike_inputs(golden.inputs, now.inputs) if golden.inputs else {})
