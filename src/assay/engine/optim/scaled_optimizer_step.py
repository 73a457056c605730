"""Training in fp16 with loss scaling.

The loss is scaled up so that small gradients do not vanish; gradients are scaled back before the
update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import Read, WindowNumbers
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import NonFinite, Stateful
from assay.engine.optim.schedules import Schedule


class ScaledOptimizerStep(OptimizerStep):
    """Optimizer step with a loss scale that follows the gradients, as in `torch.amp.GradScaler`.

    Gradients that overflow are no fault: the update is left out and counted in `overflows`, and the
    scale falls. `growth_interval` updates without one let it rise again. Below 1 scaling cannot
    help: NonFiniteError.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        non_finite: NonFinite = "stop",
        scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            schedule=schedule,
            clip_norm=clip_norm,
            non_finite=non_finite,
            weights=weights,
        )
        if scale < 1 or growth_factor <= 1 or not 0 < backoff_factor < 1 or growth_interval < 1:
            raise InputError(
                "A loss scale is at least 1, grows by a factor above 1 and falls by one below 1."
            )
        self.scale = scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.overflows = 0
        self._since = 0  # updates since the scale changed
        self._has_overflown = False

    def finish(self, step: int, *, take: bool) -> None:
        super().finish(step, take=take)
        if self._has_overflown:
            return
        self._since += 1
        if self._since == self.growth_interval:
            self.scale *= self.growth_factor
            self._since = 0

    def parts(self, model: nn.Module) -> dict[str, Stateful]:
        return {**super().parts(model), "scaler": self}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the optimizer."""
        return {"scale": self.scale, "since": self._since, "overflows": self.overflows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scale = float(state["scale"])
        self._since = int(state["since"])
        self.overflows = int(state["overflows"])

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss.float() * self.scale

    def _unscale(self) -> None:
        self._has_overflown = not self.gradients.is_true_of_all(self._are_unscaled())

    def _judge(self, numbers: WindowNumbers, read: Read, step: int) -> bool:
        self._has_overflown &= self.has_loss or self.non_finite == "ignore"
        if not self._has_overflown:
            return super()._judge(numbers, read, step)
        self.grad_norm = None if self.clip_norm is None else math.inf
        self.overflows += 1
        self.scale *= self.backoff_factor
        self._since = 0
        if self.scale < 1:
            raise NonFiniteError(
                f"Gradients overflow at step {step + 1} even with a loss scale below 1.",
                fix="The weights are still those of before. Lower the learning rate, or use"
                ' precision = "bf16".',
            )
        return False

    def _are_unscaled(self) -> bool:
        """Gradients as they would be without a scale; False when one of them is not finite."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            grad = local_tensor(parameter.grad)
            if grad.is_sparse:
                parameter.grad = grad.coalesce()
                grad = parameter.grad.values()
            kinds.setdefault((grad.device, grad.dtype), []).append(grad)
        found = [torch.zeros(1, dtype=torch.float32, device=device) for device, _ in kinds]
        for (device, _), flag, grads in zip(kinds, found, kinds.values(), strict=True):
            inverse = torch.full((1,), 1.0 / self.scale, dtype=torch.float32, device=device)
            private_torch.check_and_unscale_(grads, flag, inverse)
        return not any(flag.item() for flag in found)
