"""Trial of a config without training: a rehearsed step, the audit and the speed of its data."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.callbacks import add_callbacks
from assay.compose.checks import check_and_settle, ensure_sound, refuse, sections_to_train
from assay.compose.examination import run_problems
from assay.compose.launch import Launch
from assay.compose.loaders import make_loader, splits_of
from assay.compose.prepared_run import (
    PreparedRun,
    build_engine,
    evaluation_plan,
    make_process,
)
from assay.compose.run_scope import RunScope, make_task, open_run_scope, promise_no_training
from assay.compose.weights import initial_weights
from assay.config.loading import Config
from assay.config.standard_keys import sections_of
from assay.core.errors import InputError
from assay.core.events import Event
from assay.core.ports import NullRecorder
from assay.formats.rehearsal import AxisTraffic, Rehearsal
from assay.store.layout import find_project

if TYPE_CHECKING:
    from assay.engine import Engine, Evaluate
    from assay.engine.data.audit import Audit, Speed
    from assay.engine.loop.process import Process
    from assay.engine.parallel.layout import Layout
    from assay.engine.rehearse.ladder import Parts, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalRequest:
    """Conditions of a rehearsal: those of the run, where nothing is given.

    `batch` declares one in the notation of the report, in place of the data; `memory_bytes` are
    those of one device. `bandwidths` are the bytes a second that a rank sends along an axis, and
    those of the "disk" for the checkpoints of all ranks.
    """

    device: str | None = None
    memory_bytes: int | None = None
    batch: str = ""
    bandwidths: Mapping[str, int] = field(default_factory=dict)
    processes: int = 1
    """Return how many ranks share the data where [parallel] names no axis."""


def rehearse(config: Config, wanted: RehearsalRequest | None = None) -> Rehearsal:
    """Try one step of what a config trains, without its memory, and report what it needs.

    Call it in an OS process of its own: libraries that are imported meanwhile may keep fake
    tensors. InputError for a config that is wrong, and for data that cannot be read.
    """
    from assay.engine.loop.device import memory_of, pick_device
    from assay.engine.rehearse.ladder import climb

    wanted = wanted or RehearsalRequest()
    config, _ = check_and_settle(config, *sections_to_train(config))
    processes = wanted.processes if wanted.processes > 1 else None
    refuse(run_problems(config, Launch(nproc=processes), is_here=False))
    device = pick_device(wanted.device, must_exist=False)
    limit = wanted.memory_bytes or memory_of(device)
    layout = _layout(config, wanted.processes)
    build = _builder(config, wanted, layout, device)
    if layout.pipeline > 1:
        from assay.engine.rehearse.imagined_ranks import rehearse_pipeline

        whole = partial(build, layout=layout.without_pipeline)
        report = rehearse_pipeline(whole, build, layout, limit_bytes=limit)
    else:
        report = climb(build, limit_bytes=limit)
    axes = {axis: count for axis, count in layout.sizes.items() if count > 1}
    report = replace(report, layout=axes, bubble=layout.bubble(report.micro_batches))
    return _add_times(report, wanted.bandwidths)


def _add_times(report: Rehearsal, bandwidths: Mapping[str, int]) -> Rehearsal:
    """Add the seconds that sending and writing take at these bandwidths."""

    def add_seconds(traffic: Sequence[AxisTraffic]) -> tuple[AxisTraffic, ...]:
        slowest = [
            (
                each,
                min(
                    (bandwidths[axis] for axis in each.axis.split(" x ") if axis in bandwidths),
                    default=None,
                ),
            )
            for each in traffic
        ]
        return tuple(
            replace(each, seconds=None if speed is None else each.sent_bytes / speed)
            for each, speed in slowest
        )

    disk, speed = report.disk, bandwidths.get("disk")
    if disk is not None and speed is not None:
        disk = replace(disk, seconds=disk.checkpoint_bytes / speed)
    ranks = tuple(replace(rank, traffic=add_seconds(rank.traffic)) for rank in report.ranks)
    return replace(report, traffic=add_seconds(report.traffic), ranks=ranks, disk=disk)


def _builder(
    config: Config, wanted: RehearsalRequest, layout: Layout, device: Any
) -> Callable[..., AbstractContextManager[Parts]]:
    """Return what builds the parts of a run at one place of its layout, on fake tensors."""

    @contextmanager
    def build(site: Site, layout: Layout = layout, *, place: int = 0) -> Iterator[Parts]:
        from assay.engine.rehearse.fake import STAND_IN

        with ExitStack() as stack:
            scope = stack.enter_context(open_run_scope(config, Launch(), device=STAND_IN))
            if layout.processes > 1:
                from assay.engine.rehearse.imagined_ranks import imagined_mesh

                section = scope.sections.parallel
                scope.mesh = stack.enter_context(
                    imagined_mesh(layout, STAND_IN, section, place=place)
                )
            yield _build_parts(scope, site, wanted, device)

    return build


def is_first_rank() -> bool:
    """Return True unless this is a rank that leaves it to rank 0 to print."""
    from assay.engine.parallel.process_group import world

    return world().rank == 0


def _layout(config: Config, processes: int) -> Layout:
    from assay.engine.parallel.layout import Layout

    return Layout.of(sections_of(config.root).parallel, processes=processes)


def _build_parts(scope: RunScope, site: Site, wanted: RehearsalRequest, device: Any) -> Parts:
    from assay.engine.callbacks.evaluate import metrics_of
    from assay.engine.data.shapes import declared_batch
    from assay.engine.loop.engine import check_trainable
    from assay.engine.metrics.outputs import check_mergeable
    from assay.engine.rehearse.imagined_ranks import groups_of
    from assay.engine.rehearse.ladder import Parts
    from assay.engine.rehearse.stages import data_stages, first_windows, without_workers

    make_task(scope)
    loaders: dict[str, Any] = {}
    if wanted.batch:
        count = scope.sections.train.accumulate or 1
        train: Any = [declared_batch(wanted.batch)] * count
    else:
        train = without_workers(make_loader(scope, "train"))
        period, splits = evaluation_plan(scope)
        if period != "never":
            loaders = {split: without_workers(make_loader(scope, split)) for split in splits}
    stages = tuple(data_stages(train))
    process = _build_process(scope, site)
    engine, _ = build_engine(scope, Launch(), process, train, lambda handler: handler)
    check_trainable(process, engine.state, scope.device)
    windows = first_windows(engine, train, scope.mesh, scope.sections, scope.device)
    evaluate = _add_callbacks(scope, site, engine, loaders)
    process.keeps_output = engine.needs_output
    metrics = metrics_of(process, evaluate.metrics)
    if scope.ranks is not None and loaders:
        is_staged = scope.mesh is not None and scope.mesh.layout.pipeline > 1
        check_mergeable(evaluate.pipes.pipes, metrics, is_staged=is_staged)
    keep, folder = _most_checkpoints(scope)
    return Parts(
        process=process,
        windows=windows,
        loader="declared" if wanted.batch else type(train).__name__,
        evaluations={split: _first_batch(split, loader) for split, loader in loaders.items()},
        metrics=metrics,
        pipes=evaluate.pipes,
        stages=stages,
        device=device,
        checkpoints=keep,
        free_bytes=shutil.disk_usage(folder).free,
        pipeline=scope.mesh.pipeline if scope.mesh is not None else None,
        axes=groups_of(scope.mesh) if scope.mesh is not None else {},
    )


def _build_process(scope: RunScope, site: Site) -> Process:
    """Build the process where the rung has it: its model first, which may have to be converted."""
    from assay.engine.rehearse.ladder import BuildFailedError

    try:
        with site.building(site.guard or site.observer):
            model = scope.build("model")
        if site.fakes is not None:
            site.fakes.place(model, scope.device)
        with site.building(site.observer):
            process = make_process(scope, training=True)
            initial_weights(scope.root).fill(process.model)
            return process
    except Exception as error:
        raise BuildFailedError(str(error)) from error


def _first_batch(split: str, loader: Iterable[Any]) -> Any:
    """Return the first batch of a split; InputError for none, and for one of unknown size."""
    from assay.engine.callbacks.evaluate import count_samples, empty_split

    for batch in loader:
        count_samples(batch, split)
        return batch
    raise empty_split(split)


def _add_callbacks(
    scope: RunScope, site: Site, engine: Engine, loaders: Mapping[str, Any]
) -> Evaluate:
    """Make the callbacks of the run and let those of assay look at the engine, as a run begins.

    Return that which evaluates. Plugins of others are not begun: they may write, or reach other
    machines.
    """
    from assay.engine.loop.bus import bind_by_name, roles_of

    prepared = PreparedRun(scope, engine, Path("checkpoints"), loaders=loaders)
    add_callbacks(prepared, NullRecorder(), Launch(quiet=True), saving=True)
    bind = bind_by_name(roles_of(engine))
    with site.building(site.observer):
        for plugin in scope.plugins:
            engine.bus.extend(plugin.handlers())
            if not type(plugin.thing).__module__.startswith("assay.engine.callbacks"):
                continue
            for handler in plugin.handlers():
                if handler.event == Event.RUN_BEGIN and inspect.ismethod(handler.fn):
                    bind(handler.fn)()
    assert prepared.evaluate is not None
    return prepared.evaluate


def _most_checkpoints(scope: RunScope) -> tuple[int, Path]:
    """Return the most checkpoints that exist at once, and a folder on the disk they go to."""
    path = scope.config.path
    project = find_project(path.resolve().parent if path is not None else Path.cwd())
    folder = project.runs_dir if project is not None else Path.cwd()
    while not folder.exists():
        folder = folder.parent
    settings = scope.sections.checkpoint
    if not settings.enabled:
        return 0, folder
    is_written = 1  # the oldest is deleted when the newest is complete
    return settings.keep + (settings.best is not None) + is_written, folder


def audit_data(config: Config) -> list[Audit]:
    """Load one epoch of every split in several ways, and compare the batches."""
    from assay.engine.data.audit import audit

    with open_run_scope(ensure_sound(config), Launch()) as scope:
        promise_no_training(scope.context)
        accumulate = scope.sections.train.accumulate or 1
        return [
            audit(
                make_loader(scope, split),
                split=split,
                accumulate=accumulate if split == "train" else 1,
                seed=scope.seed,
            )
            for split in splits_of(scope.root)
        ]


def bench_data(config: Config, *, seconds: float = 5.0) -> list[Speed]:
    """Measure the speed of data.train for some seconds, with and without pinned memory."""
    from assay.engine.data.audit import bench

    with open_run_scope(ensure_sound(config), Launch()) as scope:
        promise_no_training(scope.context)
        if "train" not in splits_of(scope.root):
            raise InputError("The config has no [data.train], whose speed could be measured.")
        return bench(make_loader(scope, "train"), seconds=seconds)
