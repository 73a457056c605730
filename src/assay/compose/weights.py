"""Weights of a recorded run or a file: a new run begins with them, a test measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config.references import run_of
from assay.config.standard_keys import sections_of
from assay.config.tree import Table, get_at
from assay.core.errors import CheckpointError, InputError, RecordError, did_you_mean
from assay.formats import manifest as manifests
from assay.formats import run_file
from assay.query.find import best_or_latest, checkpoint_of, describe_newer_damage, find

if TYPE_CHECKING:
    from assay.engine.checkpoint.own_share import Readers, Share
    from assay.engine.loop.process import Model


_WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".h5", ".npz")
"""Endings of files of weights: no run is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Checkpoint or file of weights that a run begins with, or a test measures.

    `path` is None for none. `parent` is RUN@CHECKPOINT by id, "" for a file of no run; `step` is
    that of the checkpoint, and `why` says why it is this one of its run. `options` are those of
    `load_weights`: rename, mapping, strict, pickled. `damage` says which newer checkpoints could
    not be taken.
    """

    path: Path | None = None
    parent: str = ""
    step: int = 0
    why: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    damage: str = ""

    def fill(self, model: Model, share: Share | None = None, readers: Readers | None = None) -> str:
        """Load the weights into a model; return a note on what did not fit, and on damage.

        Of a checkpoint whose names stay a rank reads its own `share`, together with the `readers`.
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
                own = share if not (how.get("rename") or how.get("mapping")) else None
                report = fit_weights(model, evaluated_weights(self.path, own, readers), **how)
            else:
                report = load_weights(model, self.path, **how)
        except CheckpointError as error:
            raise InputError(
                error.what, where=error.where or str(self.path), fix=error.fix
            ) from error
        misfit = "" if report.fits else f"weights of {self.path}: {report}"
        return " ".join(filter(None, [self.damage, misfit]))


def initial_weights(root: Table, address: str = "") -> Weights:
    """Return the weights that `--from` names, else those of [load_weights]."""
    if address:
        return find_weights(address)
    section = sections_of(root).load_weights
    node = get_at(root, ("load_weights",))
    if section is None or node is None:
        return Weights()
    try:
        weights = find_weights(run_of(section.path) or section.path)
    except InputError as error:
        raise InputError(error.what, where=str(node.origin), fix=error.fix) from error
    options = {name: getattr(section, name) for name in ("rename", "mapping", "strict", "pickled")}
    written = {name: value for name, value in options.items() if value is not None}
    return replace(weights, options=written)


def find_weights(address: str) -> Weights:
    """Return the weights at RUN, RUN@CHECKPOINT, a checkpoint's folder or a file.

    Of a RUN the best, else the newest checkpoint.

    InputError when there is nothing, with what there is.
    """
    path = Path(address).expanduser()
    if path.is_file() or (path / manifests.FILE_NAME).is_file():
        return Weights(path=path, parent=_parent_of(path))
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
        checkpoint = checkpoint_of(view, name)
    except CheckpointError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    damage = describe_newer_damage(view, checkpoint) if name == "latest" else ""
    return Weights(path=checkpoint.path, parent=f"{view.id}@{checkpoint.name}", damage=damage)


def weights_at(address: str) -> Weights:
    """Return the weights to test at RUN, RUN@CHECKPOINT, a checkpoint's folder or a file.

    Of a RUN they are the best ones if it kept any, else the newest.
    """
    path = Path(address).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise InputError(f"There is no file of weights {address}.")
        return Weights(path=path)
    if (path / manifests.FILE_NAME).is_file():
        return Weights(path=path, step=manifests.read(path).step)
    view, name = find(address)
    if name:
        why = "as asked for"
    elif (name := best_or_latest(view)) == "best":
        why = f"the best by {view.best.metric}" if view.best is not None else "the best"
    else:
        why = "the newest that were kept"
    checkpoint = checkpoint_of(view, name)
    folder, step = checkpoint.path, manifests.read(checkpoint.path).step
    if step < view.last_step and view.status_text != view.status:
        why += f" (step {view.last_step} was the last; {view.status_text})"
    if name == "latest" and (damage := describe_newer_damage(view, checkpoint)):
        why += f". {damage.removesuffix('.')}"
    return Weights(path=folder, parent=f"{view.id}@{folder.name}", step=step, why=why)


def with_step(weights: Weights) -> Weights:
    """Return weights with the step of their checkpoint, 0 for a file."""
    path = weights.path
    is_checkpoint = path is not None and (path / manifests.FILE_NAME).is_file()
    return replace(weights, step=manifests.read(path).step if path and is_checkpoint else 0)


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
