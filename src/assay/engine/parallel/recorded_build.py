"""Recorded build: a constructor runs as it was written, and large tensors get their memory later.

A model that is divided needs shapes first, and of the values only those of this rank. So large
tensors are fake, and what is done to them is recorded, with the state of the generator at each
draw. Afterwards they are on the device `meta`, and each can be computed alone, to the same bits.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.numerics.structures import map_values, tensors_in

LARGE_BYTES = 2**18
"""Size from which on a new tensor is recorded; smaller ones get their values at once."""

Model = TypeVar("Model", bound=nn.Module)

_CPU = torch.device("cpu")
_OP = torch.ops.aten

_OVERWRITES = frozenset(
    {_OP.normal_, _OP.uniform_, _OP.fill_, _OP.zero_, _OP.exponential_, _OP.log_normal_}
)
"""Operations that leave nothing of what the tensor was that they write into."""


class UnrecordableError(Exception):
    """Reason why a model has to be built whole."""


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """Tensor without memory: the number and the size of its storage, and its place in there."""

    storage: int
    storage_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def within(self, storage: Tensor) -> Tensor:
        """Return the tensor in a storage with memory, given as a tensor with all of it."""
        return storage.view(self.dtype).as_strided(self.shape, self.stride, self.offset)

    def allocate(self) -> Tensor:
        """Return memory for all of the storage."""
        return torch.empty(self.storage_bytes, dtype=torch.uint8).view(self.dtype)

    @property
    def fills_storage(self) -> bool:
        """True if the tensor has all numbers of its storage."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize == self.storage_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordedOperation:
    """Recorded operation, with RecordedTensors in the place of tensors without memory."""

    func: Any
    args: Any
    kwargs: Any
    reads: frozenset[int]
    """Storages whose values it may need."""
    makes: Mapping[int, int]
    """Storages that it makes, by their place in its output."""
    writes: frozenset[int]
    overwrites: bool
    """True if nothing is left in `writes` of what was there before."""
    state: Tensor | None
    """State of the generator before it draws."""

    def run(
        self, storages: dict[int, Tensor], allocate: Callable[[RecordedTensor], Tensor]
    ) -> None:
        """Compute with `storages`, and put those that it makes there."""

        def place(tensor: RecordedTensor) -> Tensor:
            if tensor.storage not in storages:  # it is about to be overwritten
                storages[tensor.storage] = allocate(tensor)
            return tensor.within(storages[tensor.storage])

        args, kwargs = map_values((self.args, self.kwargs), place, RecordedTensor)
        outputs = list(tensors_in(self.func(*args, **kwargs)))
        for index, number in self.makes.items():
            count = outputs[index].untyped_storage().nbytes() // outputs[index].dtype.itemsize
            storages[number] = outputs[index].as_strided((count,), (1,), 0)

    def run_again(
        self, storages: dict[int, Tensor], allocate: Callable[[RecordedTensor], Tensor]
    ) -> None:
        """Compute as `run` does; what it draws is what it drew then."""
        if self.state is None:
            self.run(storages, allocate)
            return
        generator = _generator_of(self.kwargs)
        before = generator.get_state()
        generator.set_state(self.state)
        try:
            self.run(storages, allocate)
        finally:
            generator.set_state(before)


class RecordedBuild(DispatchMode):  # type: ignore[no-untyped-call]
    """Context manager around a constructor, in which large new tensors have no memory.

    What is drawn for them is drawn within and thrown away: every later draw is that of a plain
    build. Operations that give small tensors or numbers of large ones are computed at once.
    """

    def __init__(self, *, large_bytes: int = LARGE_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.large_bytes = large_bytes
        self._fakes = private_torch.new_fake_mode()
        self._calls: list[_RecordedOperation] = []
        self._writers: dict[int, list[int]] = {}
        """Indices of the calls that make or write a storage."""
        self._numbers: dict[int, int] = {}
        """Number of each storage that somebody holds, by the id of its Python object."""
        self._references: dict[int, weakref.ref[Any]] = {}
        self._count = itertools.count()
        self._lent = torch.empty(0, dtype=torch.uint8)

    def build(self, constructor: Callable[[], Model]) -> Model:
        """Return the model that `constructor` makes, with large tensors on the device `meta`.

        UnrecordableError for one whose large tensors cannot be computed later, or are held elsewhere.
        """
        with private_torch.with_fakes(self._fakes), self:
            model = constructor()
        private_torch.forget_fakes(self._fakes)
        if not self._holds_all(model):
            gc.collect()  # what only a cycle holds
            if not self._holds_all(model):
                raise UnrecordableError(
                    "a large tensor is held outside of its modules, or twice, as in nn.LSTM"
                )
        own = vars(self._empty((), (), torch.float32)).keys() | {"_is_param"}
        for tensor in self.tensors(model):
            place = self.find(tensor)
            meta = torch.empty(0, dtype=tensor.dtype, device="meta")
            meta.set_(tensor.untyped_storage(), place.offset, place.shape, place.stride)
            give_memory(tensor, meta, without=own)
        return model

    def has(self, tensor: Tensor) -> bool:
        """Return True if this is a recorded tensor without memory."""
        is_empty = tensor.is_meta or isinstance(tensor, private_torch.FakeTensor)
        return is_empty and id(tensor.untyped_storage()) in self._numbers

    def find(self, tensor: Tensor) -> RecordedTensor:
        """Return the record of a tensor, by which it is computed even when it is gone."""
        storage = tensor.untyped_storage()
        return RecordedTensor(
            self._numbers[id(storage)],
            storage.nbytes(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    def tensors(self, model: nn.Module) -> list[Tensor]:
        """Return the tensors without memory among the weights and attributes of all modules."""
        held = (tensor for module in model.modules() for tensor in tensors_in(vars(module)))
        return list({id(tensor): tensor for tensor in held if self.has(tensor)}.values())

    def parameters(self, model: nn.Module) -> dict[str, RecordedTensor]:
        """Return the records of a model's parameters without memory, by all their names."""
        named = model.named_parameters(remove_duplicate=False)
        return {name: self.find(parameter) for name, parameter in named if self.has(parameter)}

    def compute(self, tensor: RecordedTensor, *, lends: bool = False) -> Tensor:
        """Return a recorded tensor as it was at the end of the build, in memory of its own.

        If it `lends`, in memory that may be taken again by the next call.
        """

        def allocate(other: RecordedTensor) -> Tensor:
            is_asked = other.storage == tensor.storage
            return self.lend(other) if lends and is_asked else other.allocate()

        with torch.no_grad():
            return tensor.within(self._compute([tensor.storage], allocate)[tensor.storage])

    def lend(self, tensor: RecordedTensor) -> Tensor:
        """Return memory for the storage of a tensor, which is taken again by the next call.

        Else allocators keep the memory of each, for the next never fits in exactly.
        """
        if self._lent.nbytes < tensor.storage_bytes:
            self._lent = torch.empty(0)  # freed before the next
            self._lent = torch.empty(tensor.storage_bytes, dtype=torch.uint8)
        return self._lent[: tensor.storage_bytes].view(tensor.dtype)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = list(tensors_in((args, kwargs)))
        if not any(map(self.has, inputs)):
            return func(*args, **kwargs) if inputs else self._make(func, args, kwargs)
        written = list(private_torch.written_by(func, args, kwargs))
        is_kept = [self.has(tensor) for tensor in written]
        if any(is_kept) and not all(is_kept):
            raise _not_repeatable(func)
        if all(is_kept) and (written or private_torch.gives_tensors(func)):
            _refuse(func, inputs, kwargs)
            fake_args, fake_kwargs = map_values((args, kwargs), self._fake)
            with self._fakes:
                out = func(*fake_args, **fake_kwargs)
            made = {i: each for i, each in enumerate(tensors_in(out)) if not self.has(each)}
            if written or any(map(self._is_large, made.values())):
                if torch.Tag.inplace_view not in func.tags:
                    self._record(func, args, kwargs, made, written)
                return out
            if not made:  # a view
                return out
        args, kwargs = map_values((args, kwargs), self._value)
        return func(*args, **kwargs)

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation without inputs: what it makes has no memory if it is large."""
        if kwargs.get("device") in (None, _CPU) and private_torch.gives_tensors(func):
            with self._fakes:
                out = func(*args, **kwargs)
            if isinstance(out, Tensor) and self._is_large(out):
                self._record(func, args, kwargs, {0: out}, [])
                return out
        return func(*args, **kwargs)

    def _record(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        made: Mapping[int, Tensor],
        written: Sequence[Tensor],
    ) -> None:
        inputs = [self.find(tensor) for tensor in tensors_in((args, kwargs)) if self.has(tensor)]
        is_overwriting = private_torch.overload_packet(func) in _OVERWRITES
        overwrites = is_overwriting and len(inputs) == 1 and inputs[0].fills_storage
        draws = torch.Tag.nondeterministic_seeded in func.tags
        kept_args, kept_kwargs = map_values((args, kwargs), self._keep)
        call = _RecordedOperation(
            func=func,
            args=kept_args,
            kwargs=kept_kwargs,
            reads=frozenset(() if overwrites else (each.storage for each in inputs)),
            makes={index: self._add(tensor) for index, tensor in made.items()},
            writes=frozenset(self.find(tensor).storage for tensor in written),
            overwrites=overwrites,
            state=_generator_of(kwargs).get_state() if draws else None,
        )
        if draws:
            call.run(self._compute(call.reads), self.lend)
        for number in (*call.makes.values(), *call.writes):
            self._writers.setdefault(number, []).append(len(self._calls))
        self._calls.append(call)

    def _compute(
        self,
        numbers: Iterable[int],
        allocate: Callable[[RecordedTensor], Tensor] = RecordedTensor.allocate,
    ) -> dict[int, Tensor]:
        """Return storages as they are now, by their numbers, and those that they came from."""
        wanted: set[int] = set()
        asked = [(number, len(self._calls)) for number in numbers]
        seen = set(asked)
        while asked:
            number, end = asked.pop()
            for index in reversed(self._writers[number]):
                if index >= end:
                    continue
                call = self._calls[index]
                wanted.add(index)
                before = {(each, index) for each in call.reads} - seen
                seen |= before
                asked += before
                if call.overwrites or number in call.makes.values():
                    break
        storages: dict[int, Tensor] = {}
        for index in sorted(wanted):
            self._calls[index].run_again(storages, allocate)
        return storages

    def _add(self, tensor: Tensor) -> int:
        """Number the storage of a new tensor."""
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps the Python object of a storage as long as the storage

        def forget(_: object) -> None:
            del self._numbers[key], self._references[key]

        self._numbers[key] = next(self._count)
        self._references[key] = weakref.ref(storage, forget)
        return self._numbers[key]

    def _is_large(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.nbytes >= self.large_bytes

    def _holds_all(self, model: nn.Module) -> bool:
        """Return True if each storage without memory is that of one tensor in a module."""
        found = self.tensors(model)
        storages = sorted(self.find(tensor).storage for tensor in found)
        return all(map(_can_swap, found)) and storages == sorted(self._numbers.values())

    def _empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        with self._fakes:
            return torch.empty_strided(shape, stride, dtype=dtype)

    def _fake(self, tensor: Tensor) -> Tensor:
        """Return a tensor by which a shape can be found out."""
        if self.has(tensor):
            return tensor
        return self._empty(tensor.shape, tensor.stride(), tensor.dtype)

    def _value(self, tensor: Tensor) -> Tensor:
        return self.compute(self.find(tensor)) if self.has(tensor) else tensor

    def _keep(self, tensor: Tensor) -> Any:
        """Return what stands for an argument in the record."""
        return self.find(tensor) if self.has(tensor) else tensor.clone()


def give_memory(tensor: Tensor, real: Tensor, *, without: Iterable[str] = ()) -> None:
    """Put `real` in the place of `tensor`, for all who hold it; attributes stay, but `without`."""
    if isinstance(tensor, nn.Parameter):
        real = nn.Parameter(real, requires_grad=tensor.requires_grad)
    kept = {name: value for name, value in vars(tensor).items() if name not in without}
    vars(real).update(kept)
    torch.utils.swap_tensors(tensor, real)  # type: ignore[no-untyped-call]


def _can_swap(tensor: Tensor) -> bool:
    """Return True if `give_memory` can: nothing of torch's own points at the tensor."""
    return tensor.is_leaf and not weakref.getweakrefs(tensor)


def _generator_of(kwargs: Mapping[str, Any]) -> torch.Generator:
    """Return the generator that a random operation draws from."""
    return kwargs.get("generator") or torch.default_generator


def _refuse(func: Any, inputs: Sequence[Tensor], kwargs: Mapping[str, Any]) -> None:
    """Raise UnrecordableError for what cannot be repeated as it was."""
    is_elsewhere = kwargs.get("device") not in (None, _CPU)
    is_lazy = any(tensor.is_conj() or tensor.is_neg() for tensor in inputs)
    if private_torch.overload_packet(func) is _OP.resize_ or is_elsewhere or is_lazy:
        raise _not_repeatable(func)


def _not_repeatable(func: Any) -> UnrecordableError:
    return UnrecordableError(
        f"{private_torch.operation_name(func)} of a large tensor is not repeatable"
    )
