"""The composition root: the one file that knows config, build, engine and record.

What is heavy (torch above all) is imported when it is used, so that a mistake in a config is told before.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from assay.config import check_shape, config_hash, dump, expand, load, open_config, seedless_hash
from assay.config.check import standard_defaults
from assay.config.defaults import HOMES
from assay.config.load import Config
from assay.config.references import asks_machine, is_plain, outside_used, with_machine, with_outside
from assay.config.settings import Settings
from assay.config.tree import KeyPath, Table, dotted, get_at, plain
from assay.core.errors import ArgumentError, AssayError, ConfigError, InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import EndStatus, Evaluated, Warned
from assay.core.ports import Bind, NullRecorder
from assay.core.run_file import Best, RunFile
from assay.core.schema import parse_duration_s
from assay.core.secret import redacted
from assay.query.find import find, find_checkpoint
from assay.record.recorder import RunRecorder, ending
from assay.store.layout import Project, find_project, open_project

if TYPE_CHECKING:
    from assay.build import Context, Examined, Plugin
    from assay.core.diagnostics import Problem
    from assay.engine import Engine, Process
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


def examined(config: Config, *, strict: bool = False) -> Examined:
    """What the signature stage finds out about the calls of a config; imports what it names."""
    from assay.build import check_graph, check_sources, examine, planned, promised_types, user_code

    if importlib.util.find_spec("torch") is None:
        return _without_torch(config)
    # What is wrong with references was told by the shape stage; the values they stand for are then not judged.
    root, _ = with_outside(config.root, os.environ, config.settings.variables)
    where: dict[str, Any] = {"user_dirs": config.user_dirs, "trusted": config.settings.trusted}
    with user_code(config.user_dirs):  # one import for all that follows
        types = promised_types(planned(root, **where))
        found = examine(root, **where, types=types, strict=strict, is_whole=not config.read_problems)
        if any(problem.severity == "error" for problem in found.problems):
            return found
        further = (*check_sources(root, **where), *check_graph(root, planned(root, **where), **where))
        return replace(found, problems=(*found.problems, *further))


class Examiner:
    """The signature stage for the configs of one file, each looked at once."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._found: dict[int, tuple[Config, Config, Examined]] = {}
        self._of_variant: dict[str, Examined] = {}

    def examined(self, config: Config) -> Examined:
        """What the signature stage finds out about `config`."""
        if id(config) not in self._found:
            known = _known(config)
            found = examined(known, strict=self.strict)
            self._found[id(config)] = config, known, found
            if not config.assigned:
                self._of_variant[config.variant] = found
        return self._found[id(config)][2]

    def canonical(self, config: Config) -> Table:
        """The tree of `config` to hash. A point that sets plain values calls what its variant calls."""
        calls_others = any(key.endswith(("type", "args")) or not is_plain(node) for key, node in config.assigned)
        if calls_others or config.variant not in self._of_variant:
            found = self.examined(config)
            return found.canonical(self._found[id(config)][1].root)
        return self._of_variant[config.variant].canonical(_known(config).root)


def _without_torch(config: Config) -> Examined:
    from assay.build import Examined
    from assay.core.diagnostics import Origin, Problem

    problem = Problem(
        kind="missing-package",
        message="PyTorch is not installed: nothing can be trained, and the calls of a config cannot be checked",
        origin=Origin(source=str(config.path or "<string>")),
        fix="pip install torch   (pytorch.org says which build fits your machine)",
    )
    return Examined(problems=(problem,))


def sound(config: Config) -> Config:
    """The config, if both stages of the check let it pass; ConfigError with the problems of the first that does not."""
    return _passed(config)[0]


def _passed(config: Config, *sections: str) -> tuple[Config, Examined]:
    """The config with every value as its type reads it, and what the signature stage found; it must have `sections`."""
    _refuse(problems_of_shape(config))
    config = _known(config)
    found = examined(config)
    _refuse(found.problems)
    config = replace(config, root=found.settled(config.root), named=found.canonical(config.root))
    _require(config, "model", "process", *sections)
    return config, found


def _refuse(problems: Iterable[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)


def _require(config: Config, *sections: str) -> None:
    missing = [name for name in sections if name not in config.root.items]
    if not missing:
        return
    names = ", ".join(f"[{name}]" for name in missing)
    what = f"sections {names}" if len(missing) > 1 else f"section {names}"
    source = os.fspath(config.path or "the config")
    ready = [f"from assay.config.defaults.{HOMES[name]} import {name}" for name in missing if name in HOMES]
    fix = f"Write it, or start from a default: {'; '.join(ready)}" if ready and source.endswith(".py") else ""
    fix = fix or "Write it; assay.config.defaults has one to start from." if ready else fix
    raise InputError(f"The config has no {what}, which a run needs.", where=source, fix=fix)


# ------------------------------------------------------------------------------------------------------------ the runs


def run(
    configs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    variant: str | Sequence[str] = (),
    sweep: bool = True,
    device: str | None = None,
    user_dir: str | os.PathLike[str] | None = None,
    desc: str = "",
    debug: bool = False,
    no_file: bool = False,
) -> list[RunResult]:
    """Train one config after another; results come in their order. An exception is kept in its result, not raised.

    Of a file with variants the base runs, or those named ("all" is every one); of a file with a sweep all its points.
    """
    paths = [configs] if isinstance(configs, str | os.PathLike) else list(configs)
    variants = [variant] if isinstance(variant, str) else list(variant)
    launch = Launch(device=device, desc=desc, debug=debug, no_file=no_file)
    results: list[RunResult] = []
    for path in paths:
        try:
            made = expand(open_config(path, user_dir=user_dir), variants, sweep=sweep)
        except AssayError as error:
            results.append(_not_started(None, error))
            continue
        results += train_each(made, launch)
    return results


def train_each(configs: Iterable[Config], launch: Launch) -> Iterator[RunResult]:
    """Train one config after another, until one is stopped. An exception is kept in its result, not raised."""
    for config in configs:
        try:
            result = train(config, launch)
        except AssayError as error:
            result = _not_started(config, error)
        yield result
        if result.status == "stopped":
            return
        _let_go(result.exception)


def _not_started(config: Config | None, error: AssayError) -> RunResult:
    return RunResult(record_dir=None, config=config, status="failed", exception=error, exit_code=error.exit_code)


def _let_go(error: BaseException | None) -> None:
    """Free what the run held, the memory of its device above all, before the next one needs it."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            _forget_variables(frame)
        error = error.__cause__ or error.__context__
    gc.collect()


def _forget_variables(frame: FrameType | None) -> None:
    """What the calls that led to an error hold, the model among it, is let go of; the lines of its traceback stay."""
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # one that waits would be ended
            with contextlib.suppress(RuntimeError):  # still running
                frame.clear()
        frame = frame.f_back


def train(config: Config, launch: Launch) -> RunResult:
    """Train what a config asks for, recorded from before the first step to after the last.

    A wrong config raises before anything is written; once there is a record, what is raised inside ends up in the
    result (and in the record).
    """
    config, found = _passed(config, "optimizer", "data", "train")
    with _house(config, launch) as house:
        assembled = _assemble(house, launch)
        recorder = _new_record(config, launch, assembled)
        _tell_defaults(recorder, config, found, assembled)
        return _train(assembled, recorder, config, launch)


def resume(
    address: str, overrides: Sequence[str] = (), launch: Launch | None = None, *, take_over: bool = False
) -> RunResult:
    """Go on with a recorded run from its newest (or the named) checkpoint, under the same id, as a new attempt."""
    from assay.config import changed_keys
    from assay.engine.checkpoint.saver import load as load_checkpoint
    from assay.engine.handlers.save import PARTS, restore

    view, name = find(address)
    launch = launch or Launch()
    if view.kind != "train":
        raise InputError(f"The run {view.id} is a test: there is nothing to go on with.")
    old = load(view.folder.config_toml)
    project = Project(Path(view.file.project)) if view.file.project else _project(None)
    config = open_config(view.folder.config_toml, overrides, user_dir=None)
    config = _at_home(config, view.file)
    config = sound(config)
    changed = [change.key for change in changed_keys(old.root, config.root)]
    with _house(config, launch) as house:
        assembled = _assemble(house, launch, saver_folder=view.folder.checkpoints)
        found, skipped = assembled.saver().complete()
        step, checkpoint = 0, ""
        if found or name:
            manifest = assembled.saver().find(name or "latest")
            step, checkpoint = manifest.step, manifest.name
            parts = load_checkpoint(view.folder.checkpoints / manifest.name)
            restore(assembled.engine, parts)
            assembled.loaded = {name: part for name, part in parts.items() if name not in PARTS}
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
            config_hash=config_hash(config.named or config.root),
            seedless_hash=seedless_hash(config.named or config.root),
            launch={**launch.recorded(), **_recorded_of(config), "fused": _is_fused(assembled.engine)},
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


def test(address: str, launch: Launch | None = None, *, splits: Sequence[str] = ()) -> RunResult:
    """Evaluate a recorded run on splits; the weights are the best ones if it kept any, else the newest.

    Without `splits` it is `test`, and each whose name begins with `test_`.
    Makes a record of its own (kind test) whose parent is the checkpoint.
    """
    from assay.build import Promise, entered
    from assay.engine.handlers.ema import evaluated_weights
    from assay.engine.handlers.evaluate import evaluate
    from assay.engine.handlers.save import load_model_state

    launch = launch or Launch()
    view, name = find(address)
    if not name:
        name = "best" if view.best_checkpoint else "latest"
    view, folder = find_checkpoint(f"{view.id}@{name}")
    config = load(view.folder.config_toml)
    config = _at_home(config, view.file)
    with _house(config, launch) as house:
        _promise_no_training(house.context)
        for name in _splits(config.root):
            house.context.promise(f"{name}_loader", Promise(never="this is a test, not a training"))
        process = _process(house, training=False)
        load_model_state(process.model, evaluated_weights(folder))
        known = _splits(config.root)
        wanted = list(splits) or [name for name in known if _is_for_tests(name)] or ["test"]
        for split in wanted:
            if split not in known:
                fix = did_you_mean(split, known) or f"It has: {', '.join(known)}."
                raise InputError(f"The config of {view.id} has no [data.{split}].", fix=fix)
        loaders = {split: _loader(house, split) for split in wanted}
        recorder = _new_record(
            config, launch, None, kind="test", parent=f"{view.id}@{folder.name}", device=house.device
        )
        _set_recorder(house, recorder)
        step = _step_of(folder)
        value: dict[str, float] = {}
        try:
            with entered(house.plugins):
                fire = _evaluation_events(house, step)
                for split, loader in loaders.items():
                    fire(Event.EVAL_BEGIN)
                    results, samples = evaluate(
                        process,
                        loader,
                        split=split,
                        seed=house.seed,
                        device=house.device,
                        before=lambda: fire(Event.EVAL_STEP_BEGIN),
                        after=lambda: fire(Event.EVAL_STEP_END),
                    )
                    recorder.log(results, step)
                    recorder.tell(Evaluated(split=split, step=step, metrics=results, samples=samples))
                    value |= results
                    fire(Event.EVAL_END)
        except BaseException as error:
            return _failed(recorder, config, error, step=0)
        return _ended(recorder, config, "finished", "", value, step=step)


def _promise_no_training(context: Context) -> None:
    """What a test does without; asking for it says so."""
    from assay.build import Promise

    for name in ("optimizer", "schedule", "backward", "engine", "state"):
        context.promise(name, Promise(never="this is a test, which does not train"))


def _evaluation_events(house: _House, step: int) -> Callable[[Event], None]:
    """Calls what the plugins want to be called for while a split is looked at; there is no engine to do it."""
    from assay.engine.bus import Bus

    bus = Bus(house.context.bind)
    handlers = [handler for plugin in house.plugins for handler in plugin.handlers()]
    bus.extend(handler for handler in handlers if handler.event in _EVALUATION)
    return lambda event: bus.points[event].fire(step)


_EVALUATION = (Event.EVAL_BEGIN, Event.EVAL_END, Event.EVAL_STEP_BEGIN, Event.EVAL_STEP_END)


def load_model(address: str, checkpoint: str = "best") -> Model:
    """The model of a recorded run, built from its record, with the weights of a checkpoint, in eval mode."""
    from assay.engine.handlers.ema import evaluated_weights
    from assay.engine.handlers.save import load_model_state

    view, folder = find_checkpoint(address if "@" in address else f"{address}@{checkpoint}")
    config = load(view.folder.config_toml)
    config = _at_home(config, view.file)
    with _house(config, Launch(device="cpu")) as house:
        model = house.build("model")
        load_model_state(model, evaluated_weights(folder))
    model.eval()
    return model  # type: ignore[no-any-return]


def listeners(config: Config) -> list[Handler]:
    """Who listens to what while the config runs, in order. Builds everything and runs nothing."""
    config = sound(config)
    with _house(config, Launch()) as house:
        # Not bound: what a handler asks for may be there only once the plugins are entered.
        assembled = _assemble(house, Launch(), saver_folder=Path("checkpoints"), bind=lambda handler: handler)
        _listen(assembled, NullRecorder(), Launch(), saving=True)
        assembled.engine.bus.extend(handler for plugin in house.plugins for handler in plugin.handlers())
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
    plugins: list[Plugin] = field(default_factory=list)

    def build(self, section: str) -> Any:
        return self.build_at((section,))

    def build_at(self, path: KeyPath, **extra: Any) -> Any:
        """What is written at `path`; `extra` are arguments of its call where nothing else is written."""
        from assay.build import build

        node = get_at(self.root, path)
        assert node is not None
        return build(
            node,
            self.context,
            root=self.root,
            path=path,
            user_dirs=self.config.user_dirs,
            trusted=self.config.settings.trusted,
            extra=extra,
        )

    def is_on(self, section: str) -> bool:
        """Whether a section is not switched off: `enabled = false`."""
        return bool(self.values(section).get("enabled", True))

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
    loaded: Mapping[str, Any] | None = None  # parts of a checkpoint for who is not there yet

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
    from assay.engine.precision import matmul_precision

    root = _with_outside(config)
    seed = int(plain(root).get("seed", 0))
    with ExitStack() as stack:
        stack.enter_context(user_code(config.user_dirs))
        context = Context()
        stack.callback(context.close)
        stack.enter_context(context.use())
        precision = get_at(root, ("train", "precision"))
        stack.enter_context(matmul_precision(plain(precision) if precision is not None else "fp32"))
        house = _House(config, root, context, seed, pick_device(launch.device))
        _furnish(house)
        yield house


def _furnish(house: _House) -> None:
    """Put in what is known from the start, promise the rest, make the plugins: they may say how the rest is made."""
    from assay.build import as_plugin, plugin_paths, promise_run

    context, config = house.context, house.config
    context.set("context", context)
    context.set("cfg", plain(house.root))
    context.set("device", house.device)
    context.set("device_info", {"name": str(house.device), "type": house.device.type, "index": house.device.index})
    context.provide(_console, name="console")
    promise_run(house.root, context, user_dirs=config.user_dirs, trusted=config.settings.trusted)
    for path in plugin_paths(house.root):
        plugin = as_plugin(dotted(path), house.build_at(path))
        context.set(plugin.where, plugin.thing)
        context.install(plugin.thing)
        house.plugins.append(plugin)
    context.set("plugins", [plugin.thing for plugin in house.plugins])


def _console() -> Any:
    from rich.console import Console

    return Console()


def _known(config: Config) -> Config:
    """The config with what only this machine knows written into it; torch is asked only if it is in there."""
    if not asks_machine(config.root):
        return config
    from assay.engine.device import device_count

    return replace(config, root=with_machine(config.root, {"device:count": device_count()}))


def _with_outside(config: Config) -> Table:
    root, problems = with_outside(config.root, os.environ, config.settings.variables)
    if problems:
        raise ConfigError(problems)
    return root


def _process(house: _House, *, training: bool) -> Process:
    """Model, optimizer, backward and process, in the order in which they need each other."""
    from assay.engine import Backward, seed_all
    from assay.engine.device import place, use_threads
    from assay.engine.optim import idle_optimizer
    from assay.engine.precision import in_precision
    from assay.engine.scaler import ScaledBackward
    from assay.engine.seed import INIT, key

    context, settings = house.context, house.values("train")
    seed_all(key(house.seed, INIT))
    model = house.build("model")
    use_threads(plain(house.root).get("threads", "auto"), model)
    model.to(house.device)
    context.set("model", model)
    context.set("params", list(model.parameters()))
    if training:
        optimizer = _optimizer(house, model)
        context.set("optimizer", optimizer)
        schedule = house.build("schedule") if "schedule" in house.root.items else None
        if schedule is not None:
            context.set("schedule", schedule)
        how = ScaledBackward if settings.get("precision") == "fp16" else Backward
        backward = how(
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
    evaluate = house.values("evaluate").get("precision", "fp32")
    precision = settings.get("precision", "fp32")
    forward = in_precision(precision, house.device, process.forward_step, evaluate=evaluate)
    process.forward_step = forward  # type: ignore[method-assign]
    context.set("process", process)
    if not training:
        _promise_no_training(context)
    return process


def _optimizer(house: _House, model: Model) -> Any:
    """The optimizer, in its fused form where there is one and nothing else is asked for."""
    from assay.build.builder import problem_of
    from assay.build.targets import find as find_target
    from assay.engine.groups import Groups
    from assay.engine.optim import may_fuse

    node = get_at(house.root, ("optimizer",))
    written = node.items if isinstance(node, Table) else {}
    extra: dict[str, Any] = {}
    if isinstance(node, Table) and node.target is not None:
        trusted = house.config.settings.trusted
        kind = find_target(node.target, user_dirs=house.config.user_dirs, trusted=trusted)
        extra = {"fused": True} if may_fuse(kind, model, written) else {}
    optimizer = house.build_at(("optimizer",), **extra)
    if isinstance(params := written.get("params"), Table):
        groups = house.build_at(("optimizer", "params"))  # built above: the same again
        if isinstance(groups, Groups):
            try:
                groups.check(optimizer)
            except ArgumentError as error:
                raise ConfigError([problem_of(error, house.root, ("optimizer", "params"), params.origin)]) from error
    return optimizer


def _assemble(
    house: _House, launch: Launch, *, saver_folder: Path | None = None, bind: Bind | None = None
) -> _Assembled:
    from assay.engine import Engine, Loader

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
        accumulate=1 if isinstance(train, Loader) else settings.get("accumulate", 1),
        seed=house.seed,
        device=house.device,
        bind=bind or house.context.bind,
    )
    backward = getattr(process, "backward", None)
    if backward is not None:  # without one the engine says so
        backward.rate.epoch_length = engine.state.epoch_length
    house.context.set("state", engine.state)
    house.context.set("engine", engine)
    return _Assembled(house, engine, saver_folder)


def _loader(house: _House, split: str) -> Iterable[Any]:
    """The batches of a split: those of its source, or made of its samples."""
    from assay.engine import Loader
    from assay.engine.data.loader import is_dataset
    from assay.engine.names import LOADERS

    settings = {key: value for key, value in house.values("data", split).items() if key != "source"}
    source = house.build_at(("data", split, "source"))
    if settings.get("workers") or getattr(source, "num_workers", 0):
        house.context.check_for_workers(source, f"data.{split}.source")
    if not is_dataset(source):
        _check_batches(house, split, source)
        house.context.set(f"{split}_loader", source, type=LOADERS.get(split))
        return source  # type: ignore[no-any-return]
    if "batch_size" not in settings:
        raise InputError(f"[data.{split}] has no batch_size.", fix=f"Write batch_size = 64 under [data.{split}].")
    if split == "train":
        settings.setdefault("shuffle", True)
        accumulate = house.values("train").get("accumulate")
        if accumulate is not None and "micro_batch_size" not in settings:
            settings["accumulate"] = accumulate
    loader = Loader(source, seed=house.seed, split=split, **settings)
    house.context.set(f"{split}_loader", loader, type=LOADERS.get(split))
    return loader


def _check_batches(house: _House, split: str, source: Any) -> None:
    """InputError when `source`, which is no data set, cannot give the batches of a split as the config asks for."""
    from assay.build import loader_keys

    table = get_at(house.root, ("data", split))
    assert isinstance(table, Table)
    name, where = type(source).__name__, str(table.items["source"].origin)
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        fix = "Give a data set (__len__ and __getitem__), or an iterable of batches."
        raise InputError(f"data.{split}: a {name} can neither be iterated nor asked for an item.", where=where, fix=fix)
    keys = loader_keys(table)
    if keys:
        raise InputError(
            f"data.{split}: a {name} has no length or no items by index, so it gives batches itself; {keys[0]} would"
            " have to make them.",
            where=str(table.key_origin(keys[0])),
            fix="Leave it out, or give a data set (__len__ and __getitem__).",
        )
    if split != "train" and isinstance(source, Iterator):
        fix = "Give something that can be iterated again: a class with __iter__, a DataLoader."
        raise InputError(f"data.{split}: a {name} can be gone through once only.", where=where, fix=fix)


def _splits(root: Table) -> list[str]:
    node = root.items.get("data")
    return list(node.items) if isinstance(node, Table) else []


def _evaluation(house: _House) -> tuple[str, list[str]]:
    """How often which splits are evaluated."""
    settings = house.values("evaluate")
    period = settings.get("every", "1 epoch") if house.is_on("evaluate") else "never"
    looked_at = [name for name in _splits(house.root) if name != "train" and not _is_for_tests(name)]
    return period, settings.get("splits", looked_at)


def _is_for_tests(split: str) -> bool:
    """`test`, and `test_clean` or `test_noisy` where there are several."""
    return split == "test" or split.startswith("test_")


def _listen(assembled: _Assembled, recorder: RunRecorder | NullRecorder, launch: Launch, *, saving: bool) -> None:
    """Everything that listens to a run, in the order of their priorities."""
    import logging

    from assay.engine import Display, Evaluate, Save, Throughput

    house, engine = assembled.house, assembled.engine
    period, splits = _evaluation(house)
    loaders = {split: _loader(house, split) for split in splits}
    limit = house.values("evaluate").get("limit")
    engine.bus.extend(Evaluate(loaders, every=period, limit=limit, seed=house.seed).handlers())
    if saving and house.is_on("checkpoint"):
        settings = house.values("checkpoint")

        def remember(metric: str, mode: Any, value: float, step: int, checkpoint: str) -> None:
            assert isinstance(recorder, RunRecorder)
            recorder.set_best(Best(metric=metric, mode=mode, value=value, step=step, checkpoint=checkpoint))

        best = settings.get("best") if house.is_on("evaluate") else None
        save = Save(
            assembled.saver(),
            every=settings.get("every", "1 epoch"),
            best=(best["metric"], best["mode"]) if best else None,
            evaluate_every=period,
            on_best=remember,
        )
        engine.bus.extend(save.handlers())
    shown = house.values("display")
    quiet = launch.quiet or bool(shown.get("quiet", False)) or not house.is_on("display")
    logger = recorder.logger if isinstance(recorder, RunRecorder) else logging.getLogger("assay")
    engine.bus.extend(Throughput().handlers())
    display = Display(logger=logger, quiet=quiet, every=shown.get("every", "1 epoch"))
    engine.bus.extend(display.handlers())

    def say_what_is_run() -> None:
        for line in _opening(engine):
            display.say(line)

    engine.bus.add(Handler(event=Event.RUN_BEGIN, fn=say_what_is_run, priority=100, name="Display.opening"))


def _opening(engine: Engine) -> list[str]:
    """How long the run is and why; what the optimizer trains how, if not all alike."""
    from assay.engine import Loader
    from assay.engine.groups import described
    from assay.engine.totals import arithmetic

    state, source, lines = engine.state, engine.source, []
    if isinstance(source, Loader):
        lines = arithmetic(source, epochs=state.max_epochs, total=state.max_steps)
    groups = described(engine.process.backward.optimizer, engine.process.model)
    return lines + (groups if groups[1:] else [])


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
        config_hash=config_hash(config.named or config.root),
        seedless_hash=seedless_hash(config.named or config.root),
        launch={
            **launch.recorded(),
            "user_dirs": [str(path.resolve()) for path in config.user_dirs],
            **_recorded_of(config),
            **({"fused": _is_fused(assembled.engine)} if assembled is not None else {}),
        },
        seeds={"seed": int(values.get("seed", 0))},
        devices=[str(assembled.engine.device if assembled else device)],
        command=launch.command or None,
        code_dirs=_outside(config.user_dirs, project),
    )
    if assembled is not None:
        assembled.saver_folder = recorder.folder.checkpoints
    return recorder


def _recorded_of(config: Config) -> dict[str, Any]:
    """What stands beside the config of a run: which one of its file it is, and what it was given from outside."""
    sources: dict[str, Mapping[str, Any]] = {"env": os.environ, "global": config.settings.variables}
    outside = {}
    for each in outside_used(config.root):
        kind, _, name = each.partition(":")
        outside[each] = redacted(name, sources[kind].get(name))
    which = {"variant": config.variant, "point": config.point, "outside": outside}
    return {key: value for key, value in which.items() if value}


def _is_fused(engine: Engine) -> bool:
    return any(group.get("fused") is True for group in engine.process.backward.optimizer.param_groups)


def _tell_defaults(
    recorder: RunRecorder | NullRecorder, config: Config, found: Examined, assembled: _Assembled
) -> None:
    """Nothing is taken silently: every default and everything injected gets a line in the log of the run."""
    if not isinstance(recorder, RunRecorder):
        return
    for each in [*standard_defaults(config.root), *found.defaults]:
        if each.key == "optimizer.fused":
            each = replace(each, value=str(_is_fused(assembled.engine)))
        recorder.logger.info("default %s = %s (%s, %s)", each.key, each.value, each.owner, each.origin)
    for one in found.injected:
        recorder.logger.info("injected %s by %s (%s, %s)", one.key, one.by, one.owner, one.origin)


def _project(path: Path | None) -> Project:
    """The project around a config, else around the working directory; else the working directory becomes one."""
    home = find_project(path.resolve().parent) if path is not None else None
    return home or find_project(Path.cwd()) or open_project(Path.cwd(), create=True)


def _at_home(config: Config, run: RunFile) -> Config:
    """A saved config with the modules and settings of the project that the run was started in."""
    settings = Settings(Path(run.project)) if run.project else config.settings
    return replace(config, user_dirs=_user_dirs_of(run, config), settings=settings)


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
    from assay.build import entered
    from assay.engine.deterministic import deterministic
    from assay.engine.handlers.interrupt import stopping_on_signals
    from assay.engine.handlers.save import restore_listeners

    engine, house = assembled.engine, assembled.house
    engine.recorder = recorder
    _set_recorder(house, recorder)
    with stopping_on_signals(engine) as caught:
        try:
            _listen(assembled, recorder, launch, saving=isinstance(recorder, RunRecorder))
            on = house.values("train").get("deterministic", False)
            with entered(house.plugins), deterministic(engine.process.model, enabled=on):
                engine.bus.extend(handler for plugin in house.plugins for handler in plugin.handlers())
                if assembled.loaded is not None:
                    restore_listeners(engine, assembled.loaded)
                    assembled.loaded = None
                state = engine.run()
        except BaseException as error:
            return _failed(recorder, config, error, step=engine.state.step)
    if caught.signal is not None:
        reason = state.stop_reason
        result = _ended(recorder, config, "stopped", reason, state.metrics, step=state.step)
        return replace(result, exit_code=caught.exit_code)
    return _ended(recorder, config, "finished", state.stop_reason, state.metrics, step=state.step)


def _set_recorder(house: _House, recorder: RunRecorder | NullRecorder) -> None:
    house.context.set("recorder", recorder)
    house.context.set("record_dir", recorder.folder.path if isinstance(recorder, RunRecorder) else None)


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
