"""Initial weights of a new run, from `--from` or [load_weights]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config.references import run_of
from assay.config.tree import Table, get_at
from assay.config.typed_sections import sections_of
from assay.core import manifest as manifests
from assay.core import run_file
from assay.core.errors import CheckpointError, InputError, RecordError, did_you_mean
from assay.query.find import best_or_latest, checkpoint_of, describe_newer_damage, find

if TYPE_CHECKING:
    from assay.engine.loop.process import Model

_WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".h5", ".npz")
"""Endings of files of weights: no run is called so."""


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Checkpoint or file of weights that a run begins with; `path` is None for none.

    `parent` is RUN@CHECKPOINT by id, "" for a file of no run.

    `options` are those of `load_weights`: rename, mapping, strict, pickled. `damage` says which
    newer checkpoints could not be taken.
    """

    path: Path | None = None
    parent: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    damage: str = ""

    def fill(self, model: Model) -> str:
        """Load the weights into a model; return a note on what did not fit, and on damage.

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
        misfit = "" if report.fits else f"weights of {self.path}: {report}"
        return " ".join(filter(None, [self.damage, misfit]))


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
    return replace(found, options=given)


def find_weights(address: str) -> InitialWeights:
    """Return the weights at RUN, RUN@CHECKPOINT, a checkpoint's folder or a file.

    Of a RUN the best, else the newest checkpoint.

    InputError when there is nothing, with what there is.
    """
    path = Path(address).expanduser()
    if path.is_file() or (path / manifests.FILE_NAME).is_file():
        return InitialWeights(path, _parent_of(path))
    if path.suffix in _WEIGHTS:
        near = path.parent.glob(f"*{path.suffix}") if path.parent.is_dir() else ()
        fix = did_you_mean(address, [str(other) for other in near])
        raise InputError(
            f"There is no file `{address}`.",
            where=str(path.absolute().parent),
            fix=fix or "give the path of a file of weights, or RUN@CHECKPOINT",
        )
    view, name = find(address)
    try:
        name = name or best_or_latest(view)
        found = checkpoint_of(view, name)
    except CheckpointError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    damage = describe_newer_damage(view, found) if name == "latest" else ""
    return InitialWeights(found.path, f"{view.id}@{found.name}", damage=damage)


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
