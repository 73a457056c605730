"""Weights of other frameworks: .npz and .h5 files, and a mapping of their names and shapes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.core.formatting import size
from assay.engine.checkpoint.tensor_file import report_unreadable

ENDINGS = (".npz", ".h5", ".hdf5")
"""Endings of the files that `read_arrays` reads."""

_KEYS = ("to", "shape", "transpose")
_ALWAYS_BYTES = 256 << 20
_MOST_RATIO = 200
"""Bytes of arrays for a byte of their file, beyond those that any file may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """Rule for the weights whose whole name matches `pattern`.

    `to` is the name here, "" to leave the weight out; it may refer to groups of the pattern, as in
    `layers.\\1.weight`. The array takes `shape` first, then its last two dims are swapped.
    """

    pattern: str
    to: str
    shape: tuple[int, ...] | None = None
    transpose: bool = False


def read_arrays(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the arrays of an .npz or HDF5 file by name; runs no code in it.

    An array of HDF5 is named by its groups, as `layers/dense/vars/0`. InputError where `h5py` is
    not installed; CheckpointError for a file that cannot be read.
    """
    place = Path(path)
    with report_unreadable(place):
        found = _read_npz(place) if place.suffix == ".npz" else _read_hdf5(place)
        return {name: torch.from_numpy(np.array(array)) for name, array in found.items()}


def _read_npz(path: Path) -> dict[str, Any]:
    with ZipFile(path) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), path)
        arrays = {}
        for member in members:
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            arrays[member.filename.removesuffix(".npy")] = array
        return arrays


def _check_size(size_bytes: int, path: Path) -> None:
    """Raise ValueError for arrays that a file is too small to hold, as those of a zip bomb."""
    if size_bytes > max(_ALWAYS_BYTES, _MOST_RATIO * path.stat().st_size):
        raise ValueError(f"it claims {size(size_bytes)} of arrays, more than fits into it")


def _read_hdf5(path: Path) -> dict[str, Any]:
    try:
        # By name: it is optional, and comes with Keras.
        h5py: Any = import_module("h5py")
    except ModuleNotFoundError:
        raise InputError(
            "HDF5 files are read by h5py, which is not installed.",
            where=str(path),
            fix="pip install h5py",
        ) from None
    datasets: dict[str, Any] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
            if item.external or item.is_virtual:
                raise ValueError(f"{name} lies in another file, which is not followed")
            datasets[name] = item

    with h5py.File(path, "r") as file:
        file.visititems(keep)
        _check_size(sum(dataset.nbytes for dataset in datasets.values()), path)
        return {name: dataset[()] for name, dataset in datasets.items()}


def weight_rules(mapping: Mapping[str, Any] | str | PathLike[str]) -> list[WeightRule]:
    """Return the rules of a mapping, or of a TOML file with one.

    A value is the name here, or a table `{ to = "name", shape = [16, 16], transpose = true }`.
    InputError for anything else.
    """
    where = "" if isinstance(mapping, Mapping) else str(mapping)
    return [_rule(pattern, value, where) for pattern, value in _table(mapping).items()]


def _table(mapping: Mapping[str, Any] | str | PathLike[str]) -> Mapping[str, Any]:
    if isinstance(mapping, Mapping):
        return mapping
    try:
        return tomllib.loads(Path(mapping).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"The mapping cannot be read: {reason}.", where=str(mapping)) from None


def _rule(pattern: str, value: Any, where: str) -> WeightRule:
    given: Any = {"to": value} if isinstance(value, str) else value
    fix = '"their/name" = "name" or { to = "name", shape = [16, 16], transpose = true }'
    if not isinstance(given, Mapping) or not isinstance(given.get("to"), str):
        raise InputError(f"The mapping of {pattern!r} has no name.", where=where, fix=fix)
    if odd := [key for key in given if key not in _KEYS]:
        raise InputError(f"The mapping of {pattern!r} has `{odd[0]}`.", where=where, fix=fix)
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is no pattern: {error}.", where=where) from None
    shape = given.get("shape")
    return WeightRule(
        pattern=pattern,
        to=given["to"],
        shape=None if shape is None else tuple(shape),
        transpose=bool(given.get("transpose", False)),
    )


def map_weights(state: Mapping[str, Any], rules: list[WeightRule]) -> dict[str, Any]:
    """Return weights by their names here; a name that no rule matches stays as it is.

    The first rule that matches counts. InputError when two weights get one name, for a rule that
    matches nothing, and for a shape that an array cannot take.
    """
    found: dict[str, Any] = {}
    came_from: dict[str, str] = {}
    used: set[str] = set()
    for name, value in state.items():
        rule, new = _rename_by(rules, name)
        if rule is not None:
            used.add(rule.pattern)
            value = value if not new else _reshape(value, rule, name)
        if not new:
            continue
        if new in found:
            raise InputError(f"Both {came_from[new]!r} and {name!r} become {new!r}.")
        found[new], came_from[new] = value, name
    if idle := [rule.pattern for rule in rules if rule.pattern not in used]:
        raise InputError(
            f"The mapping has {idle[0]!r}, which is no weight of the file.",
            fix=f"The file has: {', '.join(list(state)[:8])}",
        )
    return found


def _rename_by(rules: list[WeightRule], name: str) -> tuple[WeightRule | None, str]:
    """Return the rule for a weight and its name here."""
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match is not None:
            try:
                return rule, match.expand(rule.to)
            except (re.error, IndexError) as error:
                raise InputError(f"{rule.to!r} does not fit {rule.pattern!r}: {error}.") from None
    return None, name


def _reshape(value: Tensor, rule: WeightRule, name: str) -> Tensor:
    try:
        array = value if rule.shape is None else value.reshape(rule.shape)
        return array.transpose(-1, -2).contiguous() if rule.transpose else array
    except (RuntimeError, IndexError):
        what = f"shape {list(rule.shape)}" if rule.shape is not None else "transposed"
        raise InputError(
            f"{name!r} has the shape {list(value.shape)} and cannot be made {what}."
        ) from None
