"""Criterion on the real labels: what fake tensors let pass, a call on a few real ones tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from assay.engine.data.shapes import shape_of
from assay.engine.numerics.structures import mapped, values_in
from assay.engine.rehearse.findings import finding_of, is_from_torch
from assay.engine.rehearse.module_stack import ModuleCall
from assay.engine.rehearse.observer import Observer
from assay.formats.rehearsal import Finding

_MOST_BYTES = 2**28


class CriterionCheck:
    """Calls a criterion for real on what it was given: zeros for the prediction, the true labels.

    Kernels check more than shapes: classes of another dtype, labels outside of 0 to 1.
    """

    def __init__(self, criterion: Any, observer: Observer) -> None:
        is_used = isinstance(criterion, nn.Module) and observer.values is not None
        self._criterion: nn.Module | None = criterion if is_used else None
        self._observer = observer
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.finding: Finding | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Remember the first call within."""
        if self._criterion is None:
            yield
            return
        handle = self._criterion.register_forward_pre_hook(self._remember, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _remember(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._given is None:
            self._given = mapped((args, named), self._real)

    def _real(self, tensor: Tensor) -> Any:
        """Return the values of a tensor, or its shape where they are unknown."""
        value = self._observer.value_of(tensor)
        return value if value is not None else _Zeros(tensor)

    def check(self) -> None:
        """Make the call, and keep what torch says against it."""
        criterion, given = self._criterion, self._given
        if criterion is None or given is None:
            return
        weights = dict(criterion.state_dict(keep_vars=True))
        real = {name: self._observer.value_of(tensor) for name, tensor in weights.items()}
        size = sum(each.size_bytes for each in values_in(given, _Zeros))
        if any(value is None for value in real.values()) or size > _MOST_BYTES:
            return
        args, named = mapped(given, _Zeros.make, _Zeros)
        try:
            with torch.enable_grad():
                functional_call(criterion, real, args, named)  # type: ignore[arg-type]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if not is_from_torch(error):  # it may be about the zeros
                return
            name = f"process.criterion ({type(criterion).__name__})"
            shapes = [*map(shape_of, args), *(f"{key}={shape_of(named[key])}" for key in named)]
            call = ModuleCall(name, ", ".join(shapes), 0)
            self.finding = finding_of(error, [call])


class _Zeros:
    """Prediction whose values are unknown."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.requires_grad = tensor.requires_grad

    @property
    def size_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def make(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, requires_grad=self.requires_grad)
