"""Copies of a model's buffers, such as running statistics, from before a step that is undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.engine.numerics import private_torch
from assay.engine.numerics.deferred import copy_unless_


@dataclass(slots=True)
class _Kept:
    """One buffer: where it is, what it was, and by what it is known not to have changed since.

    `is_quiet`: torch's normalisation writes running statistics without counting the change.
    """

    home: dict[str, Any]
    name: str
    tensor: Tensor
    version: int
    copy: Tensor
    is_quiet: bool

    def is_unchanged(self, tensor: Tensor | None) -> bool:
        return (
            tensor is self.tensor
            and private_torch.version_of(self.tensor) == self.version
            and not self.is_quiet
        )


class Buffers:
    """Copies of all buffers of some modules, renewed only where one has changed.

    Constants cost nothing.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._kept: list[_Kept] = []
        for module in (each for whole in modules for each in whole.modules()):
            home = private_torch.buffers_of(module)
            is_quiet = isinstance(module, private_torch.Normalisation)
            for name, tensor in home.items():
                if tensor is None:
                    continue
                copy = tensor.detach().clone()
                version = private_torch.version_of(tensor)
                self._kept.append(_Kept(home, name, tensor, version, copy, is_quiet))

    def keep(self) -> None:
        """Keep a copy of the current buffers, for `put_back`."""
        copies: list[Tensor] = []
        tensors: list[Tensor] = []
        for kept in self._kept:
            tensor = kept.home.get(kept.name)
            if tensor is None or kept.is_unchanged(tensor):
                continue
            if tensor.shape == kept.copy.shape and tensor.dtype == kept.copy.dtype:
                copies.append(kept.copy)
                tensors.append(tensor)
            else:
                kept.copy = tensor.detach().clone()
            kept.tensor = tensor
            kept.version = private_torch.version_of(tensor)
        if copies:
            with torch.no_grad():
                private_torch.foreach_copy_(copies, tensors)  # one kernel for all on a GPU

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were when they were kept, bit for bit."""
        for kept in self._kept:
            tensor = kept.home.get(kept.name)
            if not kept.is_unchanged(tensor):
                kept.tensor.copy_(kept.copy)
                kept.home[kept.name] = kept.tensor
                kept.version = private_torch.version_of(kept.tensor)

    @torch.no_grad()
    def put_back_where(self, flag: Tensor) -> None:
        """Restore as `put_back` does if `flag` is 1; no device waits.

        A buffer that was given another tensor stays.
        """
        copies: list[Tensor] = []
        tensors: list[Tensor] = []
        for kept in self._kept:
            tensor = kept.home.get(kept.name)
            if (
                tensor is not None
                and not kept.is_unchanged(tensor)
                and tensor.shape == kept.copy.shape
            ):
                copies.append(kept.copy)
                tensors.append(tensor)
        if copies:
            copy_unless_(1 - flag, tensors, copies)
