"""What a listener keeps as a file of the run. A file that cannot be kept never ends the
training."""

from __future__ import annotations

from assay.core.errors import AssayError
from assay.core.event_log import Warned
from assay.core.ports import Recorder
from assay.engine.loop.engine import Engine


def keep(engine: Engine, data: bytes, name: str) -> None:
    """Keep `data` in the record; a warning when that fails."""
    keep_in(engine.recorder, data, name, step=engine.state.step)


def keep_in(recorder: Recorder, data: bytes, name: str, *, step: int) -> None:
    """As `keep`, where there is no engine."""
    try:
        recorder.artifact(data, name)
    except AssayError as error:
        recorder.tell(Warned(message=f"{name} was not kept: {error.what}", step=step))
