"""Requests and answers: the Open Inference Protocol v2 with binary tensors, and plain JSON.

https://github.com/open-inference/open-inference-protocol, and its extension for binary tensors:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import did_you_mean
from assay.formats.export_folder import DATATYPES, ExportSchema, TensorSchema
from assay.formats.json_codec import parse_json, spell_numbers
from assay.web.inference.served_model import Arrays, ModelInputError

HEAD_LENGTH = "inference-header-content-length"
_TAKEN = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
_KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "booleans", "U": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """Tensors by name, and which outputs are asked for, each as binary or as JSON."""

    inputs: Arrays
    outputs: Mapping[str, bool]
    id: str = ""


def parse_infer(body: bytes, head_length: str | None, schema: ExportSchema) -> InferRequest:
    """Parse a request of the protocol; ModelInputError names the field that is wrong.

    `head_length` is that of the JSON in front of binary tensors, as its header says it.
    """
    head, rest = body, memoryview(b"")
    if head_length is not None:
        if not head_length.isdecimal() or int(head_length) > len(body):
            raise ModelInputError("It is no length within the body.", where=HEAD_LENGTH)
        head, rest = body[: int(head_length)], memoryview(body)[int(head_length) :]
    asked = _object(head)
    inputs: dict[str, NDArray[Any]] = {}
    known = {each.name: each for each in schema.inputs}
    for given in _several(asked, "inputs"):
        tensor = _find(given.get("name"), known, "inputs")
        where = f"inputs.{tensor.name}"
        if tensor.name in inputs:
            raise ModelInputError("It is given twice.", where=where)
        inputs[tensor.name], rest = _tensor(given, tensor, rest, where)
    if rest:
        raise ModelInputError(f"{len(rest)} bytes follow that belong to no tensor.", where="inputs")
    _check_shapes(inputs, schema)
    return InferRequest(inputs=inputs, outputs=_outputs(asked, schema), id=str(asked.get("id", "")))


def parse_plain(body: bytes, schema: ExportSchema) -> Arrays:
    """Parse `{"INPUT": nested lists}`; ModelInputError names the field that is wrong."""
    asked = _object(body)
    known = {each.name: each for each in schema.inputs}
    inputs = {name: _array(data, _find(name, known, name), name) for name, data in asked.items()}
    _check_shapes(inputs, schema, prefix="")
    return inputs


def spell_plain(outputs: Arrays) -> bytes:
    """Return outputs by name as nested lists."""
    return _json({name: _to_lists(array) for name, array in outputs.items()})


def spell_infer(
    outputs: Arrays, asked: InferRequest, *, model: str, version: str
) -> tuple[bytes, int | None]:
    """Return an answer of the protocol, and the length of its JSON where tensors follow it."""
    described: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, is_binary in asked.outputs.items():
        array = outputs[name]
        answer = _describe(name, str(array.dtype), array.shape)
        if is_binary:
            tail.append(array.tobytes())
            answer["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            answer["data"] = _to_lists(array.ravel())
        described.append(answer)
    facts = {"model_name": model, "model_version": version, "id": asked.id, "outputs": described}
    head = _json({name: fact for name, fact in facts.items() if name != "id" or fact})
    return b"".join([head, *tail]), len(head) if tail else None


def describe_tensors(tensors: Sequence[TensorSchema]) -> list[dict[str, Any]]:
    """Return tensors as the metadata of a model list them; a free axis is -1."""
    shapes = ([-1 if isinstance(n, str) else n for n in each.shape] for each in tensors)
    pairs = zip(tensors, shapes, strict=True)
    return [_describe(each.name, each.dtype, shape) for each, shape in pairs]


def _describe(name: str, dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[dtype], "shape": shape}


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ModelInputError(f"It is no JSON: {error}.", where="the body") from None
    if not isinstance(found, dict):
        raise ModelInputError("It is no JSON object.", where="the body")
    return found


def _several(asked: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = asked.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ModelInputError("It is no list of objects.", where=key)
    return found


def _find(name: object, known: Mapping[str, TensorSchema], where: str) -> TensorSchema:
    if isinstance(name, str) and name in known:
        return known[name]
    fix = did_you_mean(str(name), known) or f"the model has {', '.join(known)}"
    raise ModelInputError(f"There is no `{name}`.", where=where, fix=fix)


def _parameters(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise ModelInputError("It is no JSON object.", where=f"{where}.parameters")
    for name in ("shared_memory_region", "classification"):
        if name in found:
            raise ModelInputError("This server does not have that.", where=f"{where}.{name}")
    return found


def _tensor(
    given: Mapping[str, Any], tensor: TensorSchema, rest: memoryview, where: str
) -> tuple[NDArray[Any], memoryview]:
    """Return the tensor of one input, and the binary data that is left after it."""
    datatype = DATATYPES[tensor.dtype]
    if given.get("datatype") != datatype:
        what = f"It is {given.get('datatype')}, and the model takes {datatype}."
        raise ModelInputError(what, where=f"{where}.datatype")
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ModelInputError("It is no list of lengths.", where=f"{where}.shape")
    size = _parameters(given, where).get("binary_data_size")
    if size is None:
        array = _array(given.get("data"), tensor, f"{where}.data")
    else:
        dtype = np.dtype(tensor.dtype)
        expected = math.prod(shape) * dtype.itemsize
        if size != expected or size > len(rest):
            wanted = f"the shape {shape} of {datatype} has {expected} bytes"
            what = f"It is {size}; {wanted}, and {len(rest)} follow."
            raise ModelInputError(what, where=f"{where}.parameters.binary_data_size")
        little = np.frombuffer(rest[:size], dtype.newbyteorder("<"))
        array, rest = np.require(little, dtype, ["ALIGNED"]), rest[size:]
    if array.size != math.prod(shape):
        what = f"It has {array.size} values, and the shape {shape} has {math.prod(shape)}."
        raise ModelInputError(what, where=f"{where}.data")
    return array.reshape(shape), rest


def _array(data: object, tensor: TensorSchema, where: str) -> NDArray[Any]:
    """Return nested lists of numbers as an array of the dtype that the model takes."""
    if not isinstance(data, list):
        raise ModelInputError("It is no list.", where=where)
    dtype = np.dtype(tensor.dtype)
    try:
        found = np.asarray(data)
    except ValueError:  # ragged
        raise ModelInputError("Its rows are not of one length.", where=where) from None
    if found.size and found.dtype.kind not in _TAKEN[dtype.kind]:
        kind = _KINDS.get(found.dtype.kind, "something else than numbers")
        raise ModelInputError(f"It holds {kind}, and {tensor.dtype} is taken.", where=where)
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    is_beyond = np.isinf(array) & np.isfinite(found) if dtype.kind == "f" else array != found
    if is_beyond.any():
        raise ModelInputError(f"A number in it is beyond {tensor.dtype}.", where=where)
    return array


def _check_shapes(inputs: Arrays, schema: ExportSchema, prefix: str = "inputs.") -> None:
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


def _outputs(asked: Mapping[str, Any], schema: ExportSchema) -> dict[str, bool]:
    """Return the outputs that are asked for, all where none is named: name to "is binary"."""
    known = {each.name: each for each in schema.outputs}
    usually = _parameters(asked, "the body").get("binary_data_output") is True
    named = {}
    for each in _several(asked, "outputs"):
        name = _find(each.get("name"), known, "outputs").name
        named[name] = _parameters(each, "outputs").get("binary_data", usually) is True
    return named or dict.fromkeys(known, usually)


def _to_lists(array: NDArray[Any]) -> Any:
    is_plain = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return array.tolist() if is_plain else spell_numbers(array.tolist())


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
