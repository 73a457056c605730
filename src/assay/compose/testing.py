"""Evaluation on test splits, or inference without targets, with a record of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.compose.checks import check_and_settle, is_trained, refuse
from assay.compose.examination import run_problems, weights_to_test
from assay.compose.launch import Launch, RunResult
from assay.compose.loaders import make_loader, splits_of
from assay.compose.prepared_run import make_process
from assay.compose.run_record import (
    end_record,
    fail_record,
    new_record,
    result_of_error,
    set_recorder,
)
from assay.compose.run_scope import (
    RunScope,
    evaluation_of,
    keep_meta,
    open_run_scope,
    promise_no_training,
)
from assay.compose.training import train
from assay.compose.trust import Tell, Trust, open_given, open_saved
from assay.compose.weights import Weights, weights_at, with_step
from assay.config.loading import Config
from assay.config.tree import Table, delete_at, from_plain, get_at, plain
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError, choose
from assay.core.events import Event
from assay.core.facts import Evaluated
from assay.core.ports import NullRecorder
from assay.core.schema import is_for_inference, is_for_tests
from assay.core.signals import obeying
from assay.query.find import find
from assay.record.recorder import RunRecorder
from assay.script import under_way

if TYPE_CHECKING:
    from assay.engine import Process

Edit = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""Changes the config of a test, given as plain data, in place; or returns another one."""


def test(
    address: str,
    launch: Launch | None = None,
    *,
    splits: Sequence[str] = (),
    infer: bool = False,
    weights: str = "",
    overrides: Sequence[str] = (),
    trust: Trust = False,
    tell: Tell = lambda line: None,
) -> RunResult:
    """Evaluate a recorded run, or a config with the weights of one, on splits.

    The weights are the best ones if the run kept any, else the newest. `weights` names them for a
    config: a run, a checkpoint's folder, or a safetensors file. Without `splits` it is `test`, and
    each whose name begins with `test_`. `infer`: those that begin with `infer`, without loss and
    metrics; the outputs are kept. Makes a record of its own (kind test) whose parent is the
    checkpoint. InputError for a run that was not made here, unless `trust` allows what its config
    says.
    """
    launch = launch or Launch()
    if is_config(address):
        given = open_given(address, overrides, use="test it", trust=trust, tell=tell)
        if not weights:
            return test_with_own_weights(given, launch, splits=splits, infer=infer)
        config, _ = check_and_settle(given, "data", training=False)
        return test_config(config, weights_at(weights), launch, splits=splits, infer=infer)
    if weights or overrides:
        what = "--from" if weights else overrides[0]
        raise InputError(
            f"A recorded run is tested as it was trained; `{what}` is for a config.",
            fix=f"assay test CONFIG {' '.join(overrides)} --from {address}".replace("  ", " "),
        )
    config = config_to_test(address, trust=trust, tell=tell)
    return test_config(config, weights_at(address), launch, splits=splits, infer=infer)


def test_with_own_weights(
    config: Config, launch: Launch, *, splits: Sequence[str] = (), infer: bool = False
) -> RunResult:
    """Evaluate a config with the weights of its `load_weights`; see `test`."""
    config, _ = check_and_settle(config, "data", training=False)
    if not is_trained(config):  # `assay run` tests it
        refuse(run_problems(config, launch))
    weights = weights_to_test(config)
    return test_config(config, with_step(weights), launch, splits=splits, infer=infer)


def config_to_test(address: str, *, trust: Trust = False, tell: Tell = lambda line: None) -> Config:
    """Return the config of a run, with the modules and settings that the run had."""
    view, _ = find(address)
    return open_saved(view, use="test it", trust=trust, tell=tell)


def is_config(address: str) -> bool:
    """Return True for the path of a config file, False for the address of a run."""
    return os.path.isfile(address)


def test_config(
    config: Config,
    weights: Weights,
    launch: Launch,
    *,
    splits: Sequence[str] = (),
    infer: bool = False,
) -> RunResult:
    """Evaluate a config with given weights; see `test`."""
    from assay.engine.callbacks.ema import load_to_evaluate

    assert weights.path is not None
    wanted = _choose_splits(config, splits, infer=infer)
    with open_run_scope(config, launch) as scope:
        if infer:
            scope.root = _without_loss(scope.root)
        promise_no_engine(scope, splits_of(config.root))
        process = make_process(scope, training=False)
        report = load_to_evaluate(process, weights.path, weights.options)
        loaders = {split: make_loader(scope, split) for split in wanted}
        evaluation = _make_evaluation(scope, infer=infer)
        recorder: RunRecorder | NullRecorder = NullRecorder()
        how: dict[str, Any] = {"kind": "test", "parent": weights.parent, "device": scope.device}
        with obeying() as signals:
            try:
                with signals.holding():
                    recorder = new_record(config, launch, None, **how)
                set_recorder(scope, recorder)
                keep_meta(scope, recorder)
                evaluation |= {"recorder": recorder, "step": weights.step}
                with under_way(recorder):
                    value = _evaluate(scope, process, loaders, evaluation)
            except BaseException as error:  # the result carries it, KeyboardInterrupt too
                with signals.holding():
                    return fail_record(recorder, config, error, step=0)
            with signals.holding():
                result = end_record(recorder, config, "finished", "", value, step=weights.step)
    note = f"weights of {weights.parent}: {weights.why}" if weights.why else ""
    misfit = "" if report.fits else f"weights of {weights.path}: {report}"
    return replace(result, note="; ".join(filter(None, [note, misfit, result.note])))


def promise_no_engine(scope: RunScope, splits: Iterable[str]) -> None:
    """Promise errors in place of the engine and of the loaders that training has."""
    from assay.build import Promise

    promise_no_training(scope.context)
    for name in splits:
        scope.context.promise(f"{name}_loader", Promise(never="this is a test, not a training"))


def _make_evaluation(scope: RunScope, *, infer: bool) -> dict[str, Any]:
    """Return the arguments of `evaluate` that are the same for every split."""
    from assay.engine import SaveOutputs
    from assay.engine.metrics.outputs import Pipes

    pipes, metrics = evaluation_of(scope)
    if infer and not pipes.pipes:
        pipes = Pipes([SaveOutputs()])
    return {
        "seed": scope.seed,
        "device": scope.device,
        "pipes": pipes,
        "metrics": metrics,
        "infer": infer,
    }


def _evaluate(
    scope: RunScope,
    process: Process,
    loaders: Mapping[str, Iterable[Any]],
    evaluation: Mapping[str, Any],
) -> dict[str, float]:
    """Evaluate every loader, record the results, and return all metrics by name."""
    from assay.build import entered
    from assay.engine import evaluate
    from assay.engine.callbacks.evaluate import tell_unmeasured
    from assay.engine.loop.engine_state import eval_modes
    from assay.engine.numerics.precision import deterministic

    recorder = evaluation["recorder"]
    step = evaluation["step"]
    value: dict[str, float] = {}
    on = scope.sections.train.deterministic
    with entered(scope.plugins), deterministic(process.model, enabled=on), eval_modes(process):
        fire = _evaluation_events(scope, step)
        for split, loader in loaders.items():
            fire(Event.EVAL_BEGIN)
            results, samples = evaluate(
                process,
                loader,
                split=split,
                before=lambda: fire(Event.EVAL_STEP_BEGIN),
                after=lambda: fire(Event.EVAL_STEP_END),
                **evaluation,
            )
            if results:
                recorder.log(results, step)
            elif not evaluation["infer"] and not evaluation["pipes"].pipes:
                tell_unmeasured(recorder, split, step)
            recorder.tell(Evaluated(split=split, step=step, metrics=results, samples=samples))
            value |= results
            fire(Event.EVAL_END)
    return value


def train_and_test(
    config: Config, launch: Launch, *, edit: Edit | str | None = None, parent: str = ""
) -> RunResult:
    """Train a config, then test it; the result of the test is in that of the training.

    The config of the test is that of the run. `edit`, a function or the target of one, may change
    it as plain data.
    """
    if launch.no_file:
        raise InputError(
            "What leaves no record cannot be tested afterwards.", fix="Leave --no-file out."
        )
    _choose_splits(config, (), infer=False)
    change = _resolve_edit(edit, config)
    result = train(config, launch, parent=parent)
    if result.status != "finished" or result.signal:
        return result
    try:
        derived = config_to_test(result.id, trust=True)  # this process has just made it
        if change is not None:
            derived, _ = check_and_settle(apply_edit(derived, change), "data", training=False)
        return replace(result, test=test_config(derived, weights_at(result.id), launch))
    except AssayError as error:
        return replace(result, test=result_of_error(config, error))


def apply_edit(config: Config, edit: Edit) -> Config:
    """Return `config` as changed by `edit`."""
    data = plain(config.root)
    returned = edit(data)
    changed = data if returned is None else returned
    if not isinstance(changed, Mapping):
        raise InputError(
            f"The function that edits the config of the test returned a {type(changed).__name__}.",
            fix="Change the mapping that it is given, or return another one.",
        )
    root = from_plain(dict(changed), Origin(source=f"<{getattr(edit, '__name__', 'edit')}>"))
    assert isinstance(root, Table)
    return replace(config, root=root, written=root, given=root, named=None)


def _resolve_edit(edit: Edit | str | None, config: Config) -> Edit | None:
    from assay.build import resolve

    if not isinstance(edit, str):
        return edit
    function = resolve(edit, user_dirs=config.user_dirs, trusted=config.settings.trusted)
    if not callable(function):
        raise InputError(f"{edit} is no function that could edit a config.")
    return function  # type: ignore[no-any-return]


def _choose_splits(config: Config, splits: Iterable[str], *, infer: bool) -> list[str]:
    """Return the splits to evaluate; InputError for one that is not in the config."""
    known = splits_of(config.root)
    is_meant = is_for_inference if infer else is_for_tests
    wanted = (
        list(splits) or [name for name in known if is_meant(name)] or ["infer" if infer else "test"]
    )
    for split in wanted:
        if split not in known:
            fix = choose(split, known, "--split names one of")
            raise InputError(
                f"The config has no [data.{split}].", where=os.fspath(config.path or ""), fix=fix
            )
    return wanted


def _without_loss(root: Table) -> Table:
    """Return the config of an inference, without the parts for training and scoring."""
    for path in (("criterion",), ("process", "criterion"), ("optimizer",), ("schedule",)):
        if get_at(root, path) is not None:
            root = delete_at(root, path)
    return root


def _evaluation_events(scope: RunScope, step: int) -> Callable[[Event], None]:
    """Return a function that calls the plugins' handlers of an evaluation event.

    A test has no engine that would do it.
    """
    from assay.engine.loop.bus import Bus

    bus = Bus(scope.context.bind, epoch_length=1)  # a test has no steps
    handlers = [handler for plugin in scope.plugins for handler in plugin.handlers()]
    bus.extend(handler for handler in handlers if handler.event in _EVALUATION)
    return lambda event: bus.points[event].fire(step)


_EVALUATION = (Event.EVAL_BEGIN, Event.EVAL_END, Event.EVAL_STEP_BEGIN, Event.EVAL_STEP_END)
