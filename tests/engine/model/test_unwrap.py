"""The user's module behind what torch wraps around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from assay.engine import unwrap
from engine.toys import net


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.row("A49")
def test_the_module_of_the_user_is_found_behind_every_wrapper(group: None) -> None:
    model = net()
    parallel = DistributedDataParallel(model)
    compiled = torch.compile(model, backend="eager")

    assert unwrap(model) is unwrap(parallel) is unwrap(compiled) is model
    assert unwrap(torch.compile(parallel, backend="eager")) is model
    assert unwrap(DistributedDataParallel(compiled)) is model
    assert unwrap(DataParallel(model)) is model


def test_a_module_of_the_user_that_is_called_module_stays_inside() -> None:
    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net()

    model = Wraps()

    assert unwrap(model) is model
