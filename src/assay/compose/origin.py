"""Where the weights of a new run come from: `--from`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import manifest as manifests
from assay.core import run_file
from assay.core.errors import CheckpointError, InputError, RecordError
from assay.query.find import checkpoint_of, find

if TYPE_CHECKING:
    from assay.engine.process import Model


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint or a file of weights, None for none; `parent` is RUN@CHECKPOINT by id, "" when it is of no run."""

    path: Path | None = None
    parent: str = ""

    def fill(self, model: Model) -> None:
        """Give a model the weights, and nothing else. InputError when they do not fit or cannot be read."""
        from assay.engine.checkpoint.weights import load_model_state, load_weights
        from assay.engine.handlers.ema import evaluated_weights

        if self.path is None:
            return
        try:
            if (self.path / manifests.FILE_NAME).exists() and _is_of_a_run(self.path):
                load_model_state(model, evaluated_weights(self.path))
            else:
                load_weights(model, self.path)
        except CheckpointError as error:
            raise InputError(error.what, where=error.where or str(self.path), fix=error.fix) from error


def origin_of(address: str) -> Origin:
    """What RUN, RUN@CHECKPOINT, a checkpoint's folder or a file of weights means; of a RUN its best, else its newest.

    InputError when there is nothing, with what there is.
    """
    path = Path(address).expanduser()
    if path.is_file() or (path / manifests.FILE_NAME).is_file():
        return Origin(path, _parent_of(path))
    view, name = find(address)
    try:
        found = checkpoint_of(view, name or ("best" if view.best_checkpoint is not None else "latest"))
    except CheckpointError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    return Origin(found.path, f"{view.id}@{found.name}")


def _is_of_a_run(path: Path) -> bool:
    return any(part.name == "model" for part in manifests.read(path).parts)


def _parent_of(path: Path) -> str:
    """The run whose folder a checkpoint lies in."""
    try:
        return f"{run_file.read(path.resolve().parent.parent).id}@{path.name}" if path.is_dir() else ""
    except (OSError, RecordError):
        return ""
