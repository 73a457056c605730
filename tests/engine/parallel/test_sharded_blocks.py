"""What blocks of a sharded model keep between forward and backward pass, and how they compile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from assay.engine.model.compiling import compile_model
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh

WIDTH, DEPTH = 64, 4


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """Two ranks of which there is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_mesh(Layout(shard=2), torch.device("cpu"))
    dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x))
        return out


def blocks() -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(DEPTH)))


@pytest.mark.parametrize(
    ("gathered_in", "kept"),
    [
        # Autocast's copies of the weights; that of the first layer is not needed for a gradient.
        (None, (DEPTH - 1) * WIDTH * WIDTH * 2),
        (torch.bfloat16, 0),
    ],
)
def test_blocks_that_gather_in_bf16_keep_no_bf16_weights_for_the_backward_pass(
    gathered_in: torch.dtype | None, kept: int, mesh: Mesh
) -> None:
    model = blocks()
    partition_model(model, mesh, dtype=gathered_in)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        output = model(torch.zeros(3, WIDTH))

    weights = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in saved
        if each.dtype == torch.bfloat16 and each.numel() == WIDTH * WIDTH
    }
    assert sum(weights.values()) == kept
    assert output.dtype == torch.bfloat16 or gathered_in is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
@pytest.mark.parametrize("is_compiled_first", [True, False])
def test_a_block_is_one_graph_whether_it_is_compiled_or_sharded_first(
    is_compiled_first: bool, mesh: Mesh
) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = blocks()
    if is_compiled_first:
        compile_model(model, "blocks", backend="eager")
    partition_model(model, mesh)
    if not is_compiled_first:
        compile_model(model, "blocks", backend="eager")

    for _ in range(2):
        model(torch.zeros(3, WIDTH, requires_grad=True)).sum().backward()

    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
