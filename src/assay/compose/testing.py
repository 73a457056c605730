"""Evaluation on test splits, or inference without targets, with a record of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.checks import passed
from assay.compose.initial_weights import InitialWeights, initial_weights
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.make_loaders import make_loader, splits_of
from assay.compose.make_parts import make_process, promise_no_training
from assay.compose.run_record import ended, failed, new_record, set_recorder
from assay.compose.run_scope import RunScope, open_run_scope
from assay.compose.tasks import evaluation_of, keep_meta
from assay.compose.training import train
from assay.compose.trust import Tell, Trust, at_home, open_given, open_saved
from assay.config.loading import Config
from assay.config.tree import Table, delete_at, from_plain, get_at, plain
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError, choose
from assay.core.event_log import Evaluated
from assay.core.events import Event
from assay.core.manifest import FILE_NAME, read
from assay.core.ports import NullRecorder
from assay.core.schema import is_for_inference, is_for_tests
from assay.core.signals import obeying
from assay.query.find import best_or_latest, checkpoint_of, describe_newer_damage, find
from assay.record.recorder import RunRecorder
from assay.script import under_way

if TYPE_CHECKING:
    from assay.engine import Process

Edit = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""Changes the config of a test, given as plain data, in place; or returns another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights to test: a checkpoint's folder, or a file of weights.

    `parent` is RUN@CHECKPOINT of a record.

    `why` says, of those of a record, why it is these that are tested.
    """

    path: Path
    parent: str = ""
    step: int = 0
    why: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of `load_weights`."""


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
        config, _ = passed(given, "data", training=False)
        return test_config(config, weights_at(weights), launch, splits=splits, infer=infer)
    if weights or overrides:
        what = "--from" if weights else overrides[0]
        raise InputError(
            f"A recorded run is tested as it was trained; `{what}` is for a config.",
            fix=f"assay test CONFIG {' '.join(overrides)} --from {address}".replace("  ", " "),
        )
    config = recorded(address, trust=trust, tell=tell)
    return test_config(config, weights_at(address), launch, splits=splits, infer=infer)


def test_with_own_weights(
    config: Config, launch: Launch, *, splits: Sequence[str] = (), infer: bool = False
) -> RunResult:
    """Evaluate a config with the weights of its `load_weights`; see `test`."""
    config, _ = passed(config, "data", training=False)
    origin = initial_weights(config.root)
    if origin.path is None:
        address = config.path or "CONFIG"
        fix = f"assay test {address} --from RUN, or a checkpoint's folder, or a .safetensors file"
        raise InputError("A config has no weights to test.", fix=f"{fix}; or give it load_weights")
    return test_config(config, _weights_of(origin), launch, splits=splits, infer=infer)


def recorded(address: str, *, trust: Trust = False, tell: Tell = lambda line: None) -> Config:
    """Return the config of a run, with the modules and settings that the run had."""
    view, _ = find(address)
    return at_home(open_saved(view), view, use="test it", trust=trust, tell=tell)


def is_config(address: str) -> bool:
    """Return True for the path of a config file, False for the address of a run."""
    return Path(address).is_file()


def weights_at(address: str) -> Weights:
    """Return the weights at RUN, RUN@CHECKPOINT, the folder of a checkpoint, or a file."""
    path = Path(address).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise InputError(f"There is no file of weights {address}.")
        return Weights(path=path)
    if (path / FILE_NAME).is_file():
        return Weights(path=path, step=read(path).step)
    view, name = find(address)
    if name:
        why = "as asked for"
    elif (name := best_or_latest(view)) == "best":
        why = f"the best by {view.best.metric}" if view.best is not None else "the best"
    else:
        why = "the newest that were kept"
    taken = checkpoint_of(view, name)
    folder, step = taken.path, read(taken.path).step
    if step < view.last_step and view.status_text != view.status:
        why += f" (step {view.last_step} was the last; {view.status_text})"
    if name == "latest" and (damage := describe_newer_damage(view, taken)):
        why += f". {damage.removesuffix('.')}"
    return Weights(path=folder, parent=f"{view.id}@{folder.name}", step=step, why=why)


def _weights_of(origin: InitialWeights) -> Weights:
    assert origin.path is not None
    step = read(origin.path).step if (origin.path / FILE_NAME).is_file() else 0
    return Weights(path=origin.path, parent=origin.parent, step=step, options=origin.options)


def test_config(
    config: Config,
    weights: Weights,
    launch: Launch,
    *,
    splits: Sequence[str] = (),
    infer: bool = False,
) -> RunResult:
    """Evaluate a config with given weights; see `test`."""
    from assay.engine.callbacks.load_to_evaluate import load_to_evaluate

    wanted = _wanted(config, splits, infer=infer)
    with open_run_scope(config, launch) as scope:
        if infer:
            scope.root = _without_loss(scope.root)
        _promise_no_engine(scope, splits_of(config.root))
        process = make_process(scope, training=False)
        report = load_to_evaluate(process, weights.path, weights.options)
        loaders = {split: make_loader(scope, split) for split in wanted}
        evaluation = _make_evaluation(scope, infer=infer)
        recorder: RunRecorder | NullRecorder = NullRecorder()
        how: dict[str, Any] = {"kind": "test", "parent": weights.parent, "device": scope.device}
        with obeying() as signals:
            try:
                with signals.held():
                    recorder = new_record(config, launch, None, **how)
                set_recorder(scope, recorder)
                keep_meta(scope, recorder)
                evaluation |= {"recorder": recorder, "step": weights.step}
                with under_way(recorder):
                    value = _evaluate(scope, process, loaders, evaluation)
            except BaseException as error:  # the result carries it, KeyboardInterrupt too
                with signals.held():
                    return failed(recorder, config, error, step=0)
            with signals.held():
                result = ended(recorder, config, "finished", "", value, step=weights.step)
    note = f"weights of {weights.parent}: {weights.why}" if weights.why else ""
    misfit = "" if report.fits else f"weights of {weights.path}: {report}"
    return replace(result, note="; ".join(filter(None, [note, misfit, result.note])))


def _promise_no_engine(scope: RunScope, splits: Iterable[str]) -> None:
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
    from assay.engine.numerics.deterministic import deterministic

    recorder = evaluation["recorder"]
    step = evaluation["step"]
    value: dict[str, float] = {}
    on = scope.sections.train.deterministic
    with entered(scope.plugins), deterministic(process.model, enabled=on):
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
    _wanted(config, (), infer=False)
    change = _edit(edit, config)
    result = train(config, launch, parent=parent)
    if result.status != "finished" or result.signal:
        return result
    try:
        derived = recorded(result.id, trust=True)  # this process has just made it
        if change is not None:
            derived, _ = passed(edited(derived, change), "data", training=False)
        return replace(result, test=test_config(derived, weights_at(result.id), launch))
    except AssayError as error:
        test = RunResult(
            record_dir=None,
            config=config,
            status="failed",
            exception=error,
            exit_code=error.exit_code,
        )
        return replace(result, test=test)


def edited(config: Config, edit: Edit) -> Config:
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


def _edit(edit: Edit | str | None, config: Config) -> Edit | None:
    from assay.build import resolve

    if not isinstance(edit, str):
        return edit
    found = resolve(edit, user_dirs=config.user_dirs, trusted=config.settings.trusted)
    if not callable(found):
        raise InputError(f"{edit} is no function that could edit a config.")
    return found  # type: ignore[no-any-return]


def _wanted(config: Config, splits: Iterable[str], *, infer: bool) -> list[str]:
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

    bus = Bus(scope.context.bind)
    handlers = [handler for plugin in scope.plugins for handler in plugin.handlers()]
    bus.extend(handler for handler in handlers if handler.event in _EVALUATION)
    return lambda event: bus.points[event].fire(step)


_EVALUATION = (Event.EVAL_BEGIN, Event.EVAL_END, Event.EVAL_STEP_BEGIN, Event.EVAL_STEP_END)
