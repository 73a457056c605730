"""Observer of every operation of a step: memory, FLOPs, indices out of range, and what failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from assay.engine.numerics import private_torch
from assay.engine.numerics.flops import count_attention_on_cpu
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.numerics.structures import tensors_in
from assay.engine.rehearse.fake import is_foreign, is_propagating
from assay.engine.rehearse.known_values import Indices, Values
from assay.engine.rehearse.ledger import Ledger, kept_workspace, workspace_bytes
from assay.engine.rehearse.recorded_call import MixedDtypes, RecordedCall
from assay.engine.rehearse.traffic import NAMESPACES, Traffic


class StepTooLargeError(BaseException):
    """A step that is tried for real needs more memory, or takes longer, than it may.

    Not an Exception: code of the user that catches those must not go on.
    """


class Observer(DispatchMode):  # type: ignore[no-untyped-call]
    """Watches operations, as a context manager. `values` is None where tensors are real.

    Raises StepTooLargeError beyond `limit_bytes` of memory or `limit_s` seconds since it was made.
    """

    def __init__(
        self,
        values: Values | None,
        *,
        limit_bytes: float = float("inf"),
        limit_s: float = float("inf"),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.ledger = Ledger()
        self.indices = Indices(values)
        self.flops = 0
        count_attention_on_cpu()
        self.traffic = Traffic()
        self.failed: RecordedCall | None = None
        """The operation that raised last."""
        self._mixed = MixedDtypes(values.fakes) if values is not None else None
        self.limit_bytes = limit_bytes
        self.is_on_cpu = False
        """True when the step is to run on a CPU, whose libraries copy tensors for a while."""
        self._until = time.monotonic() + limit_s

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):  # a DTensor first becomes operations on its local tensors
            return NotImplemented
        kwargs = kwargs or {}
        if is_propagating():
            return func(*args, **kwargs)
        try:
            self.indices.check(func, args)
            out = self._call(func, args, kwargs)
        except Exception as error:
            self.failed = RecordedCall.of(func, args, kwargs, error)
            raise
        count = flop_registry.get(private_torch.overload_packet(func))
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        if func.namespace in NAMESPACES:
            self.traffic.see(func, args, out)
        if (kept := kept_workspace(func, args, out)) is not None:
            self.ledger.see(*kept)
        for tensor in tensors_in(out):
            self.ledger.see(tensor)
        if self.is_on_cpu and (size := workspace_bytes(func, args, out)):
            self.ledger.pass_through(size)
        if self.values is None and (
            self.ledger.live_bytes > self.limit_bytes or time.monotonic() > self._until
        ):
            raise StepTooLargeError
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.values is None:
            return func(*args, **kwargs)
        out = self.values.call(func, args, kwargs)
        if self._mixed is not None:
            self._mixed.check(func, args, kwargs)
        return out

    def tensor(self, real: Tensor) -> Any:
        """Return the tensor to compute with in place of one of the batch."""
        if self.values is not None:
            made = self.values.give(real)
        elif real.is_meta:
            made = torch.zeros(real.shape, dtype=real.dtype)
        else:
            made = real
        self.ledger.use([made], "batch")
        return made

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor, if they are known."""
        return tensor if self.values is None else self.values.of(tensor)
