"""A tree of state as plain JSON plus named tensors, and back, exactly.

JSON keeps dict (with text keys), list, str, bool, int, finite float and None as they are.
Everything else is an object with the single key `$`, whose value is a list: the tag, then its
parts.

    tensor NAME [complex | DTYPE] | sparse LAYOUT SIZE COALESCED TENSORS | array NAME [complex]
    tuple ITEMS | set ITEMS | frozenset ITEMS | deque MAXLEN ITEMS
    dict PAIRS | odict PAIRS | counter PAIRS | modules METADATA PAIRS
    bytes BASE64 | int HEX | float TEXT | complex REAL IMAG | scalar DTYPE VALUE
    path TEXT | dtype TEXT | device TEXT | size INTS

A complex tensor lies in its file as pairs of real numbers, one of a DTYPE that the file has no name
for as bytes. The TENSORS of a sparse one are its indices and its values, as its LAYOUT
(`sparse_coo`, `sparse_csr`, ...) has them. `modules` is what `Module.state_dict` returns, with the
versions of its modules.

Nothing read from a file is ever imported or called: a tag outside this list is refused.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import CheckpointError
from assay.engine.numerics.dtensor import chunk_offsets, is_dtensor, local_tensor
from assay.engine.numerics.sparse import COMPRESSED, assemble_sparse, components, is_sparse
from assay.engine.numerics.structures import table_like

FILE_DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What a file of tensors has a name for."""

_MARK = "$"
_PAIRED = {"dict", "odict", "modules", "counter"}


@dataclass(frozen=True, slots=True)
class Box:
    """Offsets of a tensor inside a larger one, of which this process holds only this part."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(slots=True)
class Encoded:
    """Encoded state: `tree` is JSON data, `tensors` holds each distinct tensor once, contiguous.

    `boxes` has those that are parts of larger ones.
    """

    tree: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Part of a state that another process has encoded, which writes its tensors."""

    tree: Any


def encode(state: Any, *, path: str = "") -> Encoded:
    """Encode a tree of state; CheckpointError names the path of the first unsupported value.

    `path` is where the state itself lies. The tree shares nothing with the state; the tensors are
    the state's own.
    """
    encoder = _Encoder(path)
    try:
        tree = encoder.value(state, "")
    except RecursionError:
        raise CheckpointError(
            "A checkpoint cannot keep what contains itself, or is nested this deep."
        ) from None
    return Encoded(tree, encoder.tensors, encoder.boxes)


def encode_entries(state: Any, names: Collection[str]) -> Any:
    """Return a state in which what its tables hold under these names is a Fragment.

    Their tensors have the names that `encode` gives them.
    """
    encoder = _Encoder()

    def replace(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return value
        return table_like(
            value,
            (
                (key, (encode_entry if key in names else replace)(each, f"{path}.{key}"))
                for key, each in value.items()
            ),
        )

    def encode_entry(value: Any, path: str) -> Fragment:
        return Fragment(encoder.value(value, path))

    return replace(state, "")


def decode(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state of an encoded tree; CheckpointError if it cannot be decoded."""
    try:
        return _decode(tree, tensors, "")
    except RecursionError:
        raise CheckpointError("The checkpoint is nested too deep.") from None


def digest_state(state: Any) -> str:
    """Return a digest of a tree of state, independent of mapping order and memory layout."""
    return digest_encoded(encode(state))


def digest_encoded(encoded: Encoded) -> str:
    """Return `digest_state` of an encoded state."""
    contents = {name: digest_tensor(tensor) for name, tensor in encoded.tensors.items()}
    canonical = _text(_canonical(encoded.tree, contents))
    return blake2b(canonical.encode("ascii"), digest_size=16).hexdigest()


def digest_tensor(tensor: Tensor) -> str:
    head = f"{tensor.dtype} {tuple(tensor.shape)}\n"
    hasher = blake2b(head.encode(), digest_size=16)
    hasher.update(as_bytes(tensor))
    return hasher.hexdigest()


def _canonical(tree: Any, contents: Mapping[str, str]) -> Any:
    """Return the tree with digests instead of tensor names, and pairs in a canonical order."""
    if isinstance(tree, list):
        return [_canonical(item, contents) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _MARK not in tree:
        return {key: _canonical(item, contents) for key, item in tree.items()}
    tag, *parts = tree[_MARK]
    if tag in ("tensor", "array"):
        return {_MARK: [tag, contents[parts[0]], *parts[1:]]}
    parts = _canonical(parts, contents)
    if tag in _PAIRED:
        parts = sorted(parts, key=_text)
    return {_MARK: [tag, *parts]}


def _text(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True)


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy where possible."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data.cast("B")


def without_entries(tree: Any, names: Collection[str]) -> Any:
    """Return an encoded tree without what its tables hold under these names."""
    if not isinstance(tree, dict):
        return tree
    if _MARK not in tree:
        return {key: without_entries(each, names) for key, each in tree.items() if key not in names}
    if not _is_paired(tree):
        return tree
    return {
        _MARK: [
            [each[0], without_entries(each[1], names)] if _is_pair(each) else each
            for each in tree[_MARK]
            if not (_is_pair(each) and isinstance(each[0], str) and each[0] in names)
        ]
    }


def tensors_under(
    tree: Any, names: Collection[str], name: str | None = None
) -> Iterator[tuple[str, str | None]]:
    """Yield each tensor of an encoded tree, and which of `names` its tables hold it under.

    None for one under none of them, and for what is not the tensor itself: an array, a component of
    a sparse tensor, a tensor in another form, an item of a list.
    """
    if isinstance(tree, list):
        for each in tree:
            yield from tensors_under(each, names)
    elif isinstance(tree, dict) and (_MARK not in tree or _is_paired(tree)):
        for key, each in tree.items() if _MARK not in tree else filter(_is_pair, tree[_MARK]):
            is_one = isinstance(key, str) and key in names
            yield from tensors_under(each, names, key if is_one else name)
    elif isinstance(tree, dict) and isinstance(tree[_MARK], list):
        tag, *parts = tree[_MARK] or [""]
        if tag in ("tensor", "array") and parts and isinstance(parts[0], str):
            yield parts[0], name if tag == "tensor" and len(parts) == 1 else None
        else:
            yield from tensors_under(parts, names)


def _is_paired(tree: dict[str, Any]) -> bool:
    tagged = tree[_MARK]
    return isinstance(tagged, list) and bool(tagged) and tagged[0] in _PAIRED


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2


class _Encoder:
    def __init__(self, root: str = "") -> None:
        self._root = root
        self.tensors: dict[str, Tensor] = {}
        self.boxes: dict[str, Box] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        # Keeps storages alive, so that addresses stay unique while encoding.
        self._kept: list[Tensor] = []

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
            return {_MARK: ["scalar", value.dtype.str, _plain_scalar(value, self.where(path))]}
        raise CheckpointError(
            f"A checkpoint cannot keep {type(value).__module__}.{type(value).__qualname__}.",
            where=self.where(path),
            fix=(
                "Return plain data, tensors or arrays from state_dict; give the object its own "
                "state_dict."
            ),
        )

    def where(self, path: str) -> str:
        return f"{self._root}{path}".removeprefix(".") or "<root>"

    def integer(self, value: int, path: str) -> Any:
        return value if -(1 << 63) <= value < 1 << 64 else {_MARK: ["int", hex(value)]}

    def number(self, value: float, path: str) -> Any:
        return value if math.isfinite(value) else {_MARK: ["float", repr(value)]}

    def mapping(self, value: dict[Any, Any], path: str) -> Any:
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: self.value(item, f"{path}.{key}") for key, item in value.items()}
        return {_MARK: ["dict", *self.pairs(value, path)]}

    def ordered_mapping(self, value: OrderedDict[Any, Any], path: str) -> Any:
        metadata = getattr(value, "_metadata", None)
        if metadata is None:
            return {_MARK: ["odict", *self.pairs(value, path)]}
        versions = self.value(metadata, f"{path}._metadata")
        return {_MARK: ["modules", versions, *self.pairs(value, path)]}

    def pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        pairs = []
        for key, item in value.items():
            encoded_key = self.value(key, f"{path}.{key!r}")
            encoded_item = self.value(item, f"{path}.{key}")
            pairs.append([encoded_key, encoded_item])
        return pairs

    def items(self, value: Any, path: str) -> list[Any]:
        return [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]

    def members(self, value: Any, path: str) -> list[Any]:
        """Encode a set, sorted by the text of each item, so that equal sets give equal bytes."""
        return sorted(self.items(value, path), key=_text)

    def tensor(self, value: Tensor, path: str) -> Any:
        if is_dtensor(value):
            return self.part_of_tensor(value, path)
        if type(value) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise CheckpointError(
                f"A checkpoint cannot keep a {type(value).__name__} yet.",
                where=self.where(path),
                fix="Return a plain tensor from state_dict.",
            )
        if is_sparse(value):
            return self.sparse(value, path)
        if not _holds_data(value):
            raise CheckpointError(
                "A checkpoint keeps dense and sparse tensors that hold data.",
                where=self.where(path),
                fix=(
                    "Return a tensor from state_dict that is not nested, not quantized and not on "
                    "`meta`."
                ),
            )
        return self.dense(value.detach().resolve_conj().resolve_neg(), path)

    def dense(self, value: Tensor, path: str) -> Any:
        if value.is_complex():
            name = self.tensor_name(torch.view_as_real(value), path)
            return {_MARK: ["tensor", name, "complex"]}
        if value.dtype in FILE_DTYPES:
            return {_MARK: ["tensor", self.tensor_name(value, path)]}
        if value.dtype.itemsize != 1:
            raise CheckpointError(
                f"A checkpoint cannot keep a tensor of {value.dtype}.", where=self.where(path)
            )
        name = self.tensor_name(value.contiguous().view(torch.uint8), path)
        dtype = str(value.dtype).removeprefix("torch.")
        return {_MARK: ["tensor", name, dtype]}

    def sparse(self, value: Tensor, path: str) -> Any:
        *indices, values = components(value)
        parts = [self.tensor(each, f"{path}.indices") for each in indices]
        parts.append(self.tensor(values, f"{path}.values"))
        layout = str(value.layout).removeprefix("torch.")
        is_coalesced = value.is_sparse and value.is_coalesced()
        return {_MARK: ["sparse", layout, list(value.shape), is_coalesced, *parts]}

    def part_of_tensor(self, value: Tensor, path: str) -> Any:
        encoded = self.tensor(local_tensor(value), path)
        _, name, *form = encoded[_MARK]
        if form:
            what = f"A checkpoint cannot keep parts of a tensor of {value.dtype}."
            raise CheckpointError(what, where=self.where(path))
        self.boxes[name] = Box(tuple(value.shape), chunk_offsets(value))
        return encoded

    def tensor_name(self, value: Tensor, path: str) -> str:
        """The name under which a tensor is kept, once for all that are the same piece of memory."""
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
            label = path.removeprefix(".") or "value"
            name = label.encode("utf-8", "backslashreplace").decode("utf-8")
            # safetensors keeps `__metadata__` for itself.
            while name in self.tensors or name == "__metadata__":
                name += "'"
            self.tensors[name] = value
            self._names[place] = name
            self._kept.append(value)
        return name

    def array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        dtype = np.dtype(value.dtype.newbyteorder("=").str)
        try:
            tensor = torch.from_numpy(value.astype(dtype))
        except TypeError:
            raise CheckpointError(
                f"A checkpoint keeps arrays of numbers, not of {value.dtype}.",
                where=self.where(path),
            ) from None
        _, *parts = self.tensor(tensor, path)[_MARK]
        return {_MARK: ["array", *parts]}


def _holds_data(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return tensor.device.type != "meta"


def _plain_scalar(value: np.generic, where: str) -> Any:
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        raise CheckpointError(f"A checkpoint cannot keep a numpy {value.dtype}.", where=where)
    item = value.item()
    return repr(item) if isinstance(item, float) else item


_ENCODERS: dict[type, Callable[[_Encoder, Any, str], Any]] = {
    int: _Encoder.integer,
    float: _Encoder.number,
    dict: _Encoder.mapping,
    list: lambda e, v, p: e.items(v, p),
    tuple: lambda e, v, p: {_MARK: ["tuple", *e.items(v, p)]},
    set: lambda e, v, p: {_MARK: ["set", *e.members(v, p)]},
    frozenset: lambda e, v, p: {_MARK: ["frozenset", *e.members(v, p)]},
    bytes: lambda e, v, p: {_MARK: ["bytes", base64.b64encode(v).decode("ascii")]},
    complex: lambda e, v, p: {_MARK: ["complex", repr(v.real), repr(v.imag)]},
    OrderedDict: _Encoder.ordered_mapping,
    Counter: lambda e, v, p: {_MARK: ["counter", *e.pairs(v, p)]},
    deque: lambda e, v, p: {_MARK: ["deque", v.maxlen, *e.items(v, p)]},
    torch.dtype: lambda e, v, p: {_MARK: ["dtype", str(v).removeprefix("torch.")]},
    torch.device: lambda e, v, p: {_MARK: ["device", str(v)]},
    torch.Size: lambda e, v, p: {_MARK: ["size", *v]},
    Fragment: lambda e, v, p: v.tree,
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
    where = path.removeprefix(".")
    is_tagged = len(tree) == 1 and isinstance(tagged, list) and bool(tagged)
    if not is_tagged or str(tagged[0]) not in _DECODERS:
        raise CheckpointError(
            f"The checkpoint has a value of an unknown kind: {str(tree)[:80]}.", where=where
        )
    tag, *parts = tagged
    try:
        return _DECODERS[tag](parts, lambda item: _decode(item, tensors, path), tensors)
    except CheckpointError:
        raise
    # Whatever a damaged or hostile file makes of it is one thing: unreadable.
    except Exception as error:
        first_line, _, _ = str(error).partition("\n")
        reason = first_line.removesuffix(".")
        raise CheckpointError(f"The checkpoint has a bad {tag}: {reason}.", where=where) from error


def _pairs(parts: list[Any], decode: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    return ((decode(k), decode(v)) for k, v in parts)


def _tensor(parts: list[Any], tensors: Mapping[str, Tensor]) -> Tensor:
    name, *form = parts
    if name not in tensors:
        raise CheckpointError(f"The checkpoint names a tensor that it does not hold: {name!r}.")
    tensor = tensors[name]
    if form == ["complex"]:
        return torch.view_as_complex(tensor)
    return tensor.view(dtype_named(form[0])) if form else tensor


def _sparse(parts: list[Any], decode: Callable[[Any], Any]) -> Tensor:
    name, shape, is_coalesced, *tensors = parts
    layouts = {str(each): each for each in (torch.sparse_coo, *COMPRESSED)}
    layout = layouts.get(f"torch.{name}")
    if layout is None:
        raise CheckpointError(f"There is no sparse layout {name!r}.")
    decoded = [decode(tensor) for tensor in tensors]
    return assemble_sparse(layout, torch.Size(shape), decoded, is_coalesced=is_coalesced is True)


def _modules(metadata: Any, pairs: Iterator[tuple[Any, Any]]) -> OrderedDict[Any, Any]:
    state = OrderedDict(pairs)
    state._metadata = metadata  # type: ignore[attr-defined]
    return state


def dtype_named(name: Any) -> torch.dtype:
    """Return a dtype by its name in torch; CheckpointError where there is none."""
    found = vars(torch).get(name)  # not getattr, which imports what torch loads late
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
    "tensor": lambda parts, decode, tensors: _tensor(parts, tensors),
    "sparse": lambda parts, decode, tensors: _sparse(parts, decode),
    "array": lambda parts, decode, tensors: _tensor(parts, tensors).numpy(),
    "tuple": lambda parts, decode, tensors: tuple(map(decode, parts)),
    "set": lambda parts, decode, tensors: set(map(decode, parts)),
    "frozenset": lambda parts, decode, tensors: frozenset(map(decode, parts)),
    "dict": lambda parts, decode, tensors: dict(_pairs(parts, decode)),
    "odict": lambda parts, decode, tensors: OrderedDict(_pairs(parts, decode)),
    "modules": lambda parts, decode, tensors: _modules(decode(parts[0]), _pairs(parts[1:], decode)),
    "counter": lambda parts, decode, tensors: Counter(dict(_pairs(parts, decode))),
    "deque": lambda parts, decode, tensors: deque(map(decode, parts[1:]), maxlen=parts[0]),
    "bytes": lambda parts, decode, tensors: base64.b64decode(parts[0], validate=True),
    "int": lambda parts, decode, tensors: int(parts[0], 16),
    "float": lambda parts, decode, tensors: float(parts[0]),
    "complex": lambda parts, decode, tensors: complex(float(parts[0]), float(parts[1])),
    "path": lambda parts, decode, tensors: Path(parts[0]),
    "dtype": lambda parts, decode, tensors: dtype_named(parts[0]),
    "device": lambda parts, decode, tensors: torch.device(parts[0]),
    "size": lambda parts, decode, tensors: torch.Size(parts),
    "scalar": lambda parts, decode, tensors: _scalar(parts[0], parts[1]),
}
