"""Length of a run, with the arithmetic that says why."""

from __future__ import annotations

from assay.core.errors import InputError
from assay.core.formatting import count
from assay.engine.data.loader import Loader
from assay.engine.data.source import Source


def arithmetic(loader: Loader, *, epochs: int | None, total: int | None) -> list[str]:
    """Return the lines about the length of a run: at most `total` steps, so many `epochs`.

    An epoch is always a whole pass: 60,000 samples in batches of 128 are 469 steps, or 468 without
    the last one.
    """
    size = loader.order.n
    batch = loader.batch_size
    steps = loader.steps_per_epoch
    rest = size % batch
    how = f", the last {rest:,} left out" if loader.drop_last else ", rounded up"
    epoch = f"{steps:,} ({size:,} samples / {batch:,}{how if rest else ''})"
    if epochs is not None:
        whole = f"{count(epochs, 'epoch')} x {epoch} = {epochs * steps:,} steps"
        is_shorter = total is not None and total < epochs * steps
        lines = [f"{count(total or 0, 'step')}, which come before {whole}" if is_shorter else whole]
    elif total is not None and steps:
        lines = [f"{count(total, 'step')} = {total / steps:.4g} epochs x {epoch}"]
    else:
        lines = [f"an epoch has {epoch} steps"]
    if loader.micro_batch_size != batch:
        lines.append(f"a step has {loader.arithmetic}")
    return lines


def larger(source: Source, *, epochs: int, steps: int) -> tuple[int | None, int | None, str]:
    """Of both bounds the one that is reached last, as (epochs, steps), and the arithmetic.

    InputError where nobody can know which it is.
    """
    length = source.steps_per_epoch
    if length is None:
        raise InputError(
            "Which of epochs and steps is reached last is unknown: nobody knows how many"
            " batches an epoch has.",
            fix='Give one of the two, or [train] until = "first".',
        )
    total = epochs * length
    said = (
        f"the larger of {count(steps, 'step')} and {count(epochs, 'epoch')} x {length:,}"
        f" = {total:,} steps"
    )
    return (epochs, None, said) if total >= steps else (None, steps, said)
