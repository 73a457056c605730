"""Artifact that a handler or a metric keeps in the record; a failure never ends the training."""

from __future__ import annotations

from assay.core.errors import AssayError
from assay.core.event_log import Warned
from assay.core.ports import Recorder


def keep_artifact(recorder: Recorder, data: bytes, name: str, *, step: int) -> None:
    """Keep `data` as a file of the run; warn when that fails."""
    try:
        recorder.artifact(data, name)
    except AssayError as error:
        recorder.tell(Warned(message=f"{name} was not kept: {error.what}", step=step))
