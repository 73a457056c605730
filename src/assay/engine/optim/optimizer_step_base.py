"""Abstract step from the losses of a window to new weights, as the engine sees it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.events import Handler
from assay.engine.checkpoint.optimizer_state import NamedState
from assay.engine.numerics.deferred import DeferredUpdate
from assay.engine.optim.plateau import Progress

NonFinite = Literal["stop", "skip", "ignore"]


class Stateful(Protocol):
    """Something that goes on from where it was."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OptimizerStepBase(ABC):
    """Step from the losses of a window to new weights; the engine knows no more of it than this.

    For each window the engine calls `begin`, then the process calls the object with the loss of
    each micro-batch, then `update` once. `optimizers` are there by name, the only one as "". `loss`
    is that of the newest window, nan where it has none: nothing in it has a weight, or the update
    was made by code that gave no loss.
    """

    optimizers: Mapping[str, Optimizer]
    loss: float = math.nan
    has_loss: bool = True
    seconds: float = 0.0  # spent in `__call__` so far
    non_finite: NonFinite = "stop"
    deferred: DeferredUpdate | None = None
    """Numbers of the newest update that are still on the device; None if all were read at once."""

    @property
    def skipped(self) -> int:
        """Updates that were left out in this attempt by the policy for what is not finite."""
        return 0

    @property
    def num_empty(self) -> int:
        """Updates left out because nothing had a weight, as where every label is ignored."""
        return 0

    @property
    def needs_weights(self) -> bool:
        """True if the window of any rank has parts: a mean then needs its denominator."""
        return False

    @abstractmethod
    def begin(self, sizes: Sequence[int] | None) -> None:
        """A window begins. `sizes`: samples of each micro-batch; None for a window of one batch."""

    @abstractmethod
    def __call__(self, loss: Any) -> None:
        """Add the gradients of one micro-batch. InputError when the loss is none."""

    @abstractmethod
    def update(self, step: int) -> bool:
        """One update after `step` completed ones; False when it was left out.

        Raises NonFiniteError, with the weights untouched, when that is the policy.
        """

    def start(self, step: int, *, total: int | None, epoch_length: int | None) -> None:  # noqa: B027
        """Begin or resume the run after `step` completed steps of `total`, None if unknown."""

    def refit(self, step: int, *, total: int | None, epoch_length: int | None) -> bool:
        """Fit the schedule to another expected length; return whether its rates are others then."""
        self.start(step, total=total, epoch_length=epoch_length)
        return False

    def handlers(self, progress: Progress) -> list[Handler]:
        """Return the handlers of what follows the `progress` of the run, such as a metric."""
        return []

    def walk_schedule(self, steps: int) -> None:  # noqa: B027
        """Set the rates of the run, but of at most so many `steps`, and then those of its start.

        InputError where the schedule has none.
        """

    def skip_steps(self, count: int) -> None:  # noqa: B027
        """Count `count` steps missing from past epochs as made, in a schedule of epochs.

        Called before `start` and `refit`; below 0 where past epochs had more.
        """

    def defer(self, flag: Tensor | None) -> bool:
        """Read nothing from the device in later updates, and set `deferred` instead.

        `flag` tells that something was not finite; the weights then stay unchanged. None ends the
        deferral. Returns False if updates cannot be deferred, so that each of them reads.
        """
        return False

    def points(self) -> dict[str, float]:
        """Return the recorded results of the newest update, by metric."""
        return {"train/loss": self.loss} if self.has_loss else {}

    def parts(self, model: nn.Module) -> dict[str, Stateful]:
        """Return the objects with a state to resume, by the name of their part in a checkpoint."""
        return {
            _part("optimizer", name): NamedState(each, model)
            for name, each in self.optimizers.items()
        }


def _part(kind: str, name: str) -> str:
    return f"{kind}.{name}" if name else kind
