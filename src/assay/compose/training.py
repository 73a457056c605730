"""One run: trained, gone on with, or only looked at; and the model that came of it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.add_callbacks import add_callbacks
from assay.compose.checks import passed, sound
from assay.compose.initial_weights import initial_weights
from assay.compose.launch_ranks import (
    ECHO_S,
    cause_of,
    check_shared,
    end_facts,
    is_ending,
    is_spread,
    spread_config,
    spread_resume,
    tell_folder,
)
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.make_engine import PreparedRun, make_engine
from assay.compose.rank_folder import EndOrder
from assay.compose.run_record import (
    code_outside,
    ended,
    failed,
    is_fused,
    log_formats,
    new_record,
    project_around,
    recorded_of,
    secrets_of,
    set_recorder,
    tell_defaults,
    tell_info,
)
from assay.compose.run_scope import RunScope, open_run_scope
from assay.compose.tasks import keep_meta, make_task
from assay.compose.tracing import traced, tracing_handlers
from assay.compose.trust import Tell, Trust, at_home, home_of
from assay.compose.unfinished import (
    cut_off,
    is_cut_off,
    refuse_other_data,
    refuse_without_checkpoints,
    refuse_without_config,
    told_differences,
    unfinished,
)
from assay.config import config_hash, dump, load, open_config, seedless_hash
from assay.config.loading import Config
from assay.config.secret_keys import without_secrets
from assay.config.tree import get_at
from assay.core.errors import CheckpointError, InputError, RankError
from assay.core.event_log import EndStatus, Warned
from assay.core.events import Handler
from assay.core.ports import NullRecorder
from assay.core.run_file import UNSAVED
from assay.core.signals import heard_line, stopping
from assay.core.terminal import for_terminal
from assay.query.find import find, find_checkpoint
from assay.query.run import RunView
from assay.record.recorder import RunRecorder

if TYPE_CHECKING:
    from assay.engine.loop.process import Model
    from assay.engine.loop.state import State


def train(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train what a config asks for, recorded from before the first step to after the last.

    A wrong config raises before anything is written; once there is a record, what is raised inside
    ends up in the result (and in the record). `parent` is the run whose config this is.
    """
    has_own = (
        get_at(config.root, ("backward", "type")) is not None
    )  # which may well make its optimizers itself
    config, found = passed(config, *(() if has_own else ("optimizer",)), "data", "train")
    if not launch.no_file and not launch.ranks_folder and (view := cut_off(config)) is not None:
        again = replace(launch, after=f"the job was started again: goes on with {view.id}")
        return resume_run(view, "", config, again, take_over=True, verify=True, force=False)
    origin = initial_weights(config.root, launch.weights_from)
    if is_spread(config, launch):
        return spread_config(config, launch, parent=parent)
    with open_run_scope(config, launch, joins=True) as scope:
        prepared = make_engine(scope, launch)
        prepared.notes += filter(None, [origin.fill(prepared.engine.process.model)])
        if not launch.no_file:
            check_shared(scope, project_around(config.path).runs_dir)

        def begin() -> RunRecorder | NullRecorder:
            recorder = new_record(config, launch, prepared, parent=origin.parent or parent)
            tell_defaults(recorder, config, found, prepared)
            return recorder

        return _train(prepared, begin, config, launch)


def _train(
    prepared: PreparedRun,
    begin: Callable[[], RunRecorder | NullRecorder],
    config: Config,
    launch: Launch,
) -> RunResult:
    """Train what is prepared, with the record that `begin` opens; whatever happens, that record
    gets its end."""
    engine, scope = prepared.engine, prepared.scope
    stop = engine.state.stop

    ranks = scope.rank_folder
    recorder: RunRecorder | NullRecorder = NullRecorder()

    def say(line: str) -> None:
        # Ranks that are left when one has failed are ended by a signal that nobody has asked for;
        # and
        # what the launcher heard is said from the thread that hears of it.
        if not (ranks is not None and ranks.heard()) and not is_ending(ranks):
            prepared.say(line)

    def end(order: EndOrder) -> None:
        """End the run from another thread: the main one hangs."""
        _end_by_order(order, recorder, config, launch, scope, step=engine.state.step)

    with ExitStack() as stack:
        if ranks is not None:
            stack.enter_context(
                ranks.under_orders(end, lambda number: prepared.say(heard_line(number)))
            )
        signals = stack.enter_context(
            stopping(stop, say=say, echo_s=ECHO_S if ranks is not None else 0.0)
        )
        try:
            with signals.held():  # a record that is half begun could not be ended
                recorder = begin()
            state = _run(prepared, recorder, launch)
        except BaseException as error:
            with signals.held():
                scope.tell_ending()
                cause = cause_of(error, ranks)
                result = failed(recorder, config, cause, step=engine.state.step)
        else:
            status: EndStatus = "stopped" if stop.interrupts else "finished"
            note = "" if stop.interrupts else _unsaved(prepared, state.step)
            reason = "; ".join(filter(None, [note, stop.reason]))
            with signals.held():
                scope.tell_ending()
                result = ended(recorder, config, status, reason, state.metrics, step=state.step)
            if stop.interrupts and stop.signal:
                result = replace(result, exit_code=128 + stop.signal)
            elif note:
                result = replace(
                    result,
                    exit_code=CheckpointError.exit_code,
                    note="; ".join(filter(None, [note, result.note])),
                )
            result = replace(result, is_first=scope.is_first)
    return replace(result, signal=signals.heard[0] if signals.heard else stop.signal)


def _unsaved(prepared: PreparedRun, step: int) -> str:
    """Return a note on the final weights, if they were to be kept and are not."""
    if prepared.save is None or not prepared.scope.is_first:
        return ""
    why = prepared.save.unsaved(step)
    return f"{UNSAVED}: {why}" if why else ""


def _end_by_order(
    order: EndOrder,
    recorder: RunRecorder | NullRecorder,
    config: Config,
    launch: Launch,
    scope: RunScope,
    *,
    step: int,
) -> None:
    """End the record as an order says, tell it, and end the process."""
    status: EndStatus = "stopped" if order.signal else "failed"
    if isinstance(recorder, RunRecorder):
        recorder.logger.info("%s", order.cause)
    result = ended(recorder, config, status, order.reason, {}, step=step)
    if not launch.ranks_folder and scope.is_first:  # nobody else tells the person
        print(for_terminal(f"error: {order.cause}", color=False), file=sys.stderr, flush=True)
    if scope.rank_folder is not None:
        code = 128 + order.signal if order.signal else RankError.exit_code
        facts = end_facts(replace(result, exit_code=code), scope.rank)
        scope.rank_folder.tell(scope.rank, {**facts, "error": "" if order.signal else order.cause})
    os._exit(
        0 if order.signal else RankError.exit_code
    )  # nothing else ends a main thread that hangs


def _run(prepared: PreparedRun, recorder: RunRecorder | NullRecorder, launch: Launch) -> State:
    """Let the engine run, with all that listens to it."""
    from assay.build import entered
    from assay.engine.loop.engine_state import restore_listeners, unlike
    from assay.engine.numerics.deterministic import deterministic

    engine, scope = prepared.engine, prepared.scope
    engine.recorder = recorder
    set_recorder(scope, recorder)
    keep_meta(scope, recorder)
    if launch.ranks_folder:
        tell_folder(
            launch, scope, recorder.folder.path if isinstance(recorder, RunRecorder) else None
        )
    add_callbacks(prepared, recorder, launch, saving=_is_saving(prepared, recorder))
    on = scope.sections.train.deterministic
    model = engine.process.model
    with (
        traced(prepared, recorder, launch),
        entered(scope.plugins),
        deterministic(model, enabled=on),
    ):
        engine.bus.extend(handler for plugin in scope.plugins for handler in plugin.handlers())
        if prepared.loaded is not None:
            restore_listeners(engine, prepared.loaded)
            prepared.loaded = None
        if prepared.expected is not None:
            for part in unlike(engine, prepared.expected):
                message = f"{part} took its state from the checkpoint and has another now: resume is not exact."
                recorder.tell(Warned(message=message, step=engine.state.step))
            prepared.expected = None
        return engine.run()


def _is_saving(prepared: PreparedRun, recorder: RunRecorder | NullRecorder) -> bool:
    """Whether this process writes checkpoints: the one that records, or all where none has the
    whole model."""
    mesh = prepared.scope.mesh
    if mesh is None or mesh.writers is None:
        return isinstance(recorder, RunRecorder)
    folder = mesh.writers.gather(
        str(prepared.saver_folder or "") if isinstance(recorder, RunRecorder) else ""
    )[0]
    prepared.saver_folder = Path(folder) if folder else None
    return bool(folder)


def _in_silence(line: str) -> None:
    """Tell nobody."""


def rerun(
    address: str,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    *,
    trust: Trust = False,
    tell: Tell = _in_silence,
) -> RunResult:
    """Train the config of a recorded run once more, with keys changed, as a new run whose parent it
    is.

    InputError when the run was not made here and `trust` does not allow what its config says.
    """
    view, name = find(address)
    if name:
        raise InputError(
            "A run is trained again from its beginning.",
            fix=f"assay resume {address}, or leave out @{name}",
        )
    refuse_without_config(view, fix="run it again")
    config = open_config(view.saved_config, overrides, user_dir=None)
    config = at_home(config, view, use="train it again", trust=trust, tell=tell)
    return train(config, launch or Launch(), parent=view.id)


def resume(
    address: str,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    *,
    take_over: bool = False,
    verify: bool = True,
    force: bool = False,
    trust: Trust = False,
    tell: Tell = _in_silence,
) -> RunResult:
    """Go on with a recorded run from its newest (or the named) checkpoint, under the same id, as a
    new attempt.

    When the newest cannot be read it is the one before, and that is said. Without `verify` no
    digest is looked at. InputError for another seed or other data than the run has, unless `force`;
    and for a run that was not made here, unless `trust` allows what its config says.
    """
    view, name = find(address)
    if view.kind != "train":
        raise InputError(f"The run {view.id} is a test: there is nothing to go on with.")
    refuse_without_config(view, fix=f'run it again, with assay.start(..., resume="{view.id}")')
    saved = open_config(view.saved_config, overrides, user_dir=None)
    config = sound(at_home(saved, view, use="resume it", trust=trust, tell=tell))
    how = {
        "take_over": take_over or is_cut_off(view),
        "verify": verify,
        "force": force,
        "is_trusted": True,
    }
    return resume_run(view, name, config, launch or Launch(), **how)


def resume_or_train(
    config: Config, launch: Launch, *, tell: Callable[[str], None] = lambda line: None
) -> RunResult:
    """Go on with the newest run of this config that did not finish and is not running; train it
    anew without one."""
    if launch.no_file or launch.weights_from:
        given = "--no-file" if launch.no_file else "--from"
        raise InputError(
            f"`--resume auto` goes on with what was recorded; {given} leaves that aside."
        )
    config = sound(config)
    view = unfinished(config)
    if view is None:
        tell("nothing to go on with: a new run")
        return train(config, launch)
    tell(f"goes on with {view.id}, {view.status_text}")
    return resume_run(view, "", config, launch, take_over=False, verify=True, force=False)


def resume_run(
    view: RunView,
    name: str,
    config: Config,
    launch: Launch,
    *,
    take_over: bool,
    verify: bool,
    force: bool,
    is_trusted: bool = False,
) -> RunResult:
    """A new attempt of a run, with this config, from its checkpoint of that name, "" for the
    newest.

    `is_trusted`: somebody was asked about a record that was not made here. A config of one's own
    can be trained on from its checkpoints, which are data, without that.
    """
    from assay.config import changed_keys
    from assay.engine.checkpoint.optimizer_state import put_settings, settings_of
    from assay.engine.loop.engine_state import is_of_engine, restore
    from assay.query.diff import written

    old = load(view.folder.config_toml)
    project = home_of(view) or project_around(None)
    changes = changed_keys(old.root, without_secrets(config.root))
    changed = [change.key for change in changes]
    if not force:
        refuse_other_data(view.id, old.root, config.root, changed)
        if not name:
            refuse_without_checkpoints(view)
    if is_spread(config, launch):
        how = {"take_over": take_over, "verify": verify, "force": force, "is_trusted": is_trusted}
        return spread_resume(config, launch, view.folder.path, name, **how)
    with open_run_scope(config, launch, joins=True, resumes=view.id) as scope:
        prepared = make_engine(scope, launch, saver_folder=view.folder.checkpoints)
        prepared.notes += [
            f"changed: {each.key}  {written(each.before) or 'not given'} -> {written(each.after) or 'not given'}"
            for each in changes
        ]
        saver = prepared.saver()
        found, skipped = saver.complete()
        step, checkpoint = 0, ""
        if found or name:
            if name:
                manifest, parts = saver.find(name), saver.load(name, verify=verify)
            else:
                manifest, parts, skipped = saver.newest(verify=verify)
            step, checkpoint = manifest.step, manifest.name
            optimizers = list(prepared.engine.process.backward.optimizers.values())
            asked = [settings_of(each) for each in optimizers]
            restore(prepared.engine, parts)
            # The checkpoint brings the settings of then; what was changed since is what the user
            # wants now.
            for each, settings in zip(optimizers, asked, strict=True):
                put_settings(
                    each,
                    settings,
                    {key.rpartition(".")[2] for key in changed if key.startswith("optimizer.")},
                )
            prepared.loaded = {name: part for name, part in parts.items() if not is_of_engine(name)}
            prepared.expected = parts if verify and not changed else None
        else:  # it was killed before its first checkpoint, and begins as it did then
            origin = initial_weights(config.root, launch.weights_from or _weights_from(view))
            prepared.notes += filter(None, [origin.fill(prepared.engine.process.model)])
        if view.status == "finished" and prepared.engine.state.step == (
            prepared.engine.state.max_steps or -1
        ):
            raise InputError(
                f"The run {view.id} finished at step {step}: there is nothing left to do.",
                fix=f"Train longer: assay resume {view.id} train.epochs=...",
            )
        check_shared(scope, view.folder.path)
        if scope.ranks is not None:
            scope.ranks.barrier()  # all have read what the first one now moves
        if not scope.is_first:
            return _train(prepared, NullRecorder, config, launch)
        secrets = secrets_of(config)
        config_toml = dump(without_secrets(config.root, secrets))

        def begin() -> RunRecorder:
            recorder = RunRecorder.resume(
                view.folder,
                from_step=step,
                project=project,
                checkpoint=checkpoint,
                changed=changed,
                config_toml=config_toml if changed else None,
                config_files=config.files,
                config_hash=config_hash(config.named or config.root),
                seedless_hash=seedless_hash(config.named or config.root),
                launch={
                    **launch.recorded(),
                    **recorded_of(config),
                    "fused": is_fused(prepared.engine),
                },
                devices=[str(prepared.engine.device)],
                seeds={"seed": prepared.engine.seed},
                command=launch.command,
                code_dirs=code_outside(config.user_dirs, project),
                keep_output=True,
                **log_formats(config),
                take_over=take_over,
                is_trusted=is_trusted,
                secrets=secrets,
            )
            tell_info(recorder, config_toml)
            if len(recorder.run.attempts) > 1:
                prepared.notes += told_differences(*recorder.run.attempts[-2:])
            for each in skipped:
                message = (
                    f"{each.name} is no checkpoint: {each.why}. The run goes on from step {step}."
                )
                recorder.tell(Warned(message=message, step=step))
            prepared.saver(attempt=recorder.run.newest.number).set_aside(step)
            return recorder

        return _train(prepared, begin, config, launch)


def _weights_from(view: RunView) -> str:
    """What a run was begun with: `--from`."""
    attempts = view.file.attempts
    return str(attempts[0].launch.get("from", "")) if attempts else ""


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def listeners(config: Config) -> list[Handler]:
    """Who listens to what while the config runs, in order. Builds everything and runs nothing."""
    config = sound(config)
    with open_run_scope(config, Launch()) as scope:
        # Not bound: what a handler asks for may be there only once the plugins are entered.
        prepared = make_engine(
            scope, Launch(), saver_folder=Path("checkpoints"), bind=lambda handler: handler
        )
        add_callbacks(prepared, NullRecorder(), Launch(), saving=True)
        prepared.engine.bus.extend(tracing_handlers(prepared, Launch(), lambda data: None))
        prepared.engine.bus.extend(
            handler for plugin in scope.plugins for handler in plugin.handlers()
        )
        return prepared.engine.bus.order()


def load_model(address: str, checkpoint: str = "best", *, trust: bool = False) -> Model:
    """The model of a recorded run, built from its record, with the weights of a checkpoint, in eval
    mode.

    A run that was not made here needs `trust`: its config says what is built, with the modules of
    the working tree.
    """
    from assay.engine.callbacks.ema import evaluated_weights
    from assay.engine.checkpoint.weights import load_model_state

    view, folder = find_checkpoint(address if "@" in address else f"{address}@{checkpoint}")
    saved = load(view.saved_config)
    config = at_home(saved, view, use="build its model", trust=trust, tell=_warn, part="model")
    with open_run_scope(config, Launch(device="cpu")) as scope:
        make_task(scope)
        model = scope.build("model")
        load_model_state(model, evaluated_weights(folder))
    model.eval()
    return model  # type: ignore[no-any-return]
