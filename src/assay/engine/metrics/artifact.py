"""Artifact that a handler or a metric keeps in the record; a failure never ends the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from assay.core.errors import AssayError
from assay.core.facts import Warned
from assay.core.ports import Recorder
from assay.engine.metrics.metric import Matrix


def keep_artifact(recorder: Recorder, data: bytes, name: str, *, step: int) -> None:
    """Keep `data` as a file of the run; warn when that fails."""
    with _warned(recorder, name, step):
        recorder.artifact(data, name)


def keep_matrix(recorder: Recorder, matrix: Matrix, name: str, *, step: int) -> None:
    """Keep a matrix as the table `name.csv` and the picture `name.png`; warn when that fails."""
    with _warned(recorder, name, step):
        columns, rows = matrix.rows()
        recorder.table(f"{name}.csv", rows, columns, step)
        recorder.image(f"{name}.png", matrix.picture(), step)


@contextmanager
def _warned(recorder: Recorder, name: str, step: int) -> Iterator[None]:
    try:
        yield
    except AssayError as error:
        recorder.tell(Warned(message=f"{name} was not kept: {error.what}", step=step))
