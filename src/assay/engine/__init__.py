"""Engine: the training loop and everything that needs torch.

A config may name what is listed here as `assay.engine.NAME`.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "assay.engine needs PyTorch, which is not installed: pip install torch"
        " (pytorch.org says which build fits).",
        name="torch",
    ) from None

from assay.core.events import At, Event, Every, Handler
from assay.engine.callbacks.batch_digest import BatchDigest
from assay.engine.callbacks.change import ResetOptimizer, SetRequiresGrad, SetValue
from assay.engine.callbacks.display import Display
from assay.engine.callbacks.early_stop import EarlyStop
from assay.engine.callbacks.ema import EMA
from assay.engine.callbacks.evaluate import Evaluate, evaluate
from assay.engine.callbacks.norms import Norms
from assay.engine.callbacks.pipelines import Pipelines
from assay.engine.callbacks.probe import Probe
from assay.engine.callbacks.resources import Memory, Profile, Throughput
from assay.engine.callbacks.save import Save
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.weights import load_checkpoint, load_weights, save_weights
from assay.engine.data.chain import chain
from assay.engine.data.instance import DistTensorData, Instance
from assay.engine.data.loader import Loader
from assay.engine.data.plan import Plan
from assay.engine.data.samplers import Balanced, ByLength, Subset, Weighted
from assay.engine.data.worker_faults import WorkerError
from assay.engine.loop.bus import every, on
from assay.engine.loop.engine import Engine
from assay.engine.loop.process import Process, Supervised
from assay.engine.loop.state import State
from assay.engine.loop.styles.adapt import as_process
from assay.engine.loop.styles.flags import ModelWrapper
from assay.engine.loop.styles.function import StepFunction
from assay.engine.loop.styles.hand import ByHand
from assay.engine.loop.styles.own_loss import OwnLoss
from assay.engine.loop.task import Task
from assay.engine.metrics import (
    AUROC,
    F1,
    Accuracy,
    Adapted,
    Confusion,
    Mean,
    Perplexity,
    Precision,
    Recall,
)
from assay.engine.metrics.outputs import Collect, Evaluation, SaveOutputs
from assay.engine.model.modules import padded_vocabulary, unwrap
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.seed import get_state, seed_all, set_state
from assay.engine.optim.groups import Groups
from assay.engine.optim.multi_optimizer_step import MultiOptimizerStep
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.ramps import Cycle, Ramp
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep
from assay.engine.optim.schedules import (
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

__all__ = [
    "AUROC",
    "EMA",
    "F1",
    "Accuracy",
    "Adapted",
    "At",
    "Balanced",
    "BatchDigest",
    "ByHand",
    "ByLength",
    "Collect",
    "Confusion",
    "Constant",
    "Cycle",
    "Display",
    "DistTensorData",
    "EarlyStop",
    "Engine",
    "Evaluate",
    "Evaluation",
    "Event",
    "Every",
    "Groups",
    "Handler",
    "Instance",
    "Loader",
    "Mean",
    "Memory",
    "ModelWrapper",
    "MultiOptimizerStep",
    "Noam",
    "NonFiniteError",
    "Norms",
    "OptimizerStep",
    "OptimizerStepBase",
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
    "Save",
    "SaveOutputs",
    "Saver",
    "ScaledOptimizerStep",
    "SetRequiresGrad",
    "SetValue",
    "State",
    "StepFunction",
    "Subset",
    "Supervised",
    "Task",
    "Throughput",
    "TorchSchedule",
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
