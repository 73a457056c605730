"""Configs trained one after another in one process."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import logging
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from assay.build.registry import registry
from assay.compose.checks import problems_of_shape
from assay.compose.launch import Launch, RunResult
from assay.compose.run_record import fail_record, new_record, result_of_error
from assay.compose.testing import Edit, test_with_own_weights, train_and_test
from assay.compose.training import train
from assay.compose.trust import open_given
from assay.config import expand
from assay.config.edit import inline
from assay.config.expansion import unique_problems
from assay.config.loading import Config
from assay.config.sources.literals import quote
from assay.config.tree import Leaf, from_plain, get_at, walk
from assay.core.devices import device_names
from assay.core.diagnostics import Origin, render
from assay.core.errors import AssayError
from assay.core.ids import new_run_id
from assay.core.job import JOB_DEVICES_VARIABLE
from assay.core.signals import Terminated
from assay.record.logfile import LOGGER

ConfigLike = str | os.PathLike[str] | Mapping[str, Any]
"""File of a config, or the config as a mapping."""


class TrainApart(Protocol):
    """Trainer of configs in OS processes; its results come in the order of the configs."""

    def __call__(
        self, points: Iterable[tuple[Config, Launch]], **settings: Any
    ) -> Iterator[RunResult]: ...


def run(
    configs: ConfigLike | Sequence[ConfigLike],
    *,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    seed: int | None = None,
    tag: str | None = None,
    max_steps: int | None = None,
    variant: str | Sequence[str] = (),
    sweep: bool = True,
    device: str | int | Sequence[str | int] | None = None,
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    desc: str = "",
    debug: bool = False,
    no_file: bool = False,
    then_test: bool = False,
    edit_test: Edit | str | None = None,
    check: bool = True,
    isolate: bool | None = None,
    stop_at_first: bool = False,
    per_device: int = 0,
    train_apart: TrainApart | None = None,
    trust: bool = False,
) -> Any:
    """Train a config and return its RunResult; train a list of configs and return a list of them.

    A config is a file or a mapping. `runner = "test"` in one evaluates it instead. One file is
    several runs with a sweep (all its points) or many variants: then the result is a list, too.

    `overrides`: {"optimizer.lr": 0.01} or ["optimizer.lr=0.01"]; `seed` and `tag` are the keys of
    that name. One run is in this process. Each of several has an OS process and a free device to
    itself, of `device` (`[0, 1]`, "cuda:0,1") or of all; `per_device` of them may share one, and a
    crash is a result, too. `isolate` True or False chooses by hand; `must_stay` tells which runs
    stay in this process, one after another. `train_apart` is how runs are isolated: `assay.run` has
    it. `stop_at_first`: none is started after a failure.
    `then_test`: each is tested when it has finished (`RunResult.test`); `edit_test` may change the
    config of its test. `trust`: a config in a record that was not made here may run.

    After all runs the first error is raised: ConfigError or InputError for a config that is wrong,
    else what the run raised; KeyboardInterrupt at once. What was raised in another OS process comes
    back as IsolatedRunError with the lines of its traceback. With `check=False` every error is kept
    in its result, as `exception`.
    """
    is_list = isinstance(configs, list | tuple)
    given: list[Any] = list(configs) if isinstance(configs, list | tuple) else [configs]
    assigned = [*_assignments(overrides), *_shorthands(seed, tag)]
    variants = [variant] if isinstance(variant, str) and variant else list(variant)
    names = None if device is None else ",".join(device_names(device))
    launch = Launch(device=names, desc=desc, debug=debug, no_file=no_file, max_steps=max_steps)

    def runs_of(config: ConfigLike) -> list[Config]:
        return expand(
            open_given(config, assigned, user_dir=user_dir, trust=trust), variants, sweep=sweep
        )

    results, ready = _open_all(given, runs_of, launch)
    is_list = is_list or any(len(points) > 1 for points in ready)
    how: dict[str, Any] = {
        "then_test": then_test,
        "edit_test": edit_test,
        "stop_at_first": stop_at_first,
    }
    points = list(itertools.chain(*ready))
    is_isolated = isolate
    if is_isolated is None:
        is_isolated = len(points) > 1 and not must_stay([each for each, _ in points], edit_test)
    if is_isolated and train_apart is not None:
        ended = train_apart(points, per_device=per_device, **how)
    else:
        ended = _train_files(ready, **how)
    placed = _in_order(results, ended)
    if check:
        _raise_first(placed)
    for _ in ended:  # frees what the last run held: whoever raises keeps it for a debugger
        pass
    return placed if is_list else placed[0]


def _shorthands(seed: int | None, tag: str | None) -> list[str]:
    """Return the overrides that `seed` and `tag` stand for."""
    values = {"seed": seed, "tag": tag}
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def _open_all(
    given: Sequence[ConfigLike], runs_of: Callable[[ConfigLike], list[Config]], launch: Launch
) -> tuple[list[RunResult | None], list[list[tuple[Config, Launch]]]]:
    """Open each config; return a place for every result, and the runs of each that is right.

    The place of a config that is wrong holds its error.
    """
    results: list[RunResult | None] = []
    ready: list[list[tuple[Config, Launch]]] = []
    for each in given:
        try:
            points = runs_of(each)
        except AssayError as error:
            results.append(result_of_error(None, error))
            continue
        _warn(points)
        one = replace(launch, sweep=new_run_id()) if len(points) > 1 else launch
        ready.append([(config, one) for config in points])
        results += [None] * len(points)
    return results, ready


def must_stay(configs: Iterable[Config], edit_test: Edit | str | None = None) -> str:
    """Return why runs cannot have OS processes of their own, "" if they can.

    Stay does what only this process knows: a function as `edit_test`, and names that its script
    has registered. So does what has its devices from elsewhere: a rank of torchrun or Slurm, and a
    job, which would wait for its own device.
    """
    if os.name != "posix":
        return "OS processes of runs need Linux or macOS"
    if edit_test is not None and not isinstance(edit_test, str):
        return "`edit_test` is a function of this process"
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        return "this process is one of several ranks"
    if os.environ.get(JOB_DEVICES_VARIABLE):
        return "this process is a job, which has its devices"
    registered = {each.name for each in registry.all()}
    for _, node in (item for config in configs for item in walk(config.root)):
        if isinstance(node, Leaf) and isinstance(node.value, str) and node.value in registered:
            return f"`{node.value}` is registered in this process"
    return ""


def _train_files(
    ready: Sequence[Sequence[tuple[Config, Launch]]], **how: Any
) -> Iterator[RunResult]:
    """Train the configs of several files in this OS process, one after another."""
    before = 0
    for points in ready:
        configs = [config for config, _ in points]
        launch = points[0][1]
        records_all = len(points) > 1
        for result in train_each(configs, launch, before=before, records_all=records_all, **how):
            yield result
            if how["stop_at_first"] and result.status == "failed":
                return
        before += len(points)


def _in_order(results: Sequence[RunResult | None], ended: Iterator[RunResult]) -> list[RunResult]:
    """Put the results of runs in the places of their configs; those that never ran have none."""
    placed = [result if result is not None else next(ended, None) for result in results]
    return [result for result in placed if result is not None]


def _assignments(overrides: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Return overrides as KEY=VALUE."""
    if isinstance(overrides, str):
        return [overrides]
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_override_text(value)}" for key, value in overrides.items()]


def _override_text(value: Any) -> str:
    """Return a value as an override is typed: a text bare unless it reads as something else."""
    if isinstance(value, str):
        return quote(value)
    return inline(from_plain(value, Origin(source="<overrides>")))


def _raise_first(results: Sequence[RunResult]) -> None:
    """Raise the error of the first run that failed, or the signal that stopped one."""
    for result in results:
        for ended in filter(None, (result, result.test)):
            if ended.exception is not None:
                if len(results) > 1:
                    _note_others(ended.exception, results)
                raise ended.exception
        if result.signal:
            raise KeyboardInterrupt if result.signal == signal.SIGINT else Terminated()


def _note_others(error: BaseException, results: Sequence[RunResult]) -> None:
    bad = sum(result.exception is not None for result in results)
    error.add_note(f"{bad} of {len(results)} runs failed; check=False returns all results")


def _warn(configs: Sequence[Config]) -> None:
    """Log the warnings of the check: nobody else prints them to a caller from Python."""
    problems = unique_problems(configs, problems_of_shape)
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if warnings:
        logging.getLogger(LOGGER).warning("%s", render(warnings, color=False))


def train_each(
    configs: Iterable[Config],
    launch: Launch,
    *,
    then_test: bool = False,
    edit_test: Edit | str | None = None,
    before: int = 0,
    records_all: bool = False,
    stop_at_first: bool = False,
) -> Iterator[RunResult]:
    """Train one config after another, until one is stopped, or fails with `stop_at_first`.

    An exception is kept in its result, not raised.

    Of several devices the runs take one each in turn, counted from the `before` runs that were
    there already. `records_all`: a run that could not be built has a record all the same, so that
    each point of a sweep has one.
    """
    devices = launch.devices() or (None,)
    for i, config in enumerate(configs, before):
        one = replace(launch, device=devices[i % len(devices)])
        result = run_and_keep_error(
            config, one, records_all=records_all, then_test=then_test, edit_test=edit_test
        )
        yield result
        if result.status == "stopped" or result.signal:
            return
        if stop_at_first and result.status == "failed":
            return
        _let_go(result.exception)
        _let_go(result.test.exception if result.test is not None else None)


def run_and_keep_error(
    config: Config, launch: Launch, *, records_all: bool = False, **how: Any
) -> RunResult:
    """Train a config as `run_one` does; an exception is kept in the result.

    `records_all`: a run that could not be built has a record all the same.
    """
    try:
        result = run_one(config, launch, **how)
    except Exception as error:  # whatever is raised while one run is built, others are not to blame
        result = result_of_error(config, error)
    except KeyboardInterrupt as error:  # while it was built: only what comes after it is lost
        result = replace(result_of_error(config, error), status="stopped")
    if records_all and result.status == "failed" and result.record_dir is None:
        return _add_record(result, config, launch)
    return result


def run_one(
    config: Config,
    launch: Launch,
    *,
    then_test: bool = False,
    edit_test: Edit | str | None = None,
    parent: str = "",
) -> RunResult:
    """Train a config, or evaluate it if that is its runner; see `run`.

    `parent` is the run whose config this is.
    """
    runner = get_at(config.root, ("runner",))
    if isinstance(runner, Leaf) and runner.value in ("test", "infer"):
        return test_with_own_weights(config, launch, infer=runner.value == "infer")
    if then_test:
        return train_and_test(config, launch, edit=edit_test, parent=parent)
    return train(config, launch, parent=parent)


def _add_record(result: RunResult, config: Config, launch: Launch) -> RunResult:
    """Add a record that says why the run could not be built, where there can be one."""
    assert result.exception is not None
    try:
        recorder = new_record(config, launch, None, device=launch.device or "none")
    except AssayError:
        return result
    return replace(
        fail_record(recorder, config, result.exception, step=0), exit_code=result.exit_code
    )


def _let_go(error: BaseException | None) -> None:
    """Free what the run held, the memory of its device above all, before the next one needs it."""
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        # The first is where it was caught; the others were left by the error, generators too.
        for frame in frames[1:]:
            _clear_frame(frame)
        for frame in frames:
            _forget_variables(frame)
        error = error.__cause__ or error.__context__
    gc.collect()


def _forget_variables(frame: FrameType | None) -> None:
    """Clear the variables of the calls that led to an error; the model is among them.

    The lines of its traceback stay.
    """
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # one that waits would be ended
            _clear_frame(frame)
        frame = frame.f_back


def _clear_frame(frame: FrameType) -> None:
    with contextlib.suppress(RuntimeError):  # still running
        frame.clear()
