"""Requests and answers of a model server: the Open Inference Protocol v2, and plain JSON.

https://github.com/open-inference/open-inference-protocol, without its binary extension. A request
is from anybody: nothing is computed with a number of it before its bounds are checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import InputError, did_you_mean
from assay.formats.export_folder import DATATYPES, ExportSchema, TensorSchema
from assay.formats.json_codec import spell_numbers

Arrays = Mapping[str, NDArray[Any]]

_TEXTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KINDS = {float: "floats", int: "integers", bool: "booleans", str: "text"}
_TAKEN: dict[str, set[type]] = {"f": {float, int, str}, "i": {int}, "u": {int}, "b": {bool}}
_LONGEST_AXIS, _LONGEST_ID = 1 << 31, 1000


class ModelInputError(InputError):
    """Request that the model cannot take; `where` is the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """Tensors by name, and the names of the outputs that are asked for."""

    inputs: Arrays
    outputs: Sequence[str]
    id: str = ""


def parse_infer(body: bytes, schema: ExportSchema) -> InferRequest:
    """Parse a request of the protocol; ModelInputError names the field that is wrong."""
    asked = _object(body)
    inputs: dict[str, NDArray[Any]] = {}
    known = {each.name: each for each in schema.inputs}
    for given in _objects(asked, "inputs"):
        tensor = _find(given.get("name"), known, "inputs")
        if tensor.name in inputs:
            raise ModelInputError("It is given twice.", where=f"inputs.{tensor.name}")
        inputs[tensor.name] = _tensor(given, tensor, f"inputs.{tensor.name}")
    _check_shapes(inputs, schema, "inputs.")
    outputs = {each.name: each for each in schema.outputs}
    named = [
        _find(each.get("name"), outputs, "outputs").name for each in _objects(asked, "outputs")
    ]
    number = asked.get("id", "")
    if not isinstance(number, str) or len(number) > _LONGEST_ID:
        raise ModelInputError(f"It is no text of at most {_LONGEST_ID} letters.", where="id")
    return InferRequest(inputs=inputs, outputs=list(dict.fromkeys(named or outputs)), id=number)


def parse_plain(body: bytes, schema: ExportSchema) -> Arrays:
    """Parse `{"INPUT": nested lists}`; ModelInputError names the field that is wrong."""
    asked = _object(body)
    known = {each.name: each for each in schema.inputs}
    inputs: dict[str, NDArray[Any]] = {}
    for name, data in asked.items():
        tensor = _find(name, known, name[:100])
        numbers, shape = _flatten(data, tensor, name)
        inputs[name] = _array(numbers, tensor, name).reshape(shape)
    _check_shapes(inputs, schema, "")
    return inputs


def spell_plain(outputs: Arrays) -> bytes:
    """Return outputs by name as nested lists."""
    return spell_json({name: _to_lists(array) for name, array in outputs.items()})


def spell_infer(outputs: Arrays, asked: InferRequest, *, model: str, version: str) -> bytes:
    """Return an answer of the protocol."""
    described = [
        {
            "name": name,
            "datatype": DATATYPES[str(outputs[name].dtype)],
            "shape": outputs[name].shape,
            "data": _to_lists(outputs[name].ravel()),
        }
        for name in asked.outputs
    ]
    facts = {"model_name": model, "model_version": version, "outputs": described}
    return spell_json(facts | ({"id": asked.id} if asked.id else {}))


def spell_json(value: object) -> bytes:
    """Return JSON in ASCII: a request may have had texts that no encoding takes."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def describe_tensors(tensors: Sequence[TensorSchema]) -> list[dict[str, Any]]:
    """Return tensors as the metadata of a model list them; a free axis is -1."""
    return [
        {
            "name": each.name,
            "datatype": DATATYPES[each.dtype],
            "shape": [-1 if isinstance(n, str) else n for n in each.shape],
        }
        for each in tensors
    ]


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ModelInputError(f"It is no JSON: {why}.", where="the body") from None
    if not isinstance(found, dict):
        raise ModelInputError("It is no JSON object.", where="the body")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:100]!r} is given twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no number of JSON; write "nan", "inf" or "-inf"')


def _objects(asked: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = asked.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ModelInputError("It is no list of objects.", where=key)
    return found


def _find(name: object, known: Mapping[str, TensorSchema], where: str) -> TensorSchema:
    if isinstance(name, str) and name in known:
        return known[name]
    text = name[:100] if isinstance(name, str) else type(name).__name__
    fix = did_you_mean(text, known) or f"the model has {', '.join(known)}"
    raise ModelInputError(f"There is no `{text}`.", where=where, fix=fix)


def _tensor(given: Mapping[str, Any], tensor: TensorSchema, where: str) -> NDArray[Any]:
    """Return one input of the protocol, whose data are flat or nested as its shape."""
    datatype, shape = DATATYPES[tensor.dtype], given.get("shape")
    if given.get("datatype") != datatype:
        raise ModelInputError(f"The model takes {datatype}.", where=f"{where}.datatype")
    if not isinstance(shape, list) or len(shape) != len(tensor.shape):
        what = f"It is no list of {len(tensor.shape)} lengths: the model takes {tensor.text}."
        raise ModelInputError(what, where=f"{where}.shape")
    if not all(type(n) is int and 0 <= n < _LONGEST_AXIS for n in shape):
        raise ModelInputError("It is no list of lengths.", where=f"{where}.shape")
    parameters = given.get("parameters", {})
    if not isinstance(parameters, dict) or {"binary_data_size", "shared_memory_region"} & {
        *parameters
    }:
        what = "Tensors are JSON here: neither binary data nor shared memory is taken."
        raise ModelInputError(what, where=f"{where}.parameters", fix="send them as `data`")
    data = given.get("data")
    is_nested = isinstance(data, list) and any(type(each) is list for each in data[:1])
    numbers, found = _flatten(data, tensor, f"{where}.data", None if is_nested else 1)
    if math.prod(shape) != len(numbers) or (is_nested and found != tuple(shape)):
        what = f"It has {len(numbers)} values, and the shape {shape} has {math.prod(shape)}."
        raise ModelInputError(what, where=f"{where}.data")
    return _array(numbers, tensor, f"{where}.data").reshape(shape)


def _flatten(
    data: object, tensor: TensorSchema, where: str, rank: int | None = None
) -> tuple[list[Any], tuple[int, ...]]:
    """Return the items of lists that are nested as a tensor is, and their shape."""
    if not isinstance(data, list):
        raise ModelInputError("It is no list.", where=where)
    level: list[Any] = [data]
    shape: list[int] = []
    for _ in range(len(tensor.shape) if rank is None else rank):
        if not any(type(each) is list for each in level):
            what = f"Its shape is {shape}, and the model takes {tensor.text}."
            raise ModelInputError(what, where=where)
        lengths = {len(each) if type(each) is list else -1 for each in level}
        if len(lengths) > 1:
            raise ModelInputError("Its rows are not of one length.", where=where)
        shape += lengths
        level = list(chain.from_iterable(level))
    return level, tuple(shape)


def _array(numbers: list[Any], tensor: TensorSchema, where: str) -> NDArray[Any]:
    """Return numbers as an array of the dtype that the model takes."""
    dtype = np.dtype(tensor.dtype)
    kinds = set(map(type, numbers))
    if strange := kinds - _TAKEN[dtype.kind]:
        kind = _KINDS.get(next(iter(strange)), "something else than numbers")
        raise ModelInputError(f"It holds {kind}, and {tensor.dtype} is taken.", where=where)
    beyond = ModelInputError(f"A number in it is beyond {tensor.dtype}.", where=where)
    if dtype.kind != "f":
        bounds = np.iinfo(dtype) if dtype.kind != "b" else None
        if bounds and numbers and not bounds.min <= min(numbers) <= max(numbers) <= bounds.max:
            raise beyond
        return np.array(numbers, dtype)
    texts = [each for each in numbers if type(each) is str] if str in kinds else []
    if not _TEXTS.keys() >= set(texts):
        raise ModelInputError(f"It holds text, and {tensor.dtype} is taken.", where=where)
    values = [_TEXTS[each] if type(each) is str else each for each in numbers] if texts else numbers
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, np.float64).astype(dtype)
    except OverflowError:  # an integer of hundreds of digits
        raise beyond from None
    if np.isinf(array).sum() > sum(each != "nan" for each in texts):
        raise beyond  # json reads 1e999 as infinity
    return array


def _check_shapes(inputs: Arrays, schema: ExportSchema, prefix: str) -> None:
    """Raise ModelInputError unless each input is there, in the shape that the schema says."""
    lengths: dict[str, int] = {}
    for tensor in schema.inputs:
        where = f"{prefix}{tensor.name}"
        if tensor.name not in inputs:
            raise ModelInputError(f"It is missing: {tensor.text}.", where=where)
        shape = inputs[tensor.name].shape
        fits = len(shape) == len(tensor.shape) and all(
            given == (lengths.setdefault(wanted, given) if isinstance(wanted, str) else wanted)
            and given > 0
            for given, wanted in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            known = "".join(f", {name} = {length}" for name, length in lengths.items())
            what = f"Its shape is {list(shape)}, and the model takes {tensor.text}{known}."
            raise ModelInputError(what, where=where)


def _to_lists(array: NDArray[Any]) -> Any:
    is_plain = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return array.tolist() if is_plain else spell_numbers(array.tolist())
