"""Trace of a run: who takes fingerprints, and into which file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.compose.launch_settings import Launch
from assay.compose.make_engine import PreparedRun
from assay.compose.run_scope import RunScope
from assay.core.event_log import Warned
from assay.core.events import Handler
from assay.core.ports import NullRecorder
from assay.core.schema import parse_period
from assay.core.trace_file import Level
from assay.record.recorder import RunRecorder
from assay.record.trace_writer import TraceWriter
from assay.store.layout import RunFolder


@contextmanager
def traced(
    prepared: PreparedRun, recorder: RunRecorder | NullRecorder, launch: Launch
) -> Iterator[None]:
    """Trace the run within, if it is recorded: each rank writes a file of its own. Collective."""
    from assay.engine.parallel.process_group import world

    engine = prepared.engine
    place = _folder(prepared.scope, recorder)
    if place is None or not _how_often(prepared, launch)[0]:
        yield
        return
    folder, attempt = place
    rank = world().rank

    def warn(message: str) -> None:
        recorder.tell(Warned(message=message, step=engine.state.step))

    writer = TraceWriter(folder.trace_file(attempt, rank), attempt, on_problem=warn)
    engine.bus.extend(tracing_handlers(prepared, launch, writer.write, rank=rank))
    try:
        yield
    finally:
        writer.close()


def tracing_handlers(
    prepared: PreparedRun, launch: Launch, write: Callable[[bytes], None], *, rank: int = 0
) -> list[Handler]:
    """Return what listens to a run to trace it as its config says; none when it is off."""
    from assay.engine.trace.tracer import Tracer

    every, level = _how_often(prepared, launch)
    if not every:
        return []
    return Tracer(
        write, every=every, level=level, first=launch.traced_from or 0, rank=rank
    ).handlers()


def _how_often(prepared: PreparedRun, launch: Launch) -> tuple[int, Level]:
    """Return the steps between two that are traced, 0 for none, and the level."""
    if launch.traced_from is not None:
        return 1, "full"
    settings = prepared.scope.sections.trace
    if not settings.enabled:
        return 0, "default"
    period = parse_period(settings.every)
    length = 1 if period.unit == "step" else prepared.engine.state.epoch_length or 0
    return period.count * length, settings.level


def _folder(scope: RunScope, recorder: RunRecorder | NullRecorder) -> tuple[RunFolder, int] | None:
    """Return the folder of the record and the number of its attempt, the same on all ranks."""
    place = ["", 0]
    if isinstance(recorder, RunRecorder):
        place = [str(recorder.folder.path), recorder.run.newest.number]
    text = json.dumps(place)
    if scope.mesh is not None and scope.mesh.writers is not None:
        text = scope.mesh.writers.gather(text)[0]
    elif scope.ranks is not None:
        text = scope.ranks.all_gather_world(text)[0]
    path, attempt = json.loads(text)
    return (RunFolder(Path(path)), attempt) if path else None
