"""Examination of configs: all that `assay run` refuses before it builds anything.

`assay check`, `assay run`, `assay sweep` and every door to a queue or a cluster ask here, so that
they refuse the same configs in the same words. What only a built model or a loaded data set tells
is for a rehearsal, which builds both. One question is rehearsed here: what a loss is divided by,
where a step has parts, and neither a class nor a word of the config says it.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.compose.checks import (
    Examiner,
    is_trained,
    problems_of_shape,
    refuse,
    section_problems,
)
from assay.compose.launch import Launch, ProcessTask, run_task
from assay.compose.prepared_run import check_part_keys
from assay.compose.ranks import asked_processes, check_division, check_split, data_parallel_size
from assay.compose.weights import Weights, initial_weights
from assay.config.expansion import unique_problems
from assay.config.loading import Config
from assay.config.standard_keys import sections_of
from assay.config.tree import Table, get_at, is_given
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError, ConfigError, InputError
from assay.core.sections import SplitSection
from assay.formats.rehearsal import Rehearsal
from assay.formats.task_report import read_report, report_file

_PLACE = re.compile(r"(?P<source>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")
_ON_THE_LINE = Origin(source="<cli>")


def examine_runs(
    configs: Sequence[Config], launch: Launch | None = None, *, is_here: bool = True
) -> None:
    """Raise ConfigError with all that `assay run` refuses of these configs before it builds one.

    This is the one examination of every door: `run`, `sweep`, `--queue`, `--on`.
    `launch` holds the device, the ranks and the weights that were asked for. Unless `is_here`, the
    run is on another machine, whose devices nobody knows.
    """
    refuse(unique_problems(configs, problems_of_shape))
    for _, group in groupby(configs, key=lambda each: each.path):
        of_file = list(group)
        examiner = Examiner()
        refuse(examiner.problems(of_file))
        refuse(problems_of_runs(of_file, launch, examiner=examiner, is_here=is_here))


def problems_of_runs(
    configs: Sequence[Config],
    launch: Launch | None = None,
    *,
    examiner: Examiner,
    is_here: bool = True,
) -> list[Problem]:
    """Return what a run refuses of configs of one file that passed both stages of the check."""
    launch = launch or Launch()
    rehearsed: dict[str, list[Problem]] = {}

    def problems_of(config: Config) -> list[Problem]:
        settled = examiner.settle(config)
        found = run_problems(settled, launch, is_here=is_here)
        if found:
            return found
        key = _undeclared_loss(settled, launch)
        if key and key not in rehearsed:
            rehearsed[key] = _rehearse_loss(config, launch)
        return rehearsed.get(key, [])

    return unique_problems(configs, problems_of)


def rehearse_apart(config: Config, launch: Launch) -> Rehearsal:
    """Rehearse what a launch is about to train, in an OS process of its own.

    InputError with what that process said, when it could not.
    """
    folder = Path(tempfile.mkdtemp(prefix="assay-rehearse-"))
    try:
        processes = asked_processes(config, launch)
        task = ProcessTask.of("rehearsal", config, launch, processes=processes)
        ended = run_task(task, folder, stderr=subprocess.PIPE, encoding="utf-8")
        if ended.returncode:
            raise InputError(ended.stderr.strip().removeprefix("error: "))
        report = read_report(report_file(folder)).rehearsal
        assert report is not None
        return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _undeclared_loss(config: Config, launch: Launch) -> str:
    """Return the targets of a loss of which only a call tells what it is divided by; "" if none.

    A step without parts needs no denominator.
    """
    from assay.build import user_code
    from assay.build.graph import expected_type
    from assay.engine.optim.denominators import declares_denominator

    root, sections = config.root, sections_of(config.root)
    split = sections.data.get("train", SplitSection())
    num_ranks = data_parallel_size(config, asked_processes(config, launch))
    is_whole = num_ranks == 1 and sections.train.accumulate in (None, 1)
    if not is_trained(config) or (is_whole and split.micro_batch_size in (None, split.batch_size)):
        return ""
    where: dict[str, Any] = {"user_dirs": config.user_dirs, "trusted": config.settings.trusted}
    with user_code(config.user_dirs):
        kinds = [
            expected_type(root, path, **where)
            for path in (("process",), ("process", "criterion"), ("criterion",), ("model",))
        ]
    process, *others = kinds
    takes_word = isinstance(process, type) and "reduction" in inspect.signature(process).parameters
    if not takes_word or get_at(root, ("process", "reduction")) is not None:
        return ""
    return "" if any(map(declares_denominator, others)) else repr(kinds)


def _rehearse_loss(config: Config, launch: Launch) -> list[Problem]:
    """Return what a rehearsed step says against its loss; of anything else, the run says it."""
    try:
        report = rehearse_apart(config, replace(launch, device="cpu"))
    except AssayError:
        return []
    place = "criterion" if "criterion" in config.root.items else "process"
    origin = config.root.key_origin(place)
    return [
        Problem(kind="refused", message=_in_a_line(each.message), origin=origin, fix=each.fix)
        for each in report.findings
        if each.kind == "loss"
    ]


def run_problems(config: Config, launch: Launch, *, is_here: bool = True) -> list[Problem]:
    """Return what a run of a config refuses whose calls are right, before it builds anything."""
    of_sections = section_problems(config)
    if of_sections:
        return of_sections
    return [
        problem
        for check in _CHECKS
        for problem in _find_problems_of(check, config, launch, is_here)
    ]


def _check_devices(config: Config, launch: Launch, is_here: bool) -> None:
    from assay.engine.loop.device import pick_device

    for name in launch.devices():
        pick_device(name, must_exist=is_here)


def _check_ranks(config: Config, launch: Launch, is_here: bool) -> None:
    from assay.engine.numerics.precision import gather_dtype

    check_split(config, data_parallel_size(config, asked_processes(config, launch)))
    check_division(config)
    gather_dtype(sections_of(config.root))


def _check_weights(config: Config, launch: Launch, is_here: bool) -> None:
    if is_trained(config):
        initial_weights(config.root, launch.weights_from)
    else:
        weights_to_test(config)


def weights_to_test(config: Config) -> Weights:
    """Return the weights of the `load_weights` of a config; InputError where it has none."""
    weights = initial_weights(config.root)
    if weights.path is None:
        address = config.path or "CONFIG"
        fix = f"assay test {address} --from RUN, or a checkpoint's folder, or a .safetensors file"
        raise InputError("A config has no weights to test.", fix=f"{fix}; or give it load_weights")
    return weights


def _check_parts(config: Config, launch: Launch, is_here: bool) -> None:
    check_part_keys(config.root, sections_of(config.root))


def _check_sources(config: Config, launch: Launch, is_here: bool) -> None:
    data = get_at(config.root, ("data",))
    if "task" in config.root.items or not isinstance(data, Table):
        return
    for split, table in data.items.items():
        if isinstance(table, Table) and not is_given(table, "source"):
            raise InputError(
                f"[data.{split}] has no source, and there is no [task].",
                where=str(table.origin),
                fix=f'Write source = {{ type = "module.Name" }} under [data.{split}].',
            )


_Check = Callable[[Config, Launch, bool], None]
_CHECKS: tuple[_Check, ...] = (
    _check_devices,
    _check_sources,
    _check_parts,
    _check_ranks,
    _check_weights,
)


def _find_problems_of(
    check: _Check, config: Config, launch: Launch, is_here: bool
) -> Iterator[Problem]:
    """Yield what a check raises, as problems of the config."""
    try:
        check(config, launch, is_here)
    except ConfigError as error:
        yield from error.problems
    except InputError as error:
        place = _PLACE.fullmatch(error.where)
        origin = Origin(source=str(config.path or "<config>"))
        if check is _check_ranks and "parallel" in config.root.items:
            origin = config.root.key_origin("parallel")
        if check is _check_devices:
            origin = replace(_ON_THE_LINE, text=f"--device {launch.device}", line=1, column=10)
        elif place is not None:
            line, column = int(place["line"]), int(place["column"] or 0)
            origin = Origin(source=place["source"], line=line, column=column)
        yield Problem(
            kind="refused", message=_in_a_line(error.what), origin=origin, fix=error.fix.strip()
        )


def _in_a_line(sentence: str) -> str:
    """Return a sentence as the message of a problem: without its capital and its full stop."""
    is_word = sentence[1:2].islower() or sentence[1:2] == " "
    start = sentence[:1].lower() if is_word else sentence[:1]
    return f"{start}{sentence[1:]}".removesuffix(".")
