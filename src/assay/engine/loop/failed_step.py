"""Explanation of a failed step: which sample, module or setting it came from."""

from __future__ import annotations

from collections.abc import Callable

from assay.core.errors import InputError
from assay.engine.data.batches import blame_device, to_device
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window
from assay.engine.loop.epoch_windows import EpochWindows
from assay.engine.loop.process import Process
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.deferred import DeferredStep
from assay.engine.numerics.nan_debug import (
    DATA,
    MEND,
    NOWHERE,
    NonFiniteError,
    first_non_finite,
    in_the_data,
)
from assay.engine.numerics.seed import seed_all
from assay.engine.optim.criterion_misfit import CriterionError, blame_dtype, samples_line
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.out_of_memory import is_out_of_memory, out_of_memory
from assay.engine.parallel.pipeline import Pipeline

_MIXED = "got mixed torch.Tensor and DTensor"


class FailedStep:
    """Finds out why a step failed; may run its forward and backward passes once more.

    `buffers` are those of before the step, `key_of(i)` is the random key of its micro-batch `i`.
    `start_schedule` puts the schedule to the step of the state.
    `can_repeat`: a step whose numbers were read later can be run again. In a loop by hand the
    engine does not know what computes the gradients.
    """

    def __init__(
        self,
        process: Process,
        windows: EpochWindows,
        ranks: DataParallelGroup,
        *,
        buffers: Buffers,
        pipeline: Pipeline | None,
        key_of: Callable[[int], int],
        start_schedule: Callable[[], None],
        can_repeat: bool,
    ) -> None:
        self.process = process
        self.windows = windows
        self.source = windows.source
        self.device = windows.device
        self.state = windows.state
        self.ranks = ranks
        self.buffers = buffers
        self.pipeline = pipeline
        self.key_of = key_of
        self.start_schedule = start_schedule
        self.can_repeat = can_repeat

    def explain(self, window: Window, error: BaseException) -> None:
        """Raise an error that says more than `error` about the step, if one is found."""
        if isinstance(error, NonFiniteError):
            self.buffers.put_back()
            raise located(error, self.origin(window)) from None
        process, step = self.process, self.state.step
        if is_out_of_memory(error):
            optimizers = process.backward.optimizers.values()
            raise out_of_memory(process.model, optimizers, window.batches, step, error) from error
        is_sharded = self.ranks.sharding is not None
        if is_sharded and _MIXED in str(error):
            raise InputError(
                "The weights of a module were used while they were in parts ([parallel] shard):"
                " it was not called.",
                where=str(error).partition(",")[0],
                fix="Call the model (or a block of it): model(x), not a method of your own, nor its"
                " weights by name.",
            ) from error
        if isinstance(error, CriterionError) and error.rows:
            samples = samples_line(error.rows, self._current_samples(window))
            error.add_note(f"It is about {samples}.")
        blame_dtype(self.state.batch, error)
        blame_device(self.state.batch, self.device, error)

    def go_back(self, bad: DeferredStep, error: NonFiniteError) -> None:
        """Set the run back to before a non-finite step, and raise its error.

        Later steps have changed no weight. After another error, that gains a note instead.
        """
        state = self.state
        for name, count in bad.before.items():
            setattr(state, name, count)
        self.start_schedule()
        if state.error is not None:
            state.error.add_note(f"before that: {error}")
            return
        window = self.windows.first_again(self.pipeline) if self.can_repeat else None
        raise located(error, "" if window is None else self.origin(window))

    def origin(self, window: Window) -> str:
        """Return where the first non-finite value of the step is: in the data or in a module.

        The step is run again from the same batch and seed. Empty where that cannot be done: a
        process that updates the weights itself would update them again, and stages or shards would
        all have to look at the same places.
        """
        where = in_the_data(window.batches, lambda i: self._samples(i))
        has_updated = getattr(self.process, "has_updated", False)
        is_sharded = self.ranks.sharding is not None
        if not (where or has_updated or self.pipeline is not None or is_sharded):
            where = self._origin_in_modules(window)
        return self.ranks.first_report(where, unless=NOWHERE)

    def _origin_in_modules(self, window: Window) -> str:
        """Run the step again and return the first module or parameter with a non-finite value."""

        def again() -> None:
            self.process.backward.begin(window.sizes)
            for i, batch in enumerate(window.batches):
                seed_all(self.key_of(i))
                on_device = batch if self.device.type == "cpu" else to_device(batch, self.device)
                self.process.training_step(on_device)

        try:
            return first_non_finite(self.process, again)
        finally:
            self.buffers.put_back()
            self.process.model.zero_grad(set_to_none=True)

    def _current_samples(self, window: Window) -> list[int]:
        """Return the dataset indices of the newest micro-batch; none where they are unknown."""
        batch = self.state.batch
        number = next((i for i, each in enumerate(window.batches) if each is batch), None)
        if number is None or getattr(self.process, "batch_hook", None) is not None:
            return []
        return self._samples(number)

    def _samples(self, number: int) -> list[int]:
        """Return the dataset indices of micro-batch `number`; none where they are unknown."""
        if not isinstance(self.source, Loader):
            return []
        return self.source.indices(self.state.epoch, self.state.epoch_samples, number)


def located(error: NonFiniteError, where: str) -> NonFiniteError:
    """Return the error with the place of the first non-finite value, if that is known."""
    fix = MEND if DATA in where else error.fix
    return NonFiniteError(error.what, where=where or error.where, fix=fix)
