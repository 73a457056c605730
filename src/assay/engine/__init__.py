"""The workshop: the loop and all that needs torch. A config may name what is listed here as
`assay.engine.NAME`."""

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
from assay.engine.backward import Backward
from assay.engine.backward_part import BackwardPart, NonFiniteError
from assay.engine.backwards import Backwards
from assay.engine.bus import on
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import load_checkpoint, load_weights, save_weights
from assay.engine.data.loader import Loader
from assay.engine.data.patience import WorkerError
from assay.engine.data.plan import Plan
from assay.engine.data.samplers import Balanced, ByLength, Subset, Weighted
from assay.engine.engine import Engine
from assay.engine.groups import Groups
from assay.engine.handlers.batch_digest import BatchDigest
from assay.engine.handlers.change import ResetOptimizer, SetRequiresGrad, SetValue
from assay.engine.handlers.display import Display
from assay.engine.handlers.early_stop import EarlyStop
from assay.engine.handlers.ema import EMA
from assay.engine.handlers.evaluate import Evaluate, evaluate
from assay.engine.handlers.memory import Memory
from assay.engine.handlers.norms import Norms
from assay.engine.handlers.pipelines import Pipelines
from assay.engine.handlers.probe import Probe
from assay.engine.handlers.profile import Profile
from assay.engine.handlers.save import Save
from assay.engine.handlers.throughput import Throughput
from assay.engine.instance import DistTensorData, Instance
from assay.engine.metrics import (
    F1,
    Accuracy,
    Adapted,
    Confusion,
    Mean,
    Perplexity,
    Precision,
    Recall,
)
from assay.engine.outputs import Collect, Evaluation, SaveOutputs
from assay.engine.pipes import chain
from assay.engine.process import Process, Supervised
from assay.engine.ramps import Cycle, Ramp
from assay.engine.rnd import RndManager
from assay.engine.scaler import ScaledBackward
from assay.engine.schedules import (
    Constant,
    Noam,
    TorchSchedule,
    WarmupCosine,
    WarmupExponential,
    WarmupLinear,
    WarmupMultiStep,
    WarmupPoly,
    WarmupStep,
)
from assay.engine.seed import get_state, seed_all, set_state
from assay.engine.state import State
from assay.engine.styles.adapt import as_process
from assay.engine.styles.flags import ModelWrapper
from assay.engine.styles.function import StepFunction
from assay.engine.styles.hand import ByHand
from assay.engine.styles.own_loss import OwnLoss
from assay.engine.styles.trainer import Callback, EvalCallback, LoggerCallback, Trainer
from assay.engine.task import Task
from assay.engine.unwrap import unwrap
from assay.engine.vocabulary import padded_vocabulary
from assay.engine.when import every

__all__ = [
    "EMA",
    "F1",
    "Accuracy",
    "Adapted",
    "At",
    "Backward",
    "BackwardPart",
    "Backwards",
    "Balanced",
    "BatchDigest",
    "ByHand",
    "ByLength",
    "Callback",
    "Collect",
    "Confusion",
    "Constant",
    "Cycle",
    "Display",
    "DistTensorData",
    "EarlyStop",
    "Engine",
    "EvalCallback",
    "Evaluate",
    "Evaluation",
    "Event",
    "Every",
    "Groups",
    "Handler",
    "Instance",
    "Loader",
    "LoggerCallback",
    "Mean",
    "Memory",
    "ModelWrapper",
    "Noam",
    "NonFiniteError",
    "Norms",
    "OwnLoss",
    "Perplexity",
    "Pipelines",
    "Plan",
    "Precision",
    "Probe",
    "Process",
    "Profile",
    "Ramp",
    "Recall",
    "ResetOptimizer",
    "RndManager",
    "Save",
    "SaveOutputs",
    "Saver",
    "ScaledBackward",
    "SetRequiresGrad",
    "SetValue",
    "State",
    "StepFunction",
    "Subset",
    "Supervised",
    "Task",
    "Throughput",
    "TorchSchedule",
    "Trainer",
    "WarmupCosine",
    "WarmupExponential",
    "WarmupLinear",
    "WarmupMultiStep",
    "WarmupPoly",
    "WarmupStep",
    "Weighted",
    "Where",
    "WorkerError",
    "as_process",
    "chain",
    "evaluate",
    "every",
    "get_state",
    "load_checkpoint",
    "load_weights",
    "on",
    "padded_vocabulary",
    "save_weights",
    "seed_all",
    "set_state",
    "unwrap",
]


def __dir__() -> list[str]:
    return sorted(__all__)
