"""Further attempt of a recorded run, from one of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from assay.compose.initial_weights import initial_weights
from assay.compose.launch_ranks import check_shared, is_spread, spread_resume
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.make_engine import PreparedRun, make_engine
from assay.compose.run_attempt import run_attempt
from assay.compose.run_record import attempt_spec, project_around, secrets_of, tell_info
from assay.compose.run_scope import open_run_scope
from assay.compose.trust import home_of
from assay.compose.unfinished import (
    refuse_other_data,
    refuse_without_checkpoints,
    told_differences,
)
from assay.config import dump
from assay.config.loading import Config
from assay.config.secret_keys import without_secrets
from assay.core.errors import InputError
from assay.core.event_log import Warned
from assay.core.ports import NullRecorder
from assay.query.run import RunView
from assay.record.opening import start_attempt
from assay.record.recorder import RunRecorder

if TYPE_CHECKING:
    from assay.config.diff import KeyChange
    from assay.core.manifest import Checkpoint, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """Permissions and checks of a resume.

    `take_over`: even if another process seems to write the run. `verify`: check the digests of the
    checkpoint. `force`: even with another seed or other data. `is_trusted`: a person has allowed a
    record that was not made here; a config of one's own may load its checkpoints, which are data,
    without that.
    """

    take_over: bool = False
    verify: bool = True
    force: bool = False
    is_trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Step and checkpoint at which an attempt begins, and checkpoints that could not be read."""

    step: int = 0
    checkpoint: str = ""
    skipped: Sequence[Checkpoint] = ()


def resume_run(
    view: RunView, name: str, config: Config, launch: Launch, options: ResumeOptions
) -> RunResult:
    """Train a new attempt of a run from its checkpoint `name`, "" for the newest."""
    from assay.config import changed_keys

    old = view.config
    changes = changed_keys(old, without_secrets(config.root))
    changed = [change.key for change in changes]
    if not options.force:
        refuse_other_data(view.id, old, config.root, changes)
        if not name:
            refuse_without_checkpoints(view)
    if is_spread(config, launch):
        return spread_resume(config, launch, view.folder.path, name, **asdict(options))
    with open_run_scope(config, launch, joins=True, resumes=view.id) as scope:
        prepared = make_engine(scope, launch, saver_folder=view.folder.checkpoints)
        prepared.notes += map(_describe_change, changes)
        start = _restore(prepared, view, name, changed, verify=options.verify)
        if start is None:
            # Killed before its first checkpoint: it begins as it did then.
            start = _Start()
            weights = initial_weights(config.root, launch.weights_from or _weights_from(view))
            prepared.notes += filter(None, [weights.fill(prepared.engine.process.model)])
        _refuse_finished(prepared, view, start.step)
        check_shared(scope, view.folder.path)
        if scope.ranks is not None:
            scope.ranks.barrier()  # all have read what rank 0 now moves
        if not scope.is_first:
            return run_attempt(prepared, NullRecorder, config, launch)

        def begin() -> RunRecorder:
            return _begin(prepared, view, start, config, launch, options, changed)

        return run_attempt(prepared, begin, config, launch)


def _describe_change(change: KeyChange) -> str:
    from assay.query.diff import written

    before, after = (written(value) or "not given" for value in (change.before, change.after))
    return f"changed: {change.key}  {before} -> {after}"


def _restore(
    prepared: PreparedRun, view: RunView, name: str, changed: Sequence[str], *, verify: bool
) -> _Start | None:
    """Load a checkpoint into the engine; None where the run has none."""
    from assay.engine.loop.engine_state import is_of_engine

    saver = prepared.saver()
    found, skipped = saver.complete()
    if not found and not name:
        return None
    manifest: Manifest
    if name:
        manifest = saver.find(name)
        parts = saver.load(name, verify=verify)
    else:
        manifest, parts, skipped = saver.newest(verify=verify)
    _restore_engine(prepared, parts, changed)
    prepared.loaded = {name: part for name, part in parts.items() if not is_of_engine(name)}
    prepared.expected = parts if verify and not changed else None
    return _Start(step=manifest.step, checkpoint=manifest.name, skipped=skipped)


def _restore_engine(
    prepared: PreparedRun, parts: Mapping[str, Any], changed: Sequence[str]
) -> None:
    """Restore the engine, but keep the settings of optimizers that the user has changed since."""
    from assay.engine.checkpoint.optimizer_state import put_settings, settings_of
    from assay.engine.loop.engine_state import restore

    optimizers = list(prepared.engine.process.backward.optimizers.values())
    asked = [settings_of(each) for each in optimizers]
    # A buffer of another size is no grown one where the model itself is another.
    is_same_model = not any(key.partition(".")[0] == "model" for key in changed)
    restore(prepared.engine, parts, resizes=is_same_model)
    names = {key.rpartition(".")[2] for key in changed if key.startswith("optimizer.")}
    for optimizer, settings in zip(optimizers, asked, strict=True):
        put_settings(optimizer, settings, names)


def _refuse_finished(prepared: PreparedRun, view: RunView, step: int) -> None:
    from assay.engine.loop.bounds import is_done

    if view.status == "finished" and is_done(prepared.engine.state):
        raise InputError(
            f"The run {view.id} finished at step {step}: there is nothing left to do.",
            fix=f"Train longer: assay resume {view.id} train.epochs=...",
        )


def _begin(
    prepared: PreparedRun,
    view: RunView,
    start: _Start,
    config: Config,
    launch: Launch,
    options: ResumeOptions,
    changed: Sequence[str],
) -> RunRecorder:
    """Open the record for a new attempt, and log what is different from the attempt before."""
    secrets = secrets_of(config)
    config_toml = dump(without_secrets(config.root, secrets), with_origins=True)
    project = home_of(view) or project_around(None)
    engine = prepared.engine
    spec = attempt_spec(config, launch, project, secrets, engine)
    recorder = start_attempt(
        view.folder,
        replace(
            spec,
            config_toml=config_toml if changed else None,
            seeds={"seed": engine.seed},
            devices=[str(engine.device)],
        ),
        from_step=start.step,
        project=project,
        checkpoint=start.checkpoint,
        changed=changed,
        take_over=options.take_over,
        is_trusted=options.is_trusted,
    )
    tell_info(recorder, config_toml)
    if len(recorder.run.attempts) > 1:
        prepared.notes += told_differences(*recorder.run.attempts[-2:])
    for each in start.skipped:
        message = f"{each.name} is no checkpoint: {each.why}. The run resumes at step {start.step}."
        recorder.tell(Warned(message=message, step=start.step))
    prepared.saver(attempt=recorder.run.newest.number).set_aside(start.step)
    return recorder


def _weights_from(view: RunView) -> str:
    """Return the `--from` of the first attempt."""
    attempts = view.file.attempts
    return str(attempts[0].launch.get("from", "")) if attempts else ""
