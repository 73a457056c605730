"""Every criterion of torch trained and evaluated in parts: `python criteria.py FOLDER RANK RANKS`.

Each case is a criterion with what it is given beside the output of the model. A part of a batch is
not like the others: samples are ignored, classes weigh unevenly, and no two parts are of one size.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, Supervised
from assay.engine.callbacks.evaluate import evaluate
from assay.engine.parallel import data_parallel

SAMPLES, CLASSES, BATCH = 22, 3, 12


@dataclass(frozen=True)
class Case:
    """Criterion, with its inputs beside the model's output, and the model's last layer."""

    make: Callable[[], nn.Module]
    given: Callable[[torch.Generator], Mapping[str, Tensor]]
    last: nn.Module = field(default_factory=nn.Identity)
    wide: int = CLASSES


def numbers(draw: torch.Generator) -> dict[str, Tensor]:
    return {"target": torch.randn(SAMPLES, CLASSES, generator=draw, dtype=torch.float64)}


def shares(draw: torch.Generator) -> dict[str, Tensor]:
    return {"target": torch.rand(SAMPLES, CLASSES, generator=draw, dtype=torch.float64).softmax(1)}


def signs(draw: torch.Generator) -> dict[str, Tensor]:
    return {"target": torch.randn(SAMPLES, CLASSES, generator=draw, dtype=torch.float64).sign()}


def flags(draw: torch.Generator) -> dict[str, Tensor]:
    return {"target": torch.rand(SAMPLES, CLASSES, generator=draw).gt(0.5).double()}


def classes(draw: torch.Generator) -> dict[str, Tensor]:
    return {"target": torch.randint(CLASSES, (SAMPLES,), generator=draw)}


def some_ignored(draw: torch.Generator) -> dict[str, Tensor]:
    """All of one part of a batch, and single ones of others."""
    target = classes(draw)["target"]
    target[4:10] = -100
    target[::4] = -100
    return {"target": target}


def images(draw: torch.Generator) -> dict[str, Tensor]:
    """Two places to a sample, the second of which is ignored in many."""
    target = torch.randint(CLASSES, (SAMPLES, 2), generator=draw)
    target[::3, 1] = 1
    return {"target": target}


def label_sets(draw: torch.Generator) -> dict[str, Tensor]:
    return {
        "target": torch.tensor([[0, -1, 0], [2, 1, -1]])[
            torch.randint(2, (SAMPLES,), generator=draw)
        ]
    }


def with_variance(draw: torch.Generator) -> dict[str, Tensor]:
    return {
        **numbers(draw),
        "variance": torch.rand(SAMPLES, CLASSES, generator=draw, dtype=torch.float64) + 0.1,
    }


def pairs(draw: torch.Generator) -> dict[str, Tensor]:
    return {
        "other": numbers(draw)["target"],
        "alike": torch.randn(SAMPLES, generator=draw).sign().double(),
    }


def ranked(draw: torch.Generator) -> dict[str, Tensor]:
    return {"other": numbers(draw)["target"], "order": signs(draw)["target"]}


def triplets(draw: torch.Generator) -> dict[str, Tensor]:
    return {"positive": numbers(draw)["target"], "negative": numbers(draw)["target"]}


def texts(draw: torch.Generator) -> dict[str, Tensor]:
    """Sequences of 1 or 2 characters in 4 steps."""
    lengths = torch.randint(1, 3, (SAMPLES,), generator=draw)
    return {
        "target": torch.randint(1, CLASSES, (SAMPLES, 2), generator=draw),
        "steps": torch.full((SAMPLES,), 4),
        "lengths": lengths,
    }


class Steps(nn.Module):
    """Log-probabilities as CTC wants them: time, sample, class."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 4, CLASSES).transpose(0, 1).log_softmax(2)


class Places(nn.Module):
    """Scores of the classes at two places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, CLASSES, 2)


def distance(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs().sum(1)


WEIGHTS = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
SOFT = nn.LogSoftmax(dim=1)
MAKERS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], Any]] = {
    "L1Loss": (nn.L1Loss, {}, numbers),
    "MSELoss": (nn.MSELoss, {}, numbers),
    "SmoothL1Loss": (nn.SmoothL1Loss, {}, numbers),
    "HuberLoss": (nn.HuberLoss, {}, numbers),
    "PoissonNLLLoss": (nn.PoissonNLLLoss, {}, shares),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, {}, with_variance),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, {}, signs),
    "SoftMarginLoss": (nn.SoftMarginLoss, {}, signs),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, {}, flags),
    "BCEWithLogitsLoss weight pos_weight": (
        nn.BCEWithLogitsLoss,
        {"weight": WEIGHTS, "pos_weight": WEIGHTS},
        flags,
    ),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss, {}, flags),
    "MultiLabelSoftMarginLoss weight": (nn.MultiLabelSoftMarginLoss, {"weight": WEIGHTS}, flags),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, {}, label_sets),
    "MultiMarginLoss": (nn.MultiMarginLoss, {}, classes),
    "MultiMarginLoss weight": (nn.MultiMarginLoss, {"weight": WEIGHTS}, classes),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, {}, classes),
    "CrossEntropyLoss ignored": (nn.CrossEntropyLoss, {}, some_ignored),
    "CrossEntropyLoss weight": (nn.CrossEntropyLoss, {"weight": WEIGHTS}, some_ignored),
    "CrossEntropyLoss smooth": (
        nn.CrossEntropyLoss,
        {"weight": WEIGHTS, "label_smoothing": 0.2},
        some_ignored,
    ),
    "CrossEntropyLoss shares": (nn.CrossEntropyLoss, {"weight": WEIGHTS}, shares),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, {"margin": 0.1}, pairs),
    "MarginRankingLoss": (nn.MarginRankingLoss, {"margin": 0.1}, ranked),
    "TripletMarginLoss": (nn.TripletMarginLoss, {"swap": True}, triplets),
    "TripletMarginWithDistanceLoss": (
        nn.TripletMarginWithDistanceLoss,
        {"distance_function": distance},
        triplets,
    ),
}
CASES: dict[str, Case] = {}
for name, (kind, how, given) in MAKERS.items():
    for reduction in ("mean", "sum"):
        CASES[f"{name} {reduction}"] = Case(
            lambda kind=kind, how=how, r=reduction: kind(**how, reduction=r), given
        )
for reduction in ("mean", "sum"):
    CASES |= {
        f"BCELoss {reduction}": Case(
            lambda r=reduction: nn.BCELoss(WEIGHTS, reduction=r), flags, nn.Sigmoid()
        ),
        f"NLLLoss {reduction}": Case(
            lambda r=reduction: nn.NLLLoss(WEIGHTS, reduction=r), some_ignored, SOFT
        ),
        f"NLLLoss2d {reduction}": Case(
            lambda r=reduction: nn.NLLLoss2d(ignore_index=1, reduction=r),
            images,
            nn.Sequential(Places(), SOFT),
            2 * CLASSES,
        ),
        f"CTCLoss {reduction}": Case(
            lambda r=reduction: nn.CTCLoss(reduction=r), texts, Steps(), 4 * CLASSES
        ),
    }
    if hasattr(nn, "LinearCrossEntropyLoss"):  # torch 2.13
        CASES[f"LinearCrossEntropyLoss {reduction}"] = Case(
            lambda r=reduction: nn.LinearCrossEntropyLoss(
                CLASSES, CLASSES, dtype=torch.float64, reduction=r
            ),
            some_ignored,
        )
for reduction in ("mean", "sum", "batchmean"):
    CASES[f"KLDivLoss {reduction}"] = Case(
        lambda r=reduction: nn.KLDivLoss(reduction=r), shares, SOFT
    )
CASES["AdaptiveLogSoftmaxWithLoss"] = Case(
    lambda: nn.AdaptiveLogSoftmaxWithLoss(CLASSES, CLASSES, cutoffs=[2], div_value=1.0).double(),
    classes,
)


class Samples:
    """Fields by name: `x` for the model, the others for the criterion."""

    randomness = "none"

    def __init__(self, fields: Mapping[str, Tensor]) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: field[index] for name, field in self.fields.items()}


def trained(
    name: str, *, micro: int | None = None, rank: int = 0, ranks: int = 1
) -> dict[str, Any]:
    """Return losses and weights of steps of 12 and 10 samples, and the loss of a split of 22.

    Batches are cut into parts of `micro`.
    """
    case = CASES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, case.wide), case.last).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of NLLLoss2d
        criterion = case.make()
    draw = torch.Generator().manual_seed(1)
    fields = case.given(draw)
    data = Samples({"x": torch.randn(SAMPLES, 4, generator=draw, dtype=torch.float64), **fields})
    targets = list(fields)
    weights = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.01)
    process = Supervised(
        model, criterion, optimizer, input="x", target=targets if len(targets) > 1 else targets[0]
    )
    recorder = MemoryRecorder()
    shared = {"rank": rank, "ranks": ranks} if ranks > 1 else {"micro_batch_size": micro}
    engine = Engine(process, Loader(data, batch_size=BATCH, **shared), epochs=2, recorder=recorder)
    if ranks > 1:
        data_parallel(engine, init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",)))
    engine.run()
    size = SAMPLES if micro is None else 5
    sizes = (
        {"rank": rank, "ranks": ranks, "micro_batch_size": 5} if ranks > 1 else {"batch_size": size}
    )
    found, _ = evaluate(
        process, Loader(data, split="valid", **sizes), split="valid", ranks=engine.ranks
    )
    return {
        "losses": [value for point, _, value in recorder.points if point == "train/loss"],
        "weights": [
            value
            for each in [*model.parameters(), *criterion.parameters()]
            for value in each.flatten().tolist()
        ],
        **found,
    }


def main(folder: str, rank: str, ranks: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    results = {name: trained(name, rank=int(rank), ranks=int(ranks)) for name in CASES}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
