"""Checks that gradients and weights are finite, at once or by a flag that is read later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.sparse import entries


class FiniteCheck:
    """Check of gradients by torch's own kernel where that can take them, else one by one.

    The kernel, made for `torch.amp.GradScaler`, costs a fifth of a norm. `can_defer` says whether
    it is used: only the kernel sets a flag without waiting for the device.
    """

    def __init__(self) -> None:
        self._found: Tensor | None = None
        self._one: Tensor | None = None

    @property
    def can_defer(self) -> bool:
        return self._found is not None

    def choose(self, grads: Sequence[Tensor]) -> None:
        """Choose the way to check from the first gradients that there are."""
        device = grads[0].device
        if all(_is_plain(grad) and grad.device == device for grad in grads):
            # The kernel takes float32 alone, whatever torch's default dtype is.
            self._found = torch.zeros(1, dtype=torch.float32, device=device)
            self._one = torch.ones(1, dtype=torch.float32, device=device)

    def are_finite(self, grads: list[Tensor]) -> bool:
        """Return whether all entries are finite; waits for the device."""
        if self._found is None or self._one is None:
            return all(bool(entries(grad).isfinite().all()) for grad in grads)
        private_torch.check_and_unscale_(grads, self._found, self._one)
        if not self._found.item():
            return True
        self._found.zero_()
        return False

    def mark(self, flag: Tensor, tensors: list[Tensor]) -> None:
        """Set `flag` if an entry is not finite; nothing waits for the device."""
        assert self._one is not None
        private_torch.check_and_unscale_(tensors, flag, self._one)


def are_local_parts_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all entries are finite; of a distributed tensor, those of this rank."""
    return all(bool(local_tensor(tensor).isfinite().all()) for tensor in tensors)


def non_finite_error(
    step: int, loss: float, grad_norm: float | None, *, are_weights_finite: bool
) -> NonFiniteError:
    """Return the error for an update after `step` completed ones. `grad_norm` None: not known."""
    if not math.isfinite(loss):
        what = f"The loss is {loss}"
    elif grad_norm is None:
        what = "The gradient is not finite"
    else:
        what = f"The gradient norm is {grad_norm}"
    if not are_weights_finite:
        return NonFiniteError(
            f"{what} at step {step + 1}: weights became infinite or NaN in a step before.",
            fix="Lower the learning rate, or set [train] clip_norm.",
        )
    return NonFiniteError(
        f"{what} at step {step + 1}.",
        fix="The weights are still those of before. Lower the learning rate, or [train]"
        ' non_finite="skip".',
    )


def _is_plain(grad: Tensor) -> bool:
    return (
        grad.layout == torch.strided
        and grad.is_floating_point()
        and grad.device.type in ("cpu", "cuda")
    )
