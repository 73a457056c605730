"""A tree of state as plain JSON plus named tensors, and back, exactly.

JSON keeps dict (with text keys), list, str, bool, int, finite float and None as they are. Everything else is an object
with the single key `$`, whose value is a list: the tag, then its parts.

    tensor NAME | tuple ITEMS | set ITEMS | frozenset ITEMS | dict PAIRS | odict PAIRS | counter PAIRS
    deque MAXLEN ITEMS | bytes BASE64 | float TEXT | complex REAL IMAG | path TEXT | dtype TEXT | device TEXT | size INTS | array NAME
    scalar DTYPE VALUE

Nothing read from a file is ever imported or called: a tag outside this list is refused.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import CheckpointError

_MARK = "$"


@dataclass(slots=True)
class Encoded:
    """`tree` is JSON data; `tensors` holds each distinct tensor once, contiguous, by the name used in the tree."""

    tree: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)


def encode(state: Any) -> Encoded:
    """Encode a tree of state. CheckpointError names the path of the first value that cannot be kept, with the fix."""
    encoder = _Encoder()
    tree = encoder.value(state, "")
    return Encoded(tree, encoder.tensors)


def decode(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state of an encoded tree. CheckpointError for a tag or a tensor that is not there."""
    return _decode(tree, tensors, "")


def digest(state: Any) -> str:
    """A fingerprint of a tree of state: equal for equal values, whatever the order of mappings and memory layout."""
    return digest_encoded(encode(state))


def digest_encoded(encoded: Encoded) -> str:
    """`digest` of a state that is encoded already."""
    hasher = blake2b(digest_size=16)
    hasher.update(json.dumps(encoded.tree, sort_keys=True).encode("utf-8"))
    for name, tensor in sorted(encoded.tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(as_bytes(tensor))
    return hasher.hexdigest()


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, without a copy where that is possible."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data.cast("B")


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._kept: list[Tensor] = []  # keeps storages alive, so that addresses stay unique while encoding

    def value(self, value: Any, path: str) -> Any:
        if value is None or (isinstance(value, bool | str) and type(value) in (bool, str)):
            return value
        encode = _ENCODERS.get(type(value))
        if encode is not None:
            return encode(self, value, path)
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if isinstance(value, PurePath):
            return {_MARK: ["path", str(value)]}
        if isinstance(value, np.generic):
            return {_MARK: ["scalar", value.dtype.str, _plain_scalar(value, path)]}
        raise CheckpointError(
            f"A checkpoint cannot keep {type(value).__module__}.{type(value).__qualname__}.",
            where=path.removeprefix(".") or "<root>",
            fix="Return plain data, tensors or arrays from state_dict; give the object its own state_dict.",
        )

    def integer(self, value: int, path: str) -> Any:
        return value

    def number(self, value: float, path: str) -> Any:
        return (
            value
            if math.isfinite(value) and not (value == 0.0 and math.copysign(1.0, value) < 0)
            else {_MARK: ["float", repr(value)]}
        )

    def mapping(self, value: dict[Any, Any], path: str) -> Any:
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: self.value(item, f"{path}.{key}") for key, item in value.items()}
        return {_MARK: ["dict", *self.pairs(value, path)]}

    def pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        return [[self.value(k, f"{path}.{k!r}"), self.value(v, f"{path}.{k}")] for k, v in value.items()]

    def items(self, value: Any, path: str) -> list[Any]:
        return [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]

    def tensor(self, value: Tensor, path: str) -> Any:
        if type(value) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise CheckpointError(
                f"A checkpoint cannot keep a {type(value).__name__} yet.",
                where=path.removeprefix("."),
                fix="Return a plain tensor from state_dict.",
            )
        if value.is_sparse or value.is_quantized or value.device.type == "meta":
            raise CheckpointError(
                "A checkpoint keeps dense tensors that hold data.",
                where=path.removeprefix("."),
                fix="Call .to_dense().",
            )
        storage = value.untyped_storage()
        place = (
            storage.data_ptr(),
            value.storage_offset(),
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.device,
        )
        name = self._names.get(place) if value.numel() else None
        if name is None:
            name = path.removeprefix(".") or "value"
            while name in self.tensors:
                name += "'"
            self.tensors[name] = value.detach()
            self._names[place] = name
            self._kept.append(value)
        return {_MARK: ["tensor", name]}

    def array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if value.dtype.hasobject or value.dtype.kind not in "biufc":
            raise CheckpointError(
                f"A checkpoint keeps arrays of numbers, not of {value.dtype}.", where=path.removeprefix(".")
            )
        native = value.astype(value.dtype.newbyteorder("="), copy=True)
        return {_MARK: ["array", self.tensor(torch.from_numpy(native), path)[_MARK][1]]}


def _plain_scalar(value: np.generic, path: str) -> Any:
    if value.dtype.kind not in "biuf":
        raise CheckpointError(f"A checkpoint cannot keep a numpy {value.dtype}.", where=path.removeprefix("."))
    item = value.item()
    return repr(item) if isinstance(item, float) else item


_ENCODERS: dict[type, Callable[[_Encoder, Any, str], Any]] = {
    int: _Encoder.integer,
    float: _Encoder.number,
    dict: _Encoder.mapping,
    list: lambda e, v, p: e.items(v, p),
    tuple: lambda e, v, p: {_MARK: ["tuple", *e.items(v, p)]},
    # Sets have no order of their own: sorting by the text of each item makes equal sets equal bytes.
    set: lambda e, v, p: {_MARK: ["set", *e.items(sorted(v, key=repr), p)]},
    frozenset: lambda e, v, p: {_MARK: ["frozenset", *e.items(sorted(v, key=repr), p)]},
    bytes: lambda e, v, p: {_MARK: ["bytes", base64.b64encode(v).decode("ascii")]},
    complex: lambda e, v, p: {_MARK: ["complex", repr(v.real), repr(v.imag)]},
    OrderedDict: lambda e, v, p: {_MARK: ["odict", *e.pairs(v, p)]},
    Counter: lambda e, v, p: {_MARK: ["counter", *e.pairs(v, p)]},
    deque: lambda e, v, p: {_MARK: ["deque", v.maxlen, *e.items(v, p)]},
    torch.dtype: lambda e, v, p: {_MARK: ["dtype", str(v).removeprefix("torch.")]},
    torch.device: lambda e, v, p: {_MARK: ["device", str(v)]},
    torch.Size: lambda e, v, p: {_MARK: ["size", *v]},
    np.ndarray: _Encoder.array,
}


def _decode(tree: Any, tensors: Mapping[str, Tensor], path: str) -> Any:
    if isinstance(tree, list):
        return [_decode(item, tensors, f"{path}[{i}]") for i, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    if _MARK not in tree:
        return {key: _decode(item, tensors, f"{path}.{key}") for key, item in tree.items()}
    tagged = tree[_MARK]
    if len(tree) != 1 or not isinstance(tagged, list) or not tagged or tagged[0] not in _DECODERS:
        raise CheckpointError(f"The checkpoint has a value of an unknown kind: {str(tree)[:80]}.", where=path)
    try:
        return _DECODERS[tagged[0]](tagged[1:], lambda item: _decode(item, tensors, path), tensors)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes of it is one thing: unreadable
        raise CheckpointError(f"The checkpoint has a bad {tagged[0]}: {error}.", where=path) from error


def _pairs(parts: list[Any], decode: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    return ((decode(k), decode(v)) for k, v in parts)


def _named(name: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"The checkpoint names a tensor that it does not hold: {name!r}.")
    return tensors[name]


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"There is no dtype {name!r}.")
    return found


def _scalar(dtype: str, value: Any) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in "biuf":
        raise CheckpointError(f"There is no numeric dtype {dtype!r}.")
    return kind.type(float(value) if kind.kind == "f" else value)


_Decoder = Callable[[list[Any], Callable[[Any], Any], Mapping[str, Tensor]], Any]
_DECODERS: dict[str, _Decoder] = {
    "tensor": lambda parts, decode, tensors: _named(parts[0], tensors),
    "array": lambda parts, decode, tensors: _named(parts[0], tensors).numpy(),
    "tuple": lambda parts, decode, tensors: tuple(map(decode, parts)),
    "set": lambda parts, decode, tensors: set(map(decode, parts)),
    "frozenset": lambda parts, decode, tensors: frozenset(map(decode, parts)),
    "dict": lambda parts, decode, tensors: dict(_pairs(parts, decode)),
    "odict": lambda parts, decode, tensors: OrderedDict(_pairs(parts, decode)),
    "counter": lambda parts, decode, tensors: Counter(dict(_pairs(parts, decode))),
    "deque": lambda parts, decode, tensors: deque(map(decode, parts[1:]), maxlen=parts[0]),
    "bytes": lambda parts, decode, tensors: base64.b64decode(parts[0], validate=True),
    "float": lambda parts, decode, tensors: float(parts[0]),
    "complex": lambda parts, decode, tensors: complex(float(parts[0]), float(parts[1])),
    "path": lambda parts, decode, tensors: Path(parts[0]),
    "dtype": lambda parts, decode, tensors: _dtype(parts[0]),
    "device": lambda parts, decode, tensors: torch.device(parts[0]),
    "size": lambda parts, decode, tensors: torch.Size(parts),
    "scalar": lambda parts, decode, tensors: _scalar(parts[0], parts[1]),
}
