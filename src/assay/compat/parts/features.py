"""Features made once and kept on disk, and feature objects as tensors by name."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset

from assay.core.errors import CheckpointError, InputError
from assay.engine.checkpoint.codec import Encoded, decode, digest_state, encode
from assay.engine.checkpoint.tensor_file import read_tensors
from assay.formats.json_codec import write_atomic

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("assay")

OutputMode = Literal["classification", "regression"]


def load_or_build(
    build: Callable[..., Any], *arguments: Any, folder: str | Path, **named: Any
) -> Any:
    """Return `build(*arguments, **named)`, computed by one process and read by all others.

    Kept under a name that changes with the code of the module that `build` is in, with the
    arguments, and with what is in the files that they name. Several processes, of one run or of
    several, wait for the first; if it dies another one builds, and nothing half-made is left. No
    barrier: it works alike in evaluation and in one process.

    `build` returns tensors, arrays and plain data in dicts, lists and tuples. Raises InputError for
    anything else, and for a folder that cannot be written.
    """
    name = getattr(build, "__name__", "features").strip("<>")
    path = Path(folder) / f"{name}-{_key(build, arguments, named)}.safetensors"
    with _lock(path.with_suffix(".lock")):
        known = _read(path)
        if known is not None:
            logger.info("features read from %s", path)
            return known[0]
        made = build(*arguments, **named)
        _write(path, made, name)
        return made


def _key(build: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
    hasher = sha256()
    module = sys.modules.get(getattr(build, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    if file and os.path.isfile(file):
        hasher.update(Path(file).read_bytes())
    code = getattr(build, "__code__", None) or getattr(type(build).__call__, "__code__", None)
    if isinstance(code, CodeType):
        for part in _code(code):
            hasher.update(part)
    given = list(arguments)
    for pair in sorted(named.items()):
        given.extend(pair)
    name = getattr(build, "__name__", "build")
    for argument in given:
        digest = _digest(argument, name)
        hasher.update(digest.encode())
    return hasher.hexdigest()[:16]


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()


def _digest(argument: Any, name: str) -> str:
    if isinstance(argument, str | os.PathLike) and os.path.isdir(argument):
        inside = sorted(path for path in Path(argument).rglob("*") if path.is_file())
        return "\n".join(f"{path.relative_to(argument)} {_digest(path, name)}" for path in inside)
    if isinstance(argument, str | os.PathLike) and os.path.isfile(argument):
        with open(argument, "rb") as file:
            hasher = sha256()
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        return f"{os.fspath(argument)} {hasher.hexdigest()}"
    try:
        return digest_state(argument)
    except CheckpointError as error:
        raise InputError(
            f"An argument of {name} is a {type(argument).__name__}; whether it has changed cannot "
            "be told.",
            fix="Give plain data, arrays, tensors or the paths of files.",
        ) from error


def _read(path: Path) -> tuple[Any] | None:
    """Return the cached value, or None if no file can be read."""
    if not path.exists():
        return None
    try:
        tensors = read_tensors(path)
        tree = tensors.pop("tree").numpy().tobytes()
        return (decode(json.loads(tree), tensors),)
    except (ValueError, KeyError, CheckpointError) as error:
        logger.warning("%s cannot be read and is made again: %s", path, error)
        return None


def _write(path: Path, made: Any, name: str) -> None:
    try:
        encoded: Encoded = encode(made)
    except CheckpointError as error:
        raise InputError(
            f"What {name} returns cannot be kept: {error.what}",
            fix=(
                "Return tensors, arrays and plain data; of feature objects, to_tensors(features) "
                "makes them."
            ),
        ) from error
    tree = bytearray(json.dumps(encoded.tree).encode("ascii"))
    tensors = {
        key: tensor.detach().cpu().contiguous().clone() for key, tensor in encoded.tensors.items()
    }
    try:
        write_atomic(path, save({**tensors, "tree": torch.frombuffer(tree, dtype=torch.uint8)}))
    except OSError as error:
        raise _unwritable(error, path) from None


def _unwritable(error: OSError, path: Path) -> InputError:
    what = f"The features cannot be kept: {error.strerror or error}."
    return InputError(what, where=str(path), fix="Give another folder, or make room.")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock, which the kernel releases when the process dies.

    Windows has none: there each process may build, and the last one's file is kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unwritable(error, path) from None
    with file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another process makes %s; waiting", path.stem)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Fields(Dataset[dict[str, Tensor]]):
    """Map-style data set of dicts of tensors by field name: `{"input_ids": ..., "label": ...}`.

    `tensors` have one row for each sample. A batch is the same dict with one dimension more, made
    without collating.
    """

    randomness = "none"

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        lengths = {name: len(tensor) for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"The fields are of different lengths: {lengths or 'there is none'}.")
        self.count = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in self.tensors.items()}

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        where = torch.tensor(indices)
        return {name: tensor.index_select(0, where) for name, tensor in self.tensors.items()}


def to_tensors(
    features: Sequence[Any], *, output_mode: OutputMode = "classification", label: str = "label_id"
) -> Fields:
    """Return a data set made of feature objects: dataclasses, mappings or objects with attributes.

    Whole numbers become int64, others float32; `label` int64 in classification and float32 in
    regression. A field that is None in all of them is left out. Raises InputError with field and
    index for one that is missing, is no number, or has another shape than in the first.
    """
    if not features:
        raise InputError("There are no features.")
    if output_mode not in ("classification", "regression"):
        raise InputError(
            f"output_mode is {output_mode!r}.", fix='It is "classification" or "regression".'
        )
    rows = [_fields_of(feature) for feature in features]
    tensors: dict[str, Tensor] = {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if all(value is None for value in values):
            continue
        tensors[name] = _column(name, values, is_label=name == label, output_mode=output_mode)
    return Fields(tensors)


def _fields_of(feature: Any) -> dict[str, Any]:
    if is_dataclass(feature):
        return {field.name: getattr(feature, field.name) for field in fields(feature)}
    return dict(feature) if isinstance(feature, Mapping) else dict(vars(feature))


def _column(name: str, values: Sequence[Any], *, is_label: bool, output_mode: OutputMode) -> Tensor:
    rows: list[Tensor] = []
    for index, value in enumerate(values):
        try:
            row = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            what = (
                "is missing" if value is None else f"is a {type(value).__name__} that is no number"
            )
            raise InputError(
                f"`{name}` of feature {index} {what}.", fix="Leave it out of all, or give numbers."
            ) from None
        if rows and row.shape != rows[0].shape:
            raise InputError(
                f"`{name}` of feature {index} has the shape {tuple(row.shape)}, of feature 0 "
                f"{tuple(rows[0].shape)}.",
                fix="Pad it to one length.",
            )
        rows.append(row)
    column = torch.stack(rows)
    if is_label:
        return column.to(torch.int64 if output_mode == "classification" else torch.float32)
    return column.to(torch.float32 if any(row.is_floating_point() for row in rows) else torch.int64)
