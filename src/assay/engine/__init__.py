"""The workshop: the loop and all that needs torch. A config may name what is listed here as `assay.engine.NAME`."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "assay.engine needs PyTorch, which is not installed: pip install torch (pytorch.org says which build fits).",
        name="torch",
    ) from None

from assay.core.events import At, Event, Every, Handler
from assay.engine.backward import Backward, NonFiniteError
from assay.engine.bus import on
from assay.engine.checkpoint.saver import Saver, Where
from assay.engine.data.loader import Loader
from assay.engine.data.plan import Plan
from assay.engine.engine import Engine
from assay.engine.handlers.display import Display
from assay.engine.handlers.evaluate import Evaluate, evaluate
from assay.engine.handlers.save import Save
from assay.engine.metrics import Accuracy, Mean
from assay.engine.process import Process, Supervised
from assay.engine.schedules import Constant, WarmupCosine, WarmupLinear
from assay.engine.seed import seed_all
from assay.engine.state import State
from assay.engine.when import every

__all__ = [
    "Accuracy",
    "At",
    "Backward",
    "Constant",
    "Display",
    "Engine",
    "Evaluate",
    "Event",
    "Every",
    "Handler",
    "Loader",
    "Mean",
    "NonFiniteError",
    "Plan",
    "Process",
    "Save",
    "Saver",
    "State",
    "Supervised",
    "WarmupCosine",
    "WarmupLinear",
    "Where",
    "evaluate",
    "every",
    "on",
    "seed_all",
]
