"""Scope of one run: everything that its parts share while they are built and while it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.config import dump
from assay.config.loading import Config
from assay.config.resolver import with_external_values
from assay.config.standard_keys import sections_of
from assay.config.tree import KeyPath, List, Table, dotted, get_at, plain
from assay.core.errors import AssayError, ConfigError, InputError
from assay.core.facts import Warned
from assay.core.ports import Recorder
from assay.core.sections import StandardSections
from assay.record.logfile import debugging as debugging_log

if TYPE_CHECKING:
    from assay.build import Context, Plugin
    from assay.engine.loop.device import Device
    from assay.engine.metrics.outputs import Pipes
    from assay.engine.parallel.distributed_group import DistributedGroup
    from assay.engine.parallel.process_group import Mesh
    from assay.engine.parallel.rank_folder import RankFolder
    from assay.formats.heartbeats import Heartbeats


BLOCKING_VARIABLE = "CUDA_LAUNCH_BLOCKING"
"""Read by CUDA when it starts, in this process and in those that load data."""


@dataclass(slots=True)
class RunScope:
    """Config, context, device, plugins and process mesh of one run."""

    config: Config
    root: Table
    sections: StandardSections
    context: Context
    device: Device
    closing: ExitStack
    plugins: list[Plugin] = field(default_factory=list)
    task: Any = None
    meta: bytes = b""
    mesh: Mesh | None = None
    """The processes of this run, where there are several."""
    rank: int = 0
    ranks_here: int = 1
    """Number of processes of this run on the machine."""
    rank_folder: RankFolder | None = None
    """Folder of the processes of this machine."""
    beats: Heartbeats | None = None
    """Signs of life of this process."""

    @property
    def seed(self) -> int:
        """Seed of every random number of the run."""
        return self.sections.seed

    @property
    def ranks(self) -> DistributedGroup | None:
        """Ranks that share the samples, None for a single process."""
        return None if self.mesh is None else self.mesh.ranks

    @property
    def is_first(self) -> bool:
        """Return True on the rank that records and prints."""
        return self.ranks is None or self.ranks.is_first

    def tell_ending(self) -> None:
        """Tell the watchdog that the run is over, and its end is being written."""
        if self.beats is not None:
            self.beats.ending()

    def build(self, section: str) -> Any:
        return self.build_at((section,))

    def build_at(self, path: KeyPath, **extra: Any) -> Any:
        """Build the call at `path`; `extra` are arguments for keys that are not written."""
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


@contextlib.contextmanager
def open_run_scope(
    config: Config,
    launch: Launch,
    *,
    joins: bool = False,
    resumes: str = "",
    device: Device | None = None,
    part: str = "",
) -> Iterator[RunScope]:
    """Open the scope of a run; close everything that was opened for it at exit.

    `joins`: together with the other ranks of the run, which all have to name the same `resumes`.

    `device` is one that is known already, in place of the one of `launch`. With `part` only this
    section is built, and secrets of others need not be there.
    """
    from assay.build import Context, user_code
    from assay.engine.loop.device import pick_device
    from assay.engine.numerics.precision import matmul_precision

    if joins:
        device = _device_of_rank(launch)
    elif device is None:
        device = pick_device(the_one_device(launch))
    root = _fill_in_secrets(config, part)
    sections = sections_of(root)
    with ExitStack() as stack:
        stack.enter_context(debugging(on=launch.debug))
        stack.enter_context(user_code(config.user_dirs))
        context = Context()
        stack.callback(context.close)
        stack.enter_context(context.use())
        stack.enter_context(matmul_precision(sections.train.precision))
        scope = RunScope(config, root, sections, context, device, stack)
        if joins:
            _join_process_group(scope, launch, resumes)
        _furnish(scope, launch)
        yield scope


@contextlib.contextmanager
def debugging(*, on: bool) -> Iterator[None]:
    """Switch on everything that `--debug` means, and restore it at exit.

    Enter before a device is used.
    """
    if not on:
        yield
        return
    before = os.environ.get(BLOCKING_VARIABLE)
    os.environ[BLOCKING_VARIABLE] = "1"
    from assay.engine.numerics.nan_debug import locate_backward_errors

    try:
        with debugging_log(), locate_backward_errors():
            yield
    finally:
        os.environ.pop(BLOCKING_VARIABLE)
        if before is not None:
            os.environ[BLOCKING_VARIABLE] = before


def _device_of_rank(launch: Launch) -> Device:
    from assay.engine.loop.device import pick_device
    from assay.engine.parallel.process_group import device_of_rank, world

    return pick_device(device_of_rank(the_one_device(launch), world()))


def _join_process_group(scope: RunScope, launch: Launch, resumes: str) -> None:
    """Join the process group of the run, and report heartbeats. Collective."""
    from assay.engine.parallel.layout import Layout
    from assay.engine.parallel.process_group import process_group, world
    from assay.engine.parallel.standstill import watched_from_inside
    from assay.formats.heartbeats import FileHeartbeats

    here = world()
    parallel = scope.sections.parallel
    stack = scope.closing
    scope.rank, scope.ranks_here = here.rank, here.local_count
    scope.rank_folder = rank_folder_of(launch)
    layout = Layout.of(parallel, processes=here.count)
    group = process_group(here, scope.device, layout, parallel)
    scope.mesh = stack.enter_context(group)
    _check_alike(scope, resumes)
    if scope.ranks is not None and not launch.ranks_folder:
        watch = watched_from_inside(scope.ranks, here.rank, parallel.timeout)
        scope.rank_folder = stack.enter_context(watch)
    if scope.rank_folder is not None:
        scope.beats = FileHeartbeats(scope.rank_folder.beat(here.rank))
        if scope.ranks is not None:
            scope.ranks.beats = scope.beats


def check_device(name: str) -> None:
    """Raise InputError when there is no such device here."""
    from assay.engine.loop.device import pick_device

    pick_device(name)


def the_one_device(launch: Launch) -> str | None:
    """Return the device of one run, None for the accelerator if there is one.

    InputError when several are named.
    """
    names = launch.devices()
    if len(names) > 1:
        fix = (
            "Name one. Several are for several runs: the configs of `assay run` take them in turn."
        )
        raise InputError(
            f"A run uses one device; here are {len(names)}: {', '.join(names)}.", fix=fix
        )
    return names[0] if names else None


def _check_alike(scope: RunScope, resumes: str) -> None:
    """Raise InputError when another rank has read another config, or resumes another run."""
    if scope.ranks is None:
        return
    if len(set(scope.ranks.all_gather_world(resumes))) > 1:
        raise InputError(
            "The processes do not agree which run they resume.",
            fix="Name it: assay resume RUN.",
        )
    if len(set(scope.ranks.all_gather_world(dump(scope.config.root)))) > 1:
        raise InputError(
            "The processes of this run have read different configs.", fix="Start them with --nproc."
        )


def rank_folder_of(launch: Launch) -> RankFolder | None:
    """Return the folder of the ranks that assay started on this machine."""
    from assay.engine.parallel.rank_folder import RankFolder

    path = Path(launch.ranks_folder)
    return RankFolder(path, launcher=path.parent) if launch.ranks_folder else None


def _furnish(scope: RunScope, launch: Launch) -> None:
    """Fill the context: facts known at the start, promises for the rest, and the plugins."""
    from assay.build import as_plugin, plugin_paths, promise_run

    context, config = scope.context, scope.config
    context.set("context", context)
    context.set("run_config", config)
    context.set("cfg", plain(scope.root))
    context.set("debug", launch.debug)
    context.set("device", scope.device)
    context.set(
        "device_info",
        {"name": str(scope.device), "type": scope.device.type, "index": scope.device.index},
    )
    context.provide(_console, name="console")
    promise_run(scope.root, context, user_dirs=config.user_dirs, trusted=config.settings.trusted)
    for path in plugin_paths(scope.root):
        plugin = as_plugin(dotted(path), scope.build_at(path))
        context.set(plugin.where, plugin.thing)
        context.install(plugin.thing)
        scope.plugins.append(plugin)
    context.set("plugins", [plugin.thing for plugin in scope.plugins])


def _console() -> Any:
    from rich.console import Console

    return Console()


def _fill_in_secrets(config: Config, part: str) -> Table:
    """Return the config with the values of variables that it does not hold: the secrets."""
    root, problems = with_external_values(config.root, os.environ, config.settings.variables)
    missing = [each for each in problems if not part or each.key.partition(".")[0] == part]
    if missing:
        raise ConfigError(missing)
    return root


def promise_no_training(context: Context) -> None:
    """Promise errors in place of the objects that only training has."""
    from assay.build import Promise

    for name in ("optimizer", "schedule", "backward", "engine", "state"):
        context.promise(name, Promise(never="this is a test, which does not train"))


META = "task/meta.json"
"""The name of the artifact that holds what the task knows about its data."""


def make_task(scope: RunScope) -> Any:
    """Build [task] once; return None where there is none."""
    from assay.engine.loop.task import meta_of

    if "task" not in scope.root.items:
        return None
    if scope.task is None:
        task = scope.build("task")
        if not hasattr(task, "dataset"):
            raise InputError(
                f"[task] made a {type(task).__name__}, which has no data sets.",
                fix="Derive it from assay.engine.Task, or write `def dataset(self, split)`.",
            )
        scope.context.set("task", task)
        # Made now, so that what cannot be written is known before the run begins.
        scope.task = task
        scope.meta = meta_of(task)
    return scope.task


def dataset_of(scope: RunScope, split: str) -> Any:
    """Return the task's dataset for a split whose section has no source."""
    task = make_task(scope)
    if task is None:
        raise InputError(f"[data.{split}] has no source, and there is no [task].")
    dataset = task.dataset(split)
    if dataset is None:
        raise InputError(f"The task {type(task).__name__} gave nothing for the split {split!r}.")
    return dataset


def evaluation_of(scope: RunScope) -> tuple[Pipes, Mapping[str, Any]]:
    """Return the pipes of an evaluation, those of the task first, and the task's metrics."""
    from assay.engine.metrics.outputs import Pipes

    task = make_task(scope)
    node = get_at(scope.root, ("evaluate", "pipes"))
    own = scope.build_at(("evaluate", "pipes")) if isinstance(node, List) else []
    return Pipes([*getattr(task, "pipes", ()), *own]), getattr(task, "metrics", {})


def keep_meta(scope: RunScope, recorder: Recorder) -> None:
    """Keep the task's description of its data in the record."""
    if scope.meta:
        try:
            recorder.artifact(scope.meta, META)
        except AssayError as error:
            recorder.tell(Warned(message=f"{META} was not kept: {error.what}"))
