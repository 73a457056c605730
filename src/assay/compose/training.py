"""Training of a config or of a recorded run, and the model that comes of it."""

from __future__ import annotations

import contextlib
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.callbacks import AnyRecorder, add_callbacks, tracing_handlers
from assay.compose.checks import check_and_settle, ensure_sound, refuse, sections_to_train
from assay.compose.examination import run_problems
from assay.compose.launch import Launch, RunResult
from assay.compose.prepared_run import PreparedRun, make_engine
from assay.compose.ranks import is_spread, launch_as_before, spread_config, spread_resume
from assay.compose.run_attempt import run_attempt
from assay.compose.run_record import (
    attempt_spec,
    job_of_process,
    new_record,
    project_around,
    secrets_of,
    tell_defaults,
    tell_info,
)
from assay.compose.run_scope import make_task, open_run_scope
from assay.compose.trust import Tell, Trust, home_of, open_saved
from assay.compose.weights import initial_weights
from assay.config import canonical, config_hash, dump
from assay.config.diff import KeyChange
from assay.config.loading import Config
from assay.config.secret_keys import without_secrets
from assay.config.standard_keys import sections_of
from assay.config.tree import Leaf, Table
from assay.core.errors import AssayError, CheckpointError, InputError, UnfitCheckpointError
from assay.core.events import Handler
from assay.core.facts import Saved, Warned
from assay.core.ports import NullRecorder
from assay.formats.manifest import describe_damage
from assay.formats.run_file import Attempt
from assay.query.diff import change_facts, flat, write_value
from assay.query.find import best_or_latest, checkpoint_of, describe_newer_damage, find
from assay.query.run import RunView
from assay.record.opening import start_attempt
from assay.record.outside_inputs import noting_opened_files
from assay.record.recorder import RunRecorder
from assay.store.layout import find_project, run_folders

if TYPE_CHECKING:
    from assay.engine.loop.process import Model
    from assay.formats.manifest import Checkpoint, Manifest


_DECISIVE = ("python", "machine", "packages.torch", "packages.numpy", "torch.", "variables.")
"""Keys of the environment whose change may change bits of a run."""


@noting_opened_files()
def train(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train a config, recorded from before the first step to after the last.

    A wrong config raises before anything is written; once there is a record, what is raised inside
    ends up in the result and in the record. `parent` is the run whose config this is.
    """
    from assay.build import user_code

    with user_code(config.user_dirs):  # one import for the check and the run
        return _train(config, launch, parent)


def _train(config: Config, launch: Launch, parent: str) -> RunResult:
    config, findings = check_and_settle(config, *sections_to_train(config))
    if not launch.ranks_folder:  # the process that launched the ranks has examined it
        refuse(run_problems(config, launch))
    if (
        not launch.no_file
        and not launch.ranks_folder
        and (view := find_cut_off(config)) is not None
    ):
        again = replace(launch, after=f"the job was started again: resuming {view.id}")
        return resume_run(view, "", config, again, ResumeOptions(take_over=True))
    weights = initial_weights(config.root, launch.weights_from)
    if is_spread(config, launch):
        return spread_config(config, launch, parent=parent)
    from assay.engine.parallel.nodes import check_shared

    with open_run_scope(config, launch, joins=True) as scope:
        prepared = make_engine(scope, launch)
        prepared.notes += filter(None, [prepared.fill(weights)])
        if not launch.no_file:
            check_shared(scope.ranks, project_around(config.path).runs_dir)

        def begin() -> AnyRecorder:
            recorder = new_record(config, launch, prepared, parent=weights.parent or parent)
            tell_defaults(recorder, config, findings, prepared)
            return recorder

        return run_attempt(prepared, begin, config, launch)


def _tell_nobody(line: str) -> None:
    """Print nothing."""


def rerun(
    address: str,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    *,
    trust: Trust = False,
    tell: Tell = _tell_nobody,
) -> RunResult:
    """Train the config of a recorded run, with changed keys, as a new run that has it as parent.

    InputError when the run was not made here and `trust` does not allow what its config says.
    """
    view, name = find(address)
    if name:
        raise InputError(
            "A run is trained again from its beginning.",
            fix=f"assay resume {address}, or leave out @{name}",
        )
    config = config_of_run(address, overrides, use="train it again", trust=trust, tell=tell)
    return train(config, launch or Launch(), parent=view.id)


def config_of_run(
    address: str,
    overrides: Sequence[str] = (),
    *,
    use: str,
    trust: Trust = False,
    tell: Tell = _tell_nobody,
) -> Config:
    """Return the config of a recorded run, with changed keys; `use` completes "to ... it".

    InputError for a run without a config, and for one that was not made here unless `trust` allows
    what its config says.
    """
    view, _ = find(address)
    refuse_without_config(view, fix="run it again")
    return open_saved(view, overrides, use=use, trust=trust, tell=tell)


def resume(
    address: str,
    overrides: Sequence[str] = (),
    launch: Launch | None = None,
    *,
    take_over: bool = False,
    verify: bool = True,
    force: bool = False,
    trust: Trust = False,
    tell: Tell = _tell_nobody,
) -> RunResult:
    """Resume a recorded run from its newest or named checkpoint, under its id, as a new attempt.

    A newest checkpoint that cannot be read is skipped with a warning. Without `verify` no digest is
    checked. InputError for another seed or other data than the run has, unless `force`; and for a
    run that was not made here, unless `trust` allows what its config says. A `launch` without ranks
    and device takes those that the run had.
    """
    view, name = find(address)
    if view.kind != "train":
        raise InputError(f"The run {view.id} is a test: there is nothing to resume.")
    refuse_without_config(view, fix=f'run it again, with assay.start(..., resume="{view.id}")')
    saved = open_saved(view, overrides, use="resume it", trust=trust, tell=tell)
    options = ResumeOptions(
        take_over=take_over or is_cut_off(view), verify=verify, force=force, is_trusted=True
    )
    launch = launch_as_before(view, saved, launch or Launch())
    return check_and_resume(view, name, saved, launch, options)


def check_and_resume(
    view: RunView, name: str, config: Config, launch: Launch, options: ResumeOptions
) -> RunResult:
    """Resume a run from its checkpoint `name` by a config that nobody has checked."""
    from assay.build import user_code

    with user_code(config.user_dirs):
        return resume_run(view, name, ensure_sound(config), launch, options)


def resume_or_train(config: Config, launch: Launch, *, tell: Tell = _tell_nobody) -> RunResult:
    """Resume the newest run of this config that neither finished nor runs; else train anew."""
    if launch.no_file or launch.weights_from:
        option = "--no-file" if launch.no_file else "--from"
        raise InputError(f"`--resume auto` resumes a recorded run; {option} leaves records aside.")
    from assay.build import user_code

    with user_code(config.user_dirs):
        config = ensure_sound(config)
        view = find_unfinished(config)
        if view is None:
            tell("nothing to resume: a new run")
            return train(config, launch)
        tell(f"resuming {view.id} ({_describe_end(view)})")
        return resume_run(view, "", config, launch, ResumeOptions())


def _describe_end(view: RunView) -> str:
    if view.status_text != view.status:
        return view.status_text
    return f"{view.status} at step {view.last_step:,}"


def listeners(config: Config) -> list[Handler]:
    """Return the handlers of a config's run in the order of their calls; build, but run nothing."""
    config = ensure_sound(config)
    with open_run_scope(config, Launch()) as scope:
        # Not bound: what a handler asks for may be there only once the plugins are entered.
        prepared = make_engine(
            scope, Launch(), saver_folder=Path("checkpoints"), bind=lambda handler: handler
        )
        bus = prepared.engine.bus
        add_callbacks(prepared, NullRecorder(), Launch(), saving=True)
        bus.extend(tracing_handlers(prepared, Launch(), lambda data: None))
        bus.extend(handler for plugin in scope.plugins for handler in plugin.handlers())
        return bus.order()


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=5)


def load_model(address: str, checkpoint: str = "", *, trust: bool = False) -> Model:
    """Return the model of a recorded run with the weights of a checkpoint, in eval mode.

    Without a checkpoint it is the best if the run kept one, else the newest. The model is built
    from the record. A run that was not made here needs `trust`: its config says what is built, with
    the modules of the working tree.
    """
    from assay.engine.callbacks.ema import evaluated_weights
    from assay.engine.checkpoint.weights import load_model_state

    view, named = find(address)
    name = named or checkpoint or best_or_latest(view)
    checkpoint_taken = checkpoint_of(view, name)
    if name == "latest" and (damage := describe_newer_damage(view, checkpoint_taken)):
        warnings.warn(damage, stacklevel=2)
    config = open_saved(view, use="build its model", trust=trust, tell=_warn, part="model")
    with open_run_scope(config, Launch(device="cpu"), part="model") as scope:
        make_task(scope)
        model = scope.build("model")
        load_model_state(model, evaluated_weights(checkpoint_taken.path), resizes=True)
    model.eval()
    return model  # type: ignore[no-any-return]


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


@noting_opened_files()
def resume_run(
    view: RunView, name: str, config: Config, launch: Launch, options: ResumeOptions
) -> RunResult:
    """Train a new attempt of a run from its checkpoint `name`, "" for the newest."""
    from assay.config import changed_keys

    old = view.config_tree
    changes = changed_keys(old, without_secrets(config.root))
    changed = [change.key for change in changes]
    if not options.force:
        refuse_other_data(view.id, old, config.root, changes)
        if not name:
            refuse_without_checkpoints(view)
    if is_spread(config, launch):
        return spread_resume(config, launch, view.folder.path, name, **asdict(options))
    from assay.engine.parallel.nodes import check_shared

    with open_run_scope(config, launch, joins=True, resumes=view.id) as scope:
        prepared = make_engine(scope, launch, saver_folder=view.folder.checkpoints)
        prepared.engine.ensure_ready()  # before anything is loaded into it
        facts = change_facts(changes, 0)
        prepared.notes += [f"changed: {it.what}  {it.before} -> {it.after}" for it in facts]
        start = _restore(prepared, view, name, changed, verify=options.verify)
        if start is None:
            # Killed before its first checkpoint: it begins as it did then.
            start = _Start()
            weights = initial_weights(config.root, launch.weights_from or _weights_from(view))
            prepared.notes += filter(None, [prepared.fill(weights)])
        _refuse_finished(prepared, view, start.step)
        prepared.engine.ensure_ready()  # what is refused leaves the record as it was
        check_shared(scope.ranks, view.folder.path)
        if scope.ranks is not None:
            scope.ranks.barrier()  # all have read what rank 0 now moves
        if not scope.is_first:
            return run_attempt(prepared, NullRecorder, config, launch)

        def begin() -> RunRecorder:
            return _begin(prepared, view, start, config, launch, options, changes)

        return run_attempt(prepared, begin, config, launch)


def _restore(
    prepared: PreparedRun, view: RunView, name: str, changed: Sequence[str], *, verify: bool
) -> _Start | None:
    """Load a checkpoint into the engine; None where the run has none."""
    from assay.engine.loop.engine_state import is_of_engine, restore_changed, share_of

    saver = prepared.saver()
    complete, skipped = saver.complete()
    if not complete and not name:
        return None
    manifest: Manifest
    share = share_of(prepared.engine)
    if name:
        manifest = saver.find(name)
        parts = saver.load(name, verify=verify, share=share)
    else:
        manifest, parts, skipped = saver.newest(verify=verify, share=share)
    try:
        restore_changed(prepared.engine, parts, changed)
    except CheckpointError as error:
        raise UnfitCheckpointError(error.what, where=error.where, fix=error.fix) from error
    prepared.loaded = {name: part for name, part in parts.items() if not is_of_engine(name)}
    prepared.expected = parts if verify and not changed else None
    return _Start(step=manifest.step, checkpoint=manifest.name, skipped=skipped)


def _refuse_finished(prepared: PreparedRun, view: RunView, step: int) -> None:
    from assay.engine.loop.bounds import has_ended

    if view.status == "finished" and has_ended(prepared.engine.state):
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
    changes: Sequence[KeyChange],
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
            config_toml=config_toml if changes else None,
            seeds={"seed": engine.seed},
            devices=[str(engine.device)],
        ),
        from_step=start.step,
        project=project,
        checkpoint=start.checkpoint,
        changed=change_facts(changes, start.step),
        take_over=options.take_over,
        is_trusted=options.is_trusted,
    )
    tell_info(recorder, config_toml)
    if len(recorder.run.attempts) > 1:
        prepared.notes += describe_differences(*recorder.run.attempts[-2:])
    for each in start.skipped:
        message = f"{each.name} is no checkpoint: {each.why}. The run resumes at step {start.step}."
        recorder.tell(Warned(message=message, step=start.step))
    prepared.saver(attempt=recorder.run.newest.number).set_aside(start.step)
    return recorder


def _weights_from(view: RunView) -> str:
    """Return the `--from` of the first attempt."""
    attempts = view.file.attempts
    return str(attempts[0].launch.get("from", "")) if attempts else ""


def find_cut_off(config: Config) -> RunView | None:
    """Return the unfinished run of this config that this job began before it was restarted."""
    job, restarts = job_of_process()
    return find_unfinished(config, job=job) if job and restarts else None


def is_cut_off(view: RunView) -> bool:
    """Return True if this job wrote the run before its restart, so that nobody writes it now."""
    job, restarts = job_of_process()
    return bool(job and restarts and view.file.job == job)


def find_unfinished(config: Config, *, job: str = "") -> RunView | None:
    """Return the newest run with this config's hash and tag that neither finished nor runs.

    With `job` the newest that is of this job and not finished: it cannot be running. `config` has
    passed both stages of the check: the hash needs the names that these find.
    """
    start = config.path.resolve().parent if config.path is not None else None
    project = find_project(start) if start is not None else None
    if project is None:
        return None
    wanted = config_hash(config.named or config.root)
    tag = sections_of(config.root).tag
    unfinished = []
    for folder in run_folders(project):
        with contextlib.suppress(AssayError):  # a record that cannot be read is none to go on with
            view = RunView(folder)
            file = view.file
            if (
                file.kind != "train"
                or file.tag != tag
                or not file.attempts
                or file.newest.config_hash != wanted
            ):
                continue
            if job and file.job != job:
                continue
            if view.status not in (("finished",) if job else ("finished", "running")):
                unfinished.append(view)
    return max(unfinished, key=lambda view: view.file.created_ns, default=None)


def refuse_without_config(view: RunView, *, fix: str = "") -> None:
    """Raise InputError for a run without a config to train: recorded by a script or imported."""
    file = view.file
    if view.has_config_to_train:
        return
    if view.origin:
        what = f"The run {view.id} was imported from {view.origin.get('from', 'another tracker')}"
        raise InputError(f"{what}: there is no config to train.", where=str(view.path))
    started = f" It was started by: {' '.join(file.newest.command)}" if file.attempts else ""
    what = f"The run {view.id} was recorded by a script: there is no config to train.{started}"
    raise InputError(what, where=str(view.path), fix=fix)


def refuse_without_checkpoints(view: RunView) -> None:
    """Raise InputError for a run that would begin anew, because its checkpoints were deleted."""
    if any(
        each.manifest is not None and each.manifest.kind != "model" for each in view.checkpoints
    ):
        return
    if view.status != "finished" and not any(
        isinstance(timed.fact, Saved) for timed in view.events
    ):
        return  # it was ended before its first checkpoint
    what = (
        f"The run {view.id} ({view.status_text}, step {view.last_step}) has no checkpoint any more"
    )
    if damage := describe_damage(view.all_checkpoints):
        what = f"No checkpoint of the run {view.id} can be read. {damage.removesuffix('.')}"
    raise InputError(
        f"{what}: it would be trained anew from its beginning.",
        where=str(view.folder.checkpoints),
        fix=f"assay rerun {view.id} trains it as a new run; assay resume {view.id} --force trains"
        " it over this one",
    )


def refuse_other_data(run_id: str, old: Table, new: Table, changes: Sequence[KeyChange]) -> None:
    """Raise InputError when a run would be resumed with another seed or other data.

    Batches of another size are the same samples in the same order.
    """
    if _canonical_data(old) == _canonical_data(new):
        return
    kept = [each for each in changes if each.key == "seed" or each.key.startswith("data.")]
    keys = ", ".join(each.key for each in kept)
    words = [each for each in map(_as_override, kept) if each]
    raise InputError(
        f"The run {run_id} was trained with another {keys}: its steps would see the data of both.",
        where="; ".join(f"{it.what} {it.before} -> {it.after}" for it in change_facts(kept, 0)),
        fix=f"`{shlex.join(['assay', 'rerun', run_id, *words])}` trains a new run; --force resumes"
        " all the same",
    )


def _as_override(change: KeyChange) -> str:
    """Return the override that makes a change, "" for one that is no scalar."""
    return f"{change.key}={write_value(change.after)}" if isinstance(change.after, Leaf) else ""


def _canonical_data(root: Table) -> str:
    """Return the seed and the training data in canonical form."""
    kept = {name: node for name, node in root.items.items() if name in ("seed", "data")}
    data = kept.get("data")
    if isinstance(data, Table) and isinstance(train := data.items.get("train"), Table):
        sizes = ("batch_size", "micro_batch_size")
        inside = {name: node for name, node in train.items.items() if name not in sizes}
        kept["data"] = Table({**data.items, "train": Table(inside, train.origin)}, data.origin)
    return canonical(Table(kept, root.origin))


def describe_differences(before: Attempt, now: Attempt) -> list[str]:
    """Return lines on code and environment that changed since the attempt before."""
    lines = []
    if now.changed_code:
        lines.append(f"code changed: {'  '.join(now.changed_code)}")
    a, b = (dict(flat(attempt.environment)) for attempt in (before, now))
    for key in dict.fromkeys([*a, *b]):
        if key.startswith(_DECISIVE) and a.get(key) != b.get(key):
            lines.append(
                f"environment changed: {key}  {a.get(key, 'not set')} -> {b.get(key, 'not set')}"
            )
    return lines
