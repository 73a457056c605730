"""The composition root: the one file that knows config, build, engine and record.

What is heavy (torch above all) is imported when it is used, so that a mistake in a config is told before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config import check_shape, config_hash, dump, load, open_config, seedless_hash
from assay.config.load import Config
from assay.config.references import with_environment
from assay.config.tree import Table, get_at, plain
from assay.core.errors import AssayError, ConfigError, InputError, did_you_mean
from assay.core.events import Handler
from assay.core.facts import EndStatus, Evaluated, Warned
from assay.core.ports import NullRecorder
from assay.core.run_file import Best, RunFile
from assay.core.schema import parse_duration_s
from assay.query.find import find, find_checkpoint
from assay.record.recorder import RunRecorder, ending
from assay.store.layout import Project, find_project, open_project

if TYPE_CHECKING:
    from assay.build import Context
    from assay.core.diagnostics import Problem
    from assay.engine import Engine, Loader, Process
    from assay.engine.device import Device
    from assay.engine.process import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings of one launch: they come from the command line, are kept in `run.json` and never in the config."""

    device: str | None = None
    desc: str = ""
    debug: bool = False
    no_file: bool = False
    quiet: bool = False
    max_steps: int | None = None
    command: tuple[str, ...] = ()

    def recorded(self) -> dict[str, Any]:
        return {
            "device": self.device or "auto",
            "debug": self.debug,
            "no_file": self.no_file,
            **({"max_steps": self.max_steps} if self.max_steps is not None else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. `record_dir` is None with `no_file`; `exception` is what it failed with; `value` its metrics."""

    record_dir: Path | None
    config: Config | None
    status: EndStatus
    value: Mapping[str, float] = field(default_factory=dict)
    exception: BaseException | None = None
    exit_code: int = 0
    id: str = ""
    step: int = 0


# ------------------------------------------------------------------------------------------------------------ checking


def problems_of_shape(config: Config) -> list[Problem]:
    """Everything wrong with a config that can be told without importing anything."""
    return check_shape(config)


def problems_of_signatures(config: Config) -> list[Problem]:
    """Everything wrong with the calls of a config; imports what it names."""
    from assay.build import check_signatures
    from assay.core.diagnostics import Origin, Problem

    if importlib.util.find_spec("torch") is None:
        return [
            Problem(
                kind="missing-package",
                message="PyTorch is not installed: nothing can be trained, and the calls of a config cannot be checked",
                origin=Origin(source=str(config.path or "<string>")),
                fix="pip install torch   (pytorch.org says which build fits your machine)",
            )
        ]
    return check_signatures(_environed(config.root), user_dirs=config.user_dirs)


def sound(config: Config) -> Config:
    """The config, if both stages of the check let it pass; ConfigError with the problems of the first that does not."""
    for stage in (problems_of_shape, problems_of_signatures):
        problems = [problem for problem in stage(config) if problem.severity == "error"]
        if problems:
            raise ConfigError(problems)
    _require(config, "model", "process")
    _evaluation(config.root)
    return config


def _require(config: Config, *sections: str) -> None:
    for name in sections:
        if name not in config.root.items:
            where = str(config.path or "the config")
            raise InputError(f"The config has no section [{name}], which a run needs.", where=where)


# ------------------------------------------------------------------------------------------------------------ the runs


def run(
    configs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    device: str | None = None,
    user_dir: str | os.PathLike[str] | None = None,
    desc: str = "",
    debug: bool = False,
    no_file: bool = False,
) -> list[RunResult]:
    """Train one config after another; results come in their order. An exception is kept in its result, not raised."""
    paths = [configs] if isinstance(configs, str | os.PathLike) else list(configs)
    launch = Launch(device=device, desc=desc, debug=debug, no_file=no_file)
    results = []
    for path in paths:
        try:
            results.append(train(open_config(path, user_dir=user_dir), launch))
        except AssayError as error:
            results.append(RunResult(record_dir=None, config=None, status="failed", exception=error, exit_code=2))
    return results


def train(config: Config, launch: Launch) -> RunResult:
    """Train what a config asks for, recorded from before the first step to after the last.

    A wrong config raises before anything is written; once there is a record, what is raised inside ends up in the
    result (and in the record).
    """
    sound(config)
    _require(config, "optimizer", "data", "train")
    with _house(config, launch) as house:
        assembled = _assemble(house, launch)
        recorder = _new_record(config, launch, assembled)
        return _train(assembled, recorder, config, launch)


def resume(
    address: str, overrides: Sequence[str] = (), launch: Launch | None = None, *, take_over: bool = False
) -> RunResult:
    """Go on with a recorded run from its newest (or the named) checkpoint, under the same id, as a new attempt."""
    from assay.config import changed_keys
    from assay.engine.checkpoint.saver import load as load_checkpoint
    from assay.engine.handlers.save import restore

    view, name = find(address)
    launch = launch or Launch()
    if view.kind != "train":
        raise InputError(f"The run {view.id} is a test: there is nothing to go on with.")
    old = load(view.folder.config_toml)
    project = Project(Path(view.file.project)) if view.file.project else _project(None)
    config = open_config(view.folder.config_toml, overrides, user_dir=None)
    config = replace(config, user_dirs=_user_dirs_of(view.file, config))
    sound(config)
    changed = [change.key for change in changed_keys(old.root, config.root)]
    with _house(config, launch) as house:
        assembled = _assemble(house, launch, saver_folder=view.folder.checkpoints)
        found, skipped = assembled.saver().complete()
        step, checkpoint = 0, ""
        if found or name:
            manifest = assembled.saver().find(name or "latest")
            step, checkpoint = manifest.step, manifest.name
            restore(assembled.engine, load_checkpoint(view.folder.checkpoints / manifest.name))
        if view.status == "finished" and assembled.engine.state.step == (assembled.engine.state.max_steps or -1):
            raise InputError(
                f"The run {view.id} finished at step {step}: there is nothing left to do.",
                fix=f"Train longer: assay resume {view.id} train.epochs=...",
            )
        recorder = RunRecorder.resume(
            view.folder,
            from_step=step,
            project=project,
            checkpoint=checkpoint,
            changed=changed,
            config_toml=dump(config.root) if changed else None,
            config_files=config.files,
            config_hash=config_hash(config.root),
            seedless_hash=seedless_hash(config.root),
            launch=launch.recorded(),
            devices=[str(assembled.engine.device)],
            seeds={"seed": assembled.engine.seed},
            command=launch.command,
            code_dirs=_outside(config.user_dirs, project),
            exactness=assembled.engine.source.exactness,
            take_over=take_over,
        )
        for each in skipped:
            recorder.tell(Warned(message=f"{each.name} is no checkpoint: {each.why}."))
        assembled.saver(attempt=recorder.run.newest.number).set_aside(step)
        return _train(assembled, recorder, config, launch)


def test(address: str, launch: Launch | None = None, *, split: str = "test") -> RunResult:
    """Evaluate a recorded run on a split; the weights are the best ones if it kept any, else the newest.

    Makes a record of its own (kind test) whose parent is the checkpoint.
    """
    from assay.engine.checkpoint.saver import load as load_checkpoint
    from assay.engine.handlers.evaluate import evaluate
    from assay.engine.handlers.save import load_model_state

    launch = launch or Launch()
    view, name = find(address)
    if not name:
        name = "best" if view.best_checkpoint else "latest"
    view, folder = find_checkpoint(f"{view.id}@{name}")
    config = load(view.folder.config_toml)
    config = replace(config, user_dirs=_user_dirs_of(view.file, config))
    with _house(config, launch) as house:
        process = _process(house, training=False)
        load_model_state(process.model, load_checkpoint(folder, parts=("model",))["model"])
        splits = _splits(config.root)
        if split not in splits:
            fix = did_you_mean(split, splits) or f"It has: {', '.join(splits)}."
            raise InputError(f"The config of {view.id} has no [data.{split}].", fix=fix)
        loader = _loader(house, split)
        recorder = _new_record(
            config, launch, None, kind="test", parent=f"{view.id}@{folder.name}", device=house.device
        )
        try:
            results, samples = evaluate(process, loader, split=split, seed=house.seed, device=house.device)
        except BaseException as error:
            return _failed(recorder, config, error, step=0)
        step = _step_of(folder)
        recorder.log(results, step)
        recorder.tell(Evaluated(split=split, step=step, metrics=results, samples=samples))
        return _ended(recorder, config, "finished", "", results, step=step)


def load_model(address: str, checkpoint: str = "best") -> Model:
    """The model of a recorded run, built from its record, with the weights of a checkpoint, in eval mode."""
    from assay.engine.checkpoint.saver import load as load_checkpoint
    from assay.engine.handlers.save import load_model_state

    view, folder = find_checkpoint(address if "@" in address else f"{address}@{checkpoint}")
    config = load(view.folder.config_toml)
    config = replace(config, user_dirs=_user_dirs_of(view.file, config))
    with _house(config, Launch(device="cpu")) as house:
        model = house.build("model")
        load_model_state(model, load_checkpoint(folder, parts=("model",))["model"])
    model.eval()
    return model  # type: ignore[no-any-return]


def listeners(config: Config) -> list[Handler]:
    """Who listens to what while the config runs, in order. Builds everything and runs nothing."""
    sound(config)
    with _house(config, Launch()) as house:
        assembled = _assemble(house, Launch(), saver_folder=Path("checkpoints"))
        _listen(assembled, NullRecorder(), Launch(), saving=True)
        return assembled.engine.bus.order()


# ----------------------------------------------------------------------------------------------------------- assembly


@dataclass(slots=True)
class _House:
    """What is being built for one run: the tree with its environment, the context, and where it goes."""

    config: Config
    root: Table
    context: Context
    seed: int
    device: Device

    def build(self, section: str) -> Any:
        return self.build_at((section,))

    def build_at(self, path: tuple[str, ...]) -> Any:
        from assay.build import build

        node = get_at(self.root, path)
        assert node is not None
        return build(node, self.context, root=self.root, path=path, user_dirs=self.config.user_dirs)

    def values(self, *path: str) -> dict[str, Any]:
        """The plain values of a standard table; empty when it is not there."""
        node = get_at(self.root, path)
        return {} if node is None else dict(plain(node))


@dataclass(slots=True)
class _Assembled:
    """An engine with all that listens to it, ready to run once it has a recorder."""

    house: _House
    engine: Engine
    saver_folder: Path | None = None
    attempt: int = 1

    def saver(self, *, attempt: int | None = None) -> Any:
        from assay.engine import Saver

        assert self.saver_folder is not None
        self.attempt = attempt or self.attempt
        keep = self.house.values("checkpoint").get("keep", 3)
        return Saver(self.saver_folder, keep=keep, attempt=self.attempt)


@contextlib.contextmanager
def _house(config: Config, launch: Launch) -> Iterator[_House]:
    from assay.build import Context, user_code
    from assay.engine.device import pick_device

    root = _environed(config.root)
    seed = int(plain(root).get("seed", 0))
    with ExitStack() as stack:
        stack.enter_context(user_code(config.user_dirs))
        context = Context()
        stack.callback(context.close)
        stack.enter_context(context.use())
        yield _House(config, root, context, seed, pick_device(launch.device))


def _environed(root: Table) -> Table:
    environed, problems = with_environment(root, os.environ)
    if problems:
        raise ConfigError(problems)
    return environed


def _process(house: _House, *, training: bool) -> Process:
    """Model, optimizer, backward and process, in the order in which they need each other."""
    from assay.engine import Backward, seed_all
    from assay.engine.device import place, use_threads
    from assay.engine.optim import idle_optimizer
    from assay.engine.precision import in_precision
    from assay.engine.seed import INIT, key

    context, settings = house.context, house.values("train")
    seed_all(key(house.seed, INIT))
    model = house.build("model")
    use_threads(plain(house.root).get("threads", "auto"), model)
    model.to(house.device)
    context.set("model", model)
    context.set("params", list(model.parameters()))
    if training:
        optimizer = house.build("optimizer")
        context.set("optimizer", optimizer)
        schedule = house.build("schedule") if "schedule" in house.root.items else None
        if schedule is not None and not hasattr(schedule, "factor"):
            raise InputError(
                f"[schedule] is a {type(schedule).__name__}; a schedule gives a factor for each step.",
                fix='Use type = "assay.engine.WarmupCosine" or "assay.engine.WarmupLinear".',
            )
        backward = Backward(
            optimizer,
            schedule=schedule,
            clip_norm=settings.get("clip_norm"),
            non_finite=settings.get("non_finite", "stop"),
        )
        context.set("backward", backward)
    else:
        context.set("optimizer", idle_optimizer())
    process: Process = house.build("process")
    place(process, house.device)
    forward = in_precision(settings.get("precision", "fp32"), house.device, process.forward_step)
    process.forward_step = forward  # type: ignore[method-assign]
    return process


def _assemble(house: _House, launch: Launch, *, saver_folder: Path | None = None) -> _Assembled:
    from assay.engine import Engine

    process = _process(house, training=True)
    settings = house.values("train")
    train = _loader(house, "train")
    steps = settings.get("steps")
    if launch.max_steps is not None:
        steps = launch.max_steps if steps is None else min(steps, launch.max_steps)
    engine = Engine(
        process,
        train,
        epochs=settings.get("epochs"),
        steps=steps,
        samples=settings.get("samples"),
        seconds=parse_duration_s(settings["time"]) if "time" in settings else None,
        seed=house.seed,
        device=house.device,
    )
    house.context.set("state", engine.state)
    house.context.set("engine", engine)
    return _Assembled(house, engine, saver_folder)


def _loader(house: _House, split: str) -> Loader:
    from assay.engine import Loader

    settings = {key: value for key, value in house.values("data", split).items() if key != "source"}
    source = house.build_at(("data", split, "source"))
    if "batch_size" not in settings:
        raise InputError(f"[data.{split}] has no batch_size.", fix=f"Write batch_size = 64 under [data.{split}].")
    if split == "train":
        settings.setdefault("shuffle", True)
        accumulate = house.values("train").get("accumulate")
        if accumulate is not None and "micro_batch_size" not in settings:
            settings["accumulate"] = accumulate
    return Loader(source, seed=house.seed, split=split, **settings)


def _splits(root: Table) -> list[str]:
    node = root.items.get("data")
    return list(node.items) if isinstance(node, Table) else []


def _evaluation(root: Table) -> tuple[str, list[str]]:
    """How often which splits are evaluated. InputError when a name leads nowhere, or the best is never measured."""
    settings = plain(root)
    evaluate, there = settings.get("evaluate", {}), _splits(root)
    period = evaluate.get("every", "1 epoch")
    splits = evaluate.get("splits", [split for split in there if split not in ("train", "test")])
    for name in splits:
        if name not in there:
            fix = did_you_mean(name, there) or f"It has {', '.join(there)}."
            raise InputError(f"[evaluate] names the split {name!r}, which [data] does not have.", fix=fix)
    best = settings.get("checkpoint", {}).get("best")
    measured = splits if period != "never" else []
    if best and best["metric"].split("/")[0] not in measured:
        raise InputError(
            f"[checkpoint] best looks at {best['metric']!r}, which is never measured.",
            fix=f"Splits that are evaluated: {', '.join(measured) or 'none'}.",
        )
    return period, splits


def _listen(assembled: _Assembled, recorder: RunRecorder | NullRecorder, launch: Launch, *, saving: bool) -> None:
    """Everything that listens to a run, in the order of their priorities."""
    import logging

    from assay.engine import Display, Evaluate, Save

    house, engine = assembled.house, assembled.engine
    period, splits = _evaluation(house.root)
    engine.bus.extend(Evaluate({s: _loader(house, s) for s in splits}, every=period, seed=house.seed).handlers())
    if saving:
        settings = house.values("checkpoint")

        def remember(metric: str, mode: Any, value: float, step: int, checkpoint: str) -> None:
            assert isinstance(recorder, RunRecorder)
            recorder.set_best(Best(metric=metric, mode=mode, value=value, step=step, checkpoint=checkpoint))

        best = settings.get("best")
        save = Save(
            assembled.saver(),
            every=settings.get("every", "1 epoch"),
            best=(best["metric"], best["mode"]) if best else None,
            evaluate_every=period,
            on_best=remember,
        )
        engine.bus.extend(save.handlers())
    shown = house.values("display")
    quiet = launch.quiet or bool(shown.get("quiet", False))
    logger = recorder.logger if isinstance(recorder, RunRecorder) else logging.getLogger("assay")
    engine.bus.extend(Display(logger=logger, quiet=quiet, every=shown.get("every", "1 epoch")).handlers())


# ----------------------------------------------------------------------------------------------------------- recording


def _new_record(
    config: Config,
    launch: Launch,
    assembled: _Assembled | None,
    *,
    kind: Any = "train",
    parent: str = "",
    device: Any = None,
) -> RunRecorder | NullRecorder:
    if launch.no_file:
        return NullRecorder()
    project = _project(config.path)
    values = plain(config.root)
    recorder = RunRecorder.start(
        project,
        kind=kind,
        tag=values.get("tag", ""),
        desc=launch.desc or values.get("desc", ""),
        config_toml=dump(config.root),
        config_files=config.files,
        config_path=str(config.path.resolve()) if config.path else "",
        parent=parent,
        config_hash=config_hash(config.root),
        seedless_hash=seedless_hash(config.root),
        launch={**launch.recorded(), "user_dirs": [str(path.resolve()) for path in config.user_dirs]},
        seeds={"seed": int(values.get("seed", 0))},
        devices=[str(assembled.engine.device if assembled else device)],
        command=launch.command or None,
        code_dirs=_outside(config.user_dirs, project),
    )
    if assembled is not None:
        assembled.saver_folder = recorder.folder.checkpoints
    return recorder


def _project(path: Path | None) -> Project:
    """The project around a config, else around the working directory; else the working directory becomes one."""
    home = find_project(path.resolve().parent) if path is not None else None
    return home or find_project(Path.cwd()) or open_project(Path.cwd(), create=True)


def _user_dirs_of(run: RunFile, config: Config) -> tuple[Path, ...]:
    """Where the user's modules were when the run was started; a saved config lies elsewhere."""
    for attempt in reversed(run.attempts):
        kept = attempt.launch.get("user_dirs")
        if kept:
            return tuple(Path(path) for path in kept)
    return config.user_dirs


def _outside(folders: Sequence[Path], project: Project) -> list[Path]:
    root = project.root.resolve()
    return [path for path in folders if path.is_dir() and not path.resolve().is_relative_to(root)]


def _train(assembled: _Assembled, recorder: RunRecorder | NullRecorder, config: Config, launch: Launch) -> RunResult:
    from assay.engine.handlers.interrupt import stopping_on_signals

    engine = assembled.engine
    engine.recorder = recorder
    assembled.house.context.set("recorder", recorder)
    with stopping_on_signals(engine) as caught:
        try:
            _listen(assembled, recorder, launch, saving=isinstance(recorder, RunRecorder))
            state = engine.run()
        except BaseException as error:
            return _failed(recorder, config, error, step=engine.state.step)
    if caught.signal is not None:
        reason = state.stop_reason
        result = _ended(recorder, config, "stopped", reason, state.metrics, step=state.step)
        return replace(result, exit_code=caught.exit_code)
    return _ended(recorder, config, "finished", "", state.metrics, step=state.step)


def _ended(
    recorder: RunRecorder | NullRecorder,
    config: Config,
    status: EndStatus,
    reason: str,
    value: Mapping[str, float],
    *,
    step: int,
) -> RunResult:
    folder, run_id = None, ""
    if isinstance(recorder, RunRecorder):
        recorder.finish(status, reason, step=step)
        folder, run_id = recorder.folder.path, recorder.id
    return RunResult(record_dir=folder, config=config, status=status, value=dict(value), id=run_id, step=step)


def _failed(recorder: RunRecorder | NullRecorder, config: Config, error: BaseException, *, step: int) -> RunResult:
    """End the record with what was raised; interrupts end as stopped."""
    status, reason, traceback = ending(error)
    folder, run_id = None, ""
    if isinstance(recorder, RunRecorder):
        recorder.finish(status, reason, traceback, step=step)
        folder, run_id = recorder.folder.path, recorder.id
    code = 130 if isinstance(error, KeyboardInterrupt) else error.exit_code if isinstance(error, AssayError) else 1
    return RunResult(
        record_dir=folder, config=config, status=status, exception=error, exit_code=code, id=run_id, step=step
    )


def _step_of(checkpoint: Path) -> int:
    from assay.core.manifest import read

    return read(checkpoint).step


__all__ = ["Launch", "RunResult", "listeners", "load_model", "resume", "run", "test", "train"]
