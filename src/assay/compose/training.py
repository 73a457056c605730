"""Training of a config or of a recorded run, and the model that comes of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.add_callbacks import AnyRecorder, add_callbacks
from assay.compose.checks import needed_to_train, passed, sound
from assay.compose.initial_weights import initial_weights
from assay.compose.launch_ranks import check_shared, is_spread, spread_config
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.make_engine import make_engine
from assay.compose.resume_run import ResumeOptions, resume_run
from assay.compose.run_attempt import run_attempt
from assay.compose.run_record import new_record, project_around, tell_defaults
from assay.compose.run_scope import open_run_scope
from assay.compose.tasks import make_task
from assay.compose.tracing import tracing_handlers
from assay.compose.trust import Tell, Trust, at_home, open_saved
from assay.compose.unfinished import cut_off, is_cut_off, refuse_without_config, unfinished
from assay.config.loading import Config
from assay.core.errors import InputError
from assay.core.events import Handler
from assay.core.ports import NullRecorder
from assay.query.find import best_or_latest, checkpoint_of, describe_newer_damage, find
from assay.query.run import RunView

if TYPE_CHECKING:
    from assay.engine.loop.process import Model


def train(config: Config, launch: Launch, *, parent: str = "") -> RunResult:
    """Train a config, recorded from before the first step to after the last.

    A wrong config raises before anything is written; once there is a record, what is raised inside
    ends up in the result and in the record. `parent` is the run whose config this is.
    """
    config, found = passed(config, *needed_to_train(config))
    if not launch.no_file and not launch.ranks_folder and (view := cut_off(config)) is not None:
        again = replace(launch, after=f"the job was started again: resuming {view.id}")
        return resume_run(view, "", config, again, ResumeOptions(take_over=True))
    weights = initial_weights(config.root, launch.weights_from)
    if is_spread(config, launch):
        return spread_config(config, launch, parent=parent)
    with open_run_scope(config, launch, joins=True) as scope:
        prepared = make_engine(scope, launch)
        prepared.notes += filter(None, [weights.fill(prepared.engine.process.model)])
        if not launch.no_file:
            check_shared(scope, project_around(config.path).runs_dir)

        def begin() -> AnyRecorder:
            recorder = new_record(config, launch, prepared, parent=weights.parent or parent)
            tell_defaults(recorder, config, found, prepared)
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
    config = open_saved(view, overrides)
    return at_home(config, view, use=use, trust=trust, tell=tell)


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
    run that was not made here, unless `trust` allows what its config says.
    """
    view, name = find(address)
    if view.kind != "train":
        raise InputError(f"The run {view.id} is a test: there is nothing to resume.")
    refuse_without_config(view, fix=f'run it again, with assay.start(..., resume="{view.id}")')
    saved = open_saved(view, overrides)
    config = sound(at_home(saved, view, use="resume it", trust=trust, tell=tell))
    options = ResumeOptions(
        take_over=take_over or is_cut_off(view), verify=verify, force=force, is_trusted=True
    )
    return resume_run(view, name, config, launch or Launch(), options)


def resume_or_train(config: Config, launch: Launch, *, tell: Tell = _tell_nobody) -> RunResult:
    """Resume the newest run of this config that neither finished nor runs; else train anew."""
    if launch.no_file or launch.weights_from:
        given = "--no-file" if launch.no_file else "--from"
        raise InputError(f"`--resume auto` resumes a recorded run; {given} leaves records aside.")
    config = sound(config)
    view = unfinished(config)
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
    config = sound(config)
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
    warnings.warn(line, stacklevel=4)


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
    taken = checkpoint_of(view, name)
    if name == "latest" and (damage := describe_newer_damage(view, taken)):
        warnings.warn(damage, stacklevel=2)
    saved = open_saved(view)
    config = at_home(saved, view, use="build its model", trust=trust, tell=_warn, part="model")
    with open_run_scope(config, Launch(device="cpu"), part="model") as scope:
        make_task(scope)
        model = scope.build("model")
        load_model_state(model, evaluated_weights(taken.path), resizes=True)
    model.eval()
    return model  # type: ignore[no-any-return]
