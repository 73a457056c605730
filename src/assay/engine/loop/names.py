"""Standard types for annotating parameters: a parameter annotated with one is injected.

    Model        the model                   Optimizer   the optimizer
    Criterion    the loss, a module too      Scheduler   the schedule: a factor for each step
    Device       where the run computes      State       counters and results
    TrainLoader  the batches of data.train   ValLoader   those of data.valid
    TestLoader   those of data.test

`from assay.engine.loop.names import *` gives all of them.
"""

from typing import NewType

import torch
from torch import nn
from torch.optim import Optimizer

from assay.engine.data.loader import Loader
from assay.engine.loop.state import State
from assay.engine.optim.schedules import Factor as Scheduler

Model = nn.Module
Criterion = NewType("Criterion", nn.Module)
"""A type of its own: by `nn.Module` a parameter would be given the model."""
Device = torch.device
TrainLoader = NewType("TrainLoader", Loader)
ValLoader = NewType("ValLoader", Loader)
TestLoader = NewType("TestLoader", Loader)

LOADERS = {"train": TrainLoader, "valid": ValLoader, "test": TestLoader}
"""The type that finds the loader of a split. A split by another name is found by its name:
`extra_loader`."""

__all__ = [
    "Criterion",
    "Device",
    "Model",
    "Optimizer",
    "Scheduler",
    "State",
    "TestLoader",
    "TrainLoader",
    "ValLoader",
]
