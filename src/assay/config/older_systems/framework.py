"""Tables of the names that a text of 2021 imports, or uses without an import."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName

_HERE = "assay.compat.framework"

NAMES: Mapping[str, OlderName] = {
    "tensorboardX.SummaryWriter": OlderName(
        target=f"{_HERE}.writer.SummaryWriter",
        instead="`run = assay.start()`, `run.log`, and `assay.TensorBoard` for event files",
    ),
    "hiddenlayer.History": OlderName(
        target=f"{_HERE}.canvas.History", instead="`run.log({...}, step)`"
    ),
    "hiddenlayer.Canvas": OlderName(
        target=f"{_HERE}.canvas.Canvas", instead="`assay live last`, `run.plot()`, and `assay ui`"
    ),
}
"""Names of `tensorboardX` and `hiddenlayer`."""

UNIMPORTED: Mapping[str, OlderName] = {
    "convert_examples_to_features": OlderName(
        target=f"{_HERE}.features.convert_examples_to_features",
        instead="`pair_features` of assay.engine.data.text, and `to_tensors` of its result",
    ),
    "get_lr": OlderName(
        target=f"{_HERE}.training.get_lr", instead="`optimizer/lr`, which each run records"
    ),
    "train_epoch": OlderName(
        target=f"{_HERE}.training.train_epoch", instead="`Engine(process, loader).run()`"
    ),
    "worker_init_fn": OlderName(
        target=f"{_HERE}.training.worker_init_fn", instead="nothing: workers are seeded"
    ),
}
"""Names that the text uses and does not say where from."""
