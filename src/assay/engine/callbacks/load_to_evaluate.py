"""Loading of weights for evaluation, from a checkpoint or from a file of weights only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.engine.callbacks.ema import evaluated_weights
from assay.engine.checkpoint.folder import load
from assay.engine.checkpoint.weights import Report, fit_weights, load_weights
from assay.engine.loop.process import Process
from assay.engine.optim.criterion import PARTS, load_process_state
from assay.formats import manifest as manifests


def load_to_evaluate(
    process: Process, path: Path, options: Mapping[str, Any] | None = None
) -> Report:
    """Load a checkpoint folder, or a file of weights, into a process; return what did not fit.

    A checkpoint also restores the criterion and the modules of the process. `options`: those of
    `load_weights`. CheckpointError when the weights cannot be read or do not fit.
    """
    how = dict(options or {})
    if path.is_dir() and any(part.name == "model" for part in manifests.read(path).parts):
        how.pop("pickled", None)
        report = fit_weights(process.model, evaluated_weights(path), resizes=not how, **how)
        beside = tuple(p.name for p in manifests.read(path).parts if p.name in PARTS)
        if beside:
            load_process_state(process, load(path, parts=beside))
        return report
    return load_weights(process.model, path, **how)
