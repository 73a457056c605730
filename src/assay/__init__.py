"""Train PyTorch models from one config file, and keep a record of every run.

This is the face of assay: names that are looked up when they are first used, so that `import assay`
costs nothing and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compose import load_model as load_model
    from assay.config.params import BaseParams as BaseParams
    from assay.config.params import Params as Params
    from assay.jobs.isolated_runs import run as run
    from assay.plugins.tensorboard import TensorBoard as TensorBoard
    from assay.query.table import runs as runs
    from assay.record.logger import Logger as Logger
    from assay.record.meter import AvgMeter as AvgMeter
    from assay.record.meter import Meter as Meter
    from assay.report.figure import figure as figure
    from assay.script import start as start

    __version__: str

_HOMES = {
    "AvgMeter": "assay.record.meter",
    "BaseParams": "assay.config.params",
    "Logger": "assay.record.logger",
    "Meter": "assay.record.meter",
    "Params": "assay.config.params",
    "TensorBoard": "assay.plugins.tensorboard",
    "figure": "assay.report.figure",
    "load_model": "assay.compose",
    "run": "assay.jobs.isolated_runs",
    "runs": "assay.query.table",
    "start": "assay.script",
}
"""Public name -> the module that defines it."""

__all__ = [
    "AvgMeter",
    "BaseParams",
    "Logger",
    "Meter",
    "Params",
    "TensorBoard",
    "__version__",
    "figure",
    "load_model",
    "run",
    "runs",
    "start",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("assay.core.version").version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        from assay.core.errors import did_you_mean  # only where a name is wrong

        near = did_you_mean(name, __all__)
        what = f"module 'assay' has no attribute {name!r}"
        raise AttributeError(f"{what}; {near}" if near else what)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
