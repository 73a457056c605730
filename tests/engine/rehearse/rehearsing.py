"""Rehearsals of models that a test writes down, without a config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.engine import Supervised
from assay.engine.callbacks.evaluate import metrics_of
from assay.engine.data.batches import size_of
from assay.engine.data.source import Window
from assay.engine.rehearse.ladder import BuildFailedError, Parts, Site, climb
from assay.formats.rehearsal import Rehearsal

Model = Callable[[], nn.Module]


def rehearsed(
    model: Model,
    *batches: Any,
    criterion: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] = torch.optim.SGD,
    process: Callable[[nn.Module], Any] | None = None,
    metrics: Any = None,
    evaluation: Any = None,
    device: str = "cpu",
    micro_batches: int = 1,
    limit_bytes: int | None = None,
) -> Rehearsal:
    """Rehearse `model` on `batches`, each of them one step of `micro_batches` alike."""

    @contextmanager
    def build(site: Site) -> Iterator[Parts]:
        try:
            with site.building(site.guard or site.observer):
                made = model()
            if site.fakes is not None:
                site.fakes.place(made, torch.device("cpu"))
            with site.building(site.observer):
                if process is not None:
                    built = process(made)
                else:
                    loss = nn.MSELoss() if criterion is None else criterion()
                    weights = [weight for weight in made.parameters() if weight.requires_grad]
                    built = Supervised(made, loss, optimizer(weights, lr=0.1), metrics=metrics)
        except Exception as error:
            raise BuildFailedError(str(error)) from error
        yield Parts(
            process=built,
            windows=iter([window(batch, micro_batches) for batch in batches]),
            loader="list",
            evaluations={} if evaluation is None else {"valid": evaluation},
            metrics=metrics_of(built, {}),
            device=torch.device(device),
        )

    return climb(build, limit_bytes=limit_bytes)


def window(batch: Any, micro_batches: int) -> Window:
    size = size_of(batch)
    sizes = [size] * micro_batches if micro_batches > 1 else None
    return Window([batch] * micro_batches, size * micro_batches, sizes)


def pair(*shape: int, target: Sequence[int] = (8, 2)) -> tuple[Tensor, Tensor]:
    return torch.randn(*shape), torch.randn(*target)


def classes(*shape: int, count: int = 3) -> tuple[Tensor, Tensor]:
    """A batch of inputs with classes from 0 to `count` - 1."""
    return torch.randn(*shape), torch.arange(shape[0]) % count
