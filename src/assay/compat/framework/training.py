"""Functions that a training loop of the text calls, and leaves to its reader to write."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from assay.compat.names import import_target


def get_lr(optimizer: Any) -> float:
    """Return the learning rate of the first group of parameters."""
    return float(optimizer.param_groups[0]["lr"])


def worker_init_fn(worker_id: int) -> None:
    """Seed all generators of a loader's worker process from the seed that torch gave it."""
    import_target("assay.engine.seed_all")(import_target("torch.initial_seed")() % 2**32)


def accuracy_score(y_true: Any, y_pred: Any) -> Any:
    """Return the share of equal classes, as scikit-learn does: a number of numpy."""
    return (np.asarray(y_true) == np.asarray(y_pred)).mean()


def make_grid(images: Any, nrow: int = 8, padding: int = 2) -> Any:
    """Return images, N x C x H x W, as one with `nrow` in a row, as torchvision does."""
    count, channels, height, width = images.shape
    columns = min(nrow, count)
    rows = -(-count // columns)
    high, wide = height + padding, width + padding
    grid = images.new_zeros(channels, rows * high + padding, columns * wide + padding)
    for i, image in enumerate(images):
        top, left = padding + i // columns * high, padding + i % columns * wide
        grid[:, top : top + height, left : left + width] = image
    return grid.repeat(3, 1, 1) if channels == 1 else grid


vutils = SimpleNamespace(make_grid=make_grid)
"""Name by which the text calls `torchvision.utils`."""


def train_epoch(
    epoch: int,
    data_loader: Any,
    model: Any,
    criterion: Any,
    optimizer: Any,
    device: Any,
    current_lr: float,
    epoch_logger: Any = None,
    batch_logger: Any = None,
    tb_writer: Any = None,
    distributed: bool = False,
) -> float:
    """Train one epoch on batches of (inputs, targets); return the mean loss of a sample.

    With `distributed`, gradients are averaged over the ranks of torch's process group, unless the
    model does so itself (DistributedDataParallel). The loss is that of this rank.

    The loggers have a method `log` that takes a row as a mapping, one for each epoch or batch; the
    writer has `add_scalar`. Each may be None.
    """
    model.train()
    average = _averaging(model) if distributed else None
    total, count = 0.0, 0
    for i, (inputs, targets) in enumerate(data_loader):
        targets = targets.to(device, non_blocking=True)
        loss = criterion(model(inputs.to(device, non_blocking=True)), targets)
        optimizer.zero_grad()
        loss.backward()
        if average is not None:
            average()
        optimizer.step()
        total, count = total + loss.item() * len(targets), count + len(targets)
        if batch_logger is not None:
            row = {"epoch": epoch, "batch": i + 1, "loss": loss.item(), "lr": current_lr}
            batch_logger.log({**row, "iter": (epoch - 1) * len(data_loader) + i + 1})
    mean = total / max(1, count)
    if epoch_logger is not None:
        epoch_logger.log({"epoch": epoch, "loss": mean, "lr": current_lr})
    if tb_writer is not None:
        tb_writer.add_scalar("train/loss", mean, epoch)
        tb_writer.add_scalar("train/lr", current_lr, epoch)
    return mean


def _averaging(model: Any) -> Callable[[], None] | None:
    """Return what averages the gradients over all ranks; None for a model that does so itself."""
    if hasattr(model, "no_sync"):
        return None
    ranks = import_target("assay.engine.parallel.distributed_group.DistributedGroup")()
    trained = [each for each in model.parameters() if each.requires_grad]
    buckets = ranks.gradient_buckets(trained)

    def average() -> None:
        buckets.finish()
        for parameter in trained:
            if parameter.grad is not None:
                parameter.grad.div_(ranks.size)

    return average
