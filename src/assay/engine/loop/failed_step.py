"""Explanation of a failed step: which sample, module or setting it came from."""

from __future__ import annotations

from assay.core.errors import InputError
from assay.engine.data.batches import blame_device, to_device
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window
from assay.engine.loop.run_parts import RunParts
from assay.engine.numerics.nan_debug import (
    DATA,
    NOWHERE,
    NonFiniteError,
    first_non_finite,
    in_the_data,
)
from assay.engine.numerics.seed import seed_all
from assay.engine.optim.criterion import CriterionError, blame_dtype, samples_line
from assay.engine.optim.out_of_memory import is_out_of_memory, out_of_memory

_MIXED = "got mixed torch.Tensor and DTensor"


def explain_failure(parts: RunParts, window: Window, error: BaseException) -> None:
    """Raise an error that says more than `error` about the step, if one is found."""
    if isinstance(error, NonFiniteError):
        parts.buffers.put_back()
        raise locate_error(error, find_origin(parts, window)) from None
    process, step = parts.process, parts.state.step
    if is_out_of_memory(error):
        optimizers = process.backward.optimizers.values()
        raise out_of_memory(process.model, optimizers, window.batches, step, error) from error
    is_sharded = parts.ranks.sharding is not None
    if is_sharded and _MIXED in str(error):
        raise InputError(
            "The weights of a module were used while they were in parts ([parallel] shard):"
            " it was not called.",
            where=str(error).partition(",")[0],
            fix="Call the model (or a block of it): model(x), not a method of your own, nor its"
            " weights by name.",
        ) from error
    if isinstance(error, CriterionError) and error.rows:
        samples = samples_line(error.rows, _current_samples(parts, window))
        error.add_note(f"It is about {samples}.")
    blame_dtype(parts.state.batch, error)
    blame_device(parts.state.batch, parts.device, error)


def find_origin(parts: RunParts, window: Window) -> str:
    """Return where the first non-finite value of the step is: in the data or in a module.

    The step is run again from the same batch and seed. Empty where that cannot be done: a
    process that updates the weights itself would update them again, and stages or shards would
    all have to look at the same places.
    """
    where = in_the_data(window.batches, lambda i: _samples(parts, i))
    has_updated = getattr(parts.process, "has_updated", False)
    is_sharded = parts.ranks.sharding is not None
    if not (where or has_updated or parts.pipeline is not None or is_sharded):
        where = _find_in_modules(parts, window)
    return parts.ranks.first_report(where, unless=NOWHERE)


def _find_in_modules(parts: RunParts, window: Window) -> str:
    """Run the step again and return the first module or parameter with a non-finite value."""

    def again() -> None:
        parts.process.backward.begin(window.sizes)
        for i, batch in enumerate(window.batches):
            number = parts.ranks.micro_batch_number(i)
            seed_all(parts.randomness.key(parts.state.step, number))
            on_device = batch if parts.device.type == "cpu" else to_device(batch, parts.device)
            parts.process.training_step(on_device)

    try:
        return first_non_finite(parts.process, again)
    finally:
        parts.buffers.put_back()
        parts.process.model.zero_grad(set_to_none=True)


def _current_samples(parts: RunParts, window: Window) -> list[int]:
    """Return the dataset indices of the newest micro-batch; none where they are unknown."""
    batch = parts.state.batch
    number = next((i for i, each in enumerate(window.batches) if each is batch), None)
    if number is None or getattr(parts.process, "batch_hook", None) is not None:
        return []
    return _samples(parts, number)


def _samples(parts: RunParts, number: int) -> list[int]:
    """Return the dataset indices of micro-batch `number`; none where they are unknown."""
    if not isinstance(parts.source, Loader):
        return []
    return parts.source.indices(parts.state.epoch, parts.state.epoch_samples, number)


def locate_error(error: NonFiniteError, where: str) -> NonFiniteError:
    """Return the error with the place of the first non-finite value, if that is known."""
    fix = error.mend if DATA in where else error.fix
    return NonFiniteError(error.what, where=where or error.where, fix=fix, mend=error.mend)
