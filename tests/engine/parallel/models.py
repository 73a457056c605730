"""Models partitioned and whole: `python models.py FOLDER RANK RANKS` writes a file a rank."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.core.sections import ParallelSection
from assay.engine.numerics.dtensor import full_tensor
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.process_group import Mesh, init_mesh

GPT = Path(__file__).parents[3] / "examples" / "03_gpt" / "model.py"
Made = tuple[nn.Module, Callable[[Any, Tensor], Tensor], Tensor]
"""A model, a loss, and what goes in."""


class Words(nn.Module):
    """Words to features and back to scores of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(6, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.words(x))
        return scores


def words() -> Made:
    return Words(), lambda model, x: model(x).square().mean(), torch.randint(6, (3, 5))


def gpt() -> Made:
    model = runpy.run_path(str(GPT))["GPT"](32, 8, 16, 2, 4)
    return model, lambda model, x: model(x).square().mean(), torch.randint(32, (3, 8))


def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return (
        nn.TransformerEncoder(layer, 2),
        lambda model, x: model(x).square().mean(),
        torch.randn(3, 5, 8).double(),
    )


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    return model, lambda model, x: model(input_ids=x, labels=x).loss, torch.randint(16, (3, 6))


CASES: dict[str, tuple[Callable[[], Made], dict[str, str]]] = {
    "gpt": (gpt, {}),
    "encoder": (encoder, {}),
    "words by rows": (words, {"words": "rowwise", "scores": "colwise_gather_output"}),
    "words by columns": (words, {"words": "colwise", "scores": "rowwise"}),
    "words apart": (words, {"words": "colwise_gather_output", "scores": "rowwise_split_input"}),
}
if importlib.util.find_spec("transformers"):
    CASES["llama"] = llama, {}


def found(make: Callable[[], Made], plan: dict[str, str], mesh: Mesh | None) -> dict[str, Any]:
    """The loss, the gradients, and the loss in evaluation."""
    torch.manual_seed(0)
    model, loss_of, inputs = make()
    model.double()
    if mesh is not None:
        partition_model(model, mesh, ParallelSection(tensor_plan=plan))
    loss = loss_of(model, inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {
        name: full_tensor(weight.grad).flatten().tolist()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    model.eval()
    with torch.no_grad():
        return {"loss": loss.item(), "evaluated": loss_of(model, inputs).item(), **grads}


def main(folder: str, rank: str, ranks: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    mesh = init_mesh(Layout(tensor=int(ranks)), torch.device("cpu"))
    results = {name: found(*case, mesh) for name, case in CASES.items()}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
