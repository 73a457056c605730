"""Initial weights of a new run, from `--from` or [load_weights]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config.references import run_of
from assay.config.tree import Table, get_at
from assay.config.typed_sections import sections_of
from assay.core import manifest as manifests
from assay.core import run_file
from assay.core.errors import CheckpointError, InputError, RecordError
from assay.query.find import best_or_latest, checkpoint_of, find

if TYPE_CHECKING:
    from assay.engine.loop.process import Model


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Checkpoint or file of weights that a run begins with; `path` is None for none.

    `parent` is RUN@CHECKPOINT by id, "" for a file of no run.

    `options` are those of `load_weights`: rename, mapping, strict, pickled.
    """

    path: Path | None = None
    parent: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def fill(self, model: Model) -> str:
        """Load the weights into a model; return a note on what did not fit, where that is allowed.

        InputError when they do not fit or cannot be read.
        """
        from assay.engine.callbacks.ema import evaluated_weights
        from assay.engine.checkpoint.weights import fit_weights, load_weights

        if self.path is None:
            return ""
        how = dict(self.options)
        try:
            if (self.path / manifests.FILE_NAME).exists() and _is_of_a_run(self.path):
                how.pop("pickled", None)
                report = fit_weights(model, evaluated_weights(self.path), **how)
            else:
                report = load_weights(model, self.path, **how)
        except CheckpointError as error:
            raise InputError(
                error.what, where=error.where or str(self.path), fix=error.fix
            ) from error
        return "" if report.fits else f"weights of {self.path}: {report}"


def initial_weights(root: Table, address: str = "") -> InitialWeights:
    """Return the weights that `--from` names, else those of [load_weights]."""
    if address:
        return find_weights(address)
    section = sections_of(root).load_weights
    node = get_at(root, ("load_weights",))
    if section is None or node is None:
        return InitialWeights()
    try:
        found = find_weights(run_of(section.path) or section.path)
    except InputError as error:
        raise InputError(error.what, where=str(node.origin), fix=error.fix) from error
    options = {name: getattr(section, name) for name in ("rename", "mapping", "strict", "pickled")}
    given = {name: value for name, value in options.items() if value is not None}
    return InitialWeights(found.path, found.parent, given)


def find_weights(address: str) -> InitialWeights:
    """Return the weights at RUN, RUN@CHECKPOINT, a checkpoint's folder or a file.

    Of a RUN the best, else the newest checkpoint.

    InputError when there is nothing, with what there is.
    """
    path = Path(address).expanduser()
    if path.is_file() or (path / manifests.FILE_NAME).is_file():
        return InitialWeights(path, _parent_of(path))
    view, name = find(address)
    try:
        found = checkpoint_of(view, name or best_or_latest(view))
    except CheckpointError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    return InitialWeights(found.path, f"{view.id}@{found.name}")


def _is_of_a_run(path: Path) -> bool:
    return any(part.name == "model" for part in manifests.read(path).parts)


def _parent_of(path: Path) -> str:
    """Return RUN@CHECKPOINT for the folder of a checkpoint inside of a run, else ""."""
    try:
        return (
            f"{run_file.read(path.resolve().parent.parent).id}@{path.name}" if path.is_dir() else ""
        )
    except (OSError, RecordError):
        return ""
