"""Ledger of memory: when each storage was allocated and freed, and what was alive at the peak."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from assay.formats.rehearsal import PeakMemory

_WORKSPACE = 0  # in place of the number of a storage, which count from 1

Use = Literal["weights", "gathered", "gradients", "optimizer", "batch"]


@dataclass(slots=True)
class _Held:
    """A storage that is alive. The reference is kept so that its callback is called."""

    number: int
    size: int
    reference: weakref.ref[Any]


@dataclass(frozen=True, slots=True)
class _StorageChange:
    """`size` bytes more of storage `number`, or fewer if negative, while `where` was at work."""

    size: int
    number: int
    where: str


class Ledger:
    """Record every change of the memory held by tensors.

    What a storage is used for is known only later: a gradient is one when the backward pass has put
    it into `grad`. So changes are kept, and `memory` goes through them again.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self._held: dict[int, _Held] = {}
        self._uses: dict[int, Use] = {}
        self._changes: list[_StorageChange] = []
        self._at_begin: Counter[int] = Counter()
        self._numbers = 0
        self.where = ""

    def begin(self) -> None:
        """Forget the changes so far; what is alive counts from the beginning."""
        self._changes.clear()
        self._at_begin = Counter({held.number: held.size for held in self._held.values()})

    def see(self, tensor: Tensor, size: int | None = None) -> None:
        """Count the storage of `tensor`, if it is new, with `size` bytes or those that it has."""
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps the Python object of a storage as long as the storage
        if key in self._held or tensor.is_meta:
            return
        number = self._numbers = self._numbers + 1
        size = storage.nbytes() if size is None else size

        def forget(_: object) -> None:
            held = self._held.pop(key)
            self._change(-held.size, number)

        self._held[key] = _Held(number, size, weakref.ref(storage, forget))
        self._change(size, number)

    def pass_through(self, size: int) -> None:
        """Count memory that a library took and gave back within the operation that just ended."""
        self._changes.append(_StorageChange(size, _WORKSPACE, self.where))

    def see_resize(self, storage: Any) -> None:
        """Take in the new size of a storage that is known.

        What is resized are the weights that FSDP2 gathers for a while.
        """
        held = self._held.get(id(storage))
        if held is not None and held.size != storage.nbytes():
            self._uses.setdefault(held.number, "gathered")
            change = storage.nbytes() - held.size
            held.size += change
            self._change(change, held.number)

    def use(self, tensors: Iterable[Tensor], use: Use) -> None:
        """Record the use of the storages of `tensors`; the first use of a storage counts."""
        for tensor in tensors:
            self.see(tensor)
            self._uses.setdefault(self._held[id(tensor.untyped_storage())].number, use)

    def memory(self) -> PeakMemory:
        """Return the peak since `begin`, as it is in every step after the first.

        Optimizer states are allocated in the first update. They count from the beginning, so that
        one step tells the peak of all.
        """
        sizes = Counter(self._at_begin)
        for change in self._changes:
            if self._uses.get(change.number) == "optimizer" and change.size > 0:
                sizes[change.number] += change.size
        live = total = sum(sizes.values())
        peak, place = total, -1
        most = total
        for i, change in enumerate(self._changes):
            if change.number == _WORKSPACE:
                most = max(most, live + change.size)
                continue
            if self._uses.get(change.number) == "optimizer" and change.size > 0:
                continue
            live += change.size
            if live > peak:
                peak, place = live, i
        for change in self._changes[: place + 1]:
            if change.number == _WORKSPACE:
                continue
            if self._uses.get(change.number) != "optimizer" or change.size < 0:
                sizes[change.number] += change.size
        where = self._changes[place].where if place >= 0 else ""
        return self._peak_memory(peak, max(0, most - peak), sizes, where)

    def _peak_memory(
        self, peak: int, workspace: int, sizes: Mapping[int, int], where: str
    ) -> PeakMemory:
        by_use: Counter[str] = Counter()
        for number, size in sizes.items():
            by_use[self._uses.get(number, "activations")] += size
        return PeakMemory(
            peak_bytes=peak,
            weights_bytes=by_use["weights"],
            gathered_bytes=by_use["gathered"],
            gradients_bytes=by_use["gradients"],
            optimizer_bytes=by_use["optimizer"],
            activations_bytes=by_use["activations"],
            batch_bytes=by_use["batch"],
            workspace_bytes=workspace,
            where=where,
        )

    def _change(self, size: int, number: int) -> None:
        self.live_bytes += size
        if size:
            self._changes.append(_StorageChange(size, number, self.where))


_BLOCK = 8
"""Fewer channels than this, as those of an image, are read where they are."""

_SCRATCH = 5
"""Numbers of each hidden one that the backward pass of an LSTM needs: gates and its input."""

_BLOCKED = (torch.float32, torch.bfloat16, torch.float16)


def workspace_bytes(func: Any, args: Sequence[Any], out: Any) -> int:
    """Return the bytes that an operation on a CPU takes besides its tensors while it is under way.

    >>> x, weight = torch.empty(2, 8, 4, 4), torch.empty(16, 8, 1, 1)
    >>> out = torch.empty(2, 16, 4, 4)
    >>> workspace_bytes(torch.ops.aten.convolution.default, (x, weight), out) // 4
    896
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    if func is torch.ops.aten.convolution.default:
        return _bytes_of_copy(args[0]) + _bytes_of_copy(args[1]) + _bytes_of_copy(out)
    if func is torch.ops.aten.convolution_backward.default:
        gradient, given, weight = args[:3]
        # Gradients of the input and of the weight are computed one after the other.
        return _bytes_of_copy(gradient) + _bytes_of_copy(given) + _bytes_of_copy(weight)
    if func is torch.ops.aten.mkldnn_rnn_layer_backward.default:
        steps, samples = args[0].shape[:2]
        hidden = args[5].shape[-1]
        return _SCRATCH * steps * samples * hidden * args[0].element_size()  # type: ignore[no-any-return]
    return 0


def kept_workspace(func: Any, args: Sequence[Any], out: Any) -> tuple[Tensor, int] | None:
    """Return the tensor in which an LSTM keeps what its backward pass needs, and its real bytes.

    A fake one is empty, because only oneDNN knows its size: gates and hidden states of every step,
    and states with their gradients for the layer and the one below. None for anything else. Within
    1 % of the size with torch 2.13; 16 KiB more of a small layer.
    """
    if func is not torch.ops.aten.mkldnn_rnn_layer.default or out[3].nbytes:
        return None
    if not args[15]:  # in evaluation there is none
        return None
    steps, samples, width = args[0].shape
    hidden = args[10]
    numbers = 5 * steps * hidden + 10 * (steps + 1) * max(width, hidden)
    return out[3], numbers * samples * args[0].element_size()


def _bytes_of_copy(tensor: Tensor) -> int:
    """Return the bytes of a tensor in oneDNN's layout, 0 where it is read as it is."""
    is_plain = tensor.dim() > 2 and tensor.is_contiguous()
    if not is_plain or tensor.dtype not in _BLOCKED or tensor.shape[1] < _BLOCK:
        return 0
    return tensor.numel() * tensor.element_size()
