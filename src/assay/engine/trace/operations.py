"""Operations of a step, as they happen: each with its module, its phase and its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.numerics.structures import tensors_in
from assay.engine.rehearse.fake import is_foreign
from assay.engine.rehearse.module_stack import ModuleStack
from assay.formats.trace_file import Phase, SiteKind

See = Callable[[Phase, str, str, Tensor, SiteKind, str], None]
"""Hears phase, module, operation, result, kind, and the arguments of a random operation."""

_NUMBERS = (bool, int, float, list, tuple)
"""Types of arguments that say how random numbers are drawn, as a probability."""

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRAPPERS = (f"torch{os.sep}_dynamo", f"torch{os.sep}_compile")
"""Files of torch between a call of an operation and its dispatch (torch 2.13)."""

_UNFILLED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
)
"""Operations whose result is whatever lay in memory."""

_SCRATCH: Mapping[str, int] = {"mkldnn_rnn_layer": 3, "_cudnn_rnn": 3, "_thnn_fused_lstm_cell": 2}
"""Number of results that count; those behind them are working memory of the backward pass."""


class Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """Tells `see` of every operation that computes something, while it is `watched`."""

    def __init__(self, roots: Mapping[str, nn.Module], see: See) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_updating = False
        """True once the gradients are complete: what comes then belongs to the update."""
        self.is_paused = False
        self._see = see
        self._module = ""
        self._stack = ModuleStack(roots, flops=lambda: 0, at=self._enter)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch modules and operations within."""
        with self._stack.watched(), self:
            yield

    def _enter(self, place: str) -> None:
        module, _, _ = place.rpartition(", ")
        self._module = module.partition(" ")[0]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):  # a DTensor first becomes operations on its local tensors
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        kind, count = _traits(func)
        if kind is None or self.is_paused:
            return out
        phase: Phase = "forward"
        if self.is_updating:
            phase, self._module = "optimizer", ""
        elif private_torch.current_backward() != -1:
            phase = "backward"
        if not self._module and _is_ours():
            return out
        arguments = ""
        if kind == "random operation":
            given = (*args, *(kwargs or {}).values())
            arguments = ", ".join(
                str(each)
                for each in given
                if isinstance(each, _NUMBERS) and not [*tensors_in(each)]
            )
        found = list(tensors_in(out)) or [
            each for i in _written(func) for each in tensors_in(args[i : i + 1])
        ]
        name = str(private_torch.overload_packet(func))
        for tensor in found[:count]:
            self._see(phase, self._module, name, tensor, kind, arguments)
        return out


def _is_ours() -> bool:
    """Return True for an operation that the engine itself calls, as to keep a copy of buffers."""
    frame = sys._getframe(2)
    while frame.f_back is not None and any(each in _file(frame) for each in _WRAPPERS):
        frame = frame.f_back
    return _file(frame).startswith(_ENGINE)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


@cache
def _traits(func: Any) -> tuple[SiteKind | None, int | None]:
    """Return (kind of an operation or None, number of results that count)."""
    name = private_torch.operation_name(func)
    returned = [each.alias_info for each in private_torch.schema_of(func).returns]
    is_view = bool(returned) and all(each is not None and not each.is_write for each in returned)
    if name in _UNFILLED or is_view:
        return None, None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return "random operation" if is_random else "operation", _SCRATCH.get(name)


@cache
def _written(func: Any) -> tuple[int, ...]:
    """Return the places of the arguments that an operation writes into."""
    arguments = enumerate(private_torch.schema_of(func).arguments)
    return tuple(
        i for i, each in arguments if each.alias_info is not None and each.alias_info.is_write
    )
