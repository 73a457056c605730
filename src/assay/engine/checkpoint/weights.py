"""Weights and checkpoints loaded into existing objects, from folders and foreign files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from assay.core.errors import CheckpointError, InputError
from assay.core.formatting import name_some
from assay.engine.checkpoint.folder import load_parts, separate
from assay.engine.checkpoint.optimizer_state import load_optimizer_state
from assay.engine.checkpoint.tensor_file import (
    read_tensors,
    report_unreadable,
    write_tensors,
)
from assay.engine.checkpoint.weight_mapping import (
    ENDINGS,
    map_weights,
    read_arrays,
    weight_rules,
)
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import (
    distribute_state_like,
    full_tensor,
    is_dtensor,
    local_tensor,
)
from assay.engine.numerics.structures import table_like
from assay.formats import manifest as manifests

_OF_MODELS = ("model", "state_dict", "model_state_dict", "weights", "net")
_WRAPPED = ("module.", "_orig_mod.")  # what DataParallel and compiled models put before every name
_WRAPPERS = re.compile(r"(?:module\.|_orig_mod\.)+")
# Before this version weights_only could be broken: CVE-2025-32434, CVE-2026-24747.
_SAFE_UNPICKLING = (2, 10)
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Mismatch of a file and a model: missing names, unexpected names, other shapes."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        kinds = {
            "not loaded, missing there": self.missing,
            "not loaded, of another shape there": self.mismatched,
            "not used": self.unexpected,
        }
        found = [f"{kind}: {name_some(names, _SHOWN)}" for kind, names in kinds.items() if names]
        return "; ".join(found) or "everything fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Result of `load_checkpoint`; `rest` is what else the checkpoint holds."""

    model: nn.Module
    optimizer: Optimizer | None
    rest: Mapping[str, Any] = field(default_factory=dict)
    report: Report


def load_into(owner: Any, state: Any) -> None:
    """Load a state by the object's `_load_state_dict` if it has one, else by `load_state_dict`."""
    own = getattr(owner, "_load_state_dict", None)
    if callable(own):
        own(state)
    elif isinstance(owner, nn.Module):
        load_model_state(owner, state)
    else:
        owner.load_state_dict(state)


_MISFITS = 6
"""Names that a message lists."""


def _misfits(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the names whose shapes differ, that are missing, or that the model does not have."""
    found = [
        f"{name} is {list(given[name].shape)} there and {list(own[name].shape)} in the model"
        for name in own
        if name in given and hasattr(given[name], "shape") and given[name].shape != own[name].shape
    ]
    found += [f"{name} is missing there" for name in own if name not in given]
    found += [f"the model has no {name}" for name in given if name not in own]
    more = len(found) - _MISFITS
    return "; ".join(found[:_MISFITS]) + (f"; and {more} more" if more > 0 else "")


def load_model_state(
    model: nn.Module, state: Mapping[str, Any], *, strict: bool = True, resizes: bool = False
) -> Report:
    """Load weights; mismatches are reported, or raise CheckpointError if `strict`.

    `resizes`: buffers take the shapes that they had when they were saved. A buffer whose values
    share one place in memory gets a place for each.
    """
    own = getattr(model, "_load_state_dict", None)
    if callable(own):
        own(state)
        return Report()
    if any(map(is_dtensor, model.parameters())):
        state = distribute_state_like(model.state_dict(), state)
    state = _with_tied_names(model, state)
    _make_room(model, state, resizes=resizes)
    if strict:
        try:
            model.load_state_dict(state)
        except (RuntimeError, KeyError) as error:
            told = _misfits(model.state_dict(), state) or str(error)
            fix = "Build the model that the checkpoint is of, or begin with the weights that fit:"
            fix += " load_weights with strict = false."
            raise CheckpointError(
                f"The checkpoint does not fit the model: {told}.", fix=fix
            ) from error
        return Report()
    there = model.state_dict()
    odd = [
        name
        for name, value in state.items()
        if name in there and _shape(there[name]) != _shape(value)
    ]
    if there and not any(name in there and name not in odd for name in state):
        raise CheckpointError(
            f"No weight of the file fits the model: {_misfits(there, state)}.",
            fix=f"Say what the names are here: rename = {_prefix_rule(there, state)}.",
        )
    fitting = table_like(state, {name: value for name, value in state.items() if name not in odd})
    result = model.load_state_dict(fitting, strict=False)
    missing = [name for name in result.missing_keys if name not in odd]
    return Report(
        missing=tuple(missing), unexpected=tuple(result.unexpected_keys), mismatched=tuple(odd)
    )


def _with_tied_names(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the other names of weights that a file holds once, as files of safetensors do."""
    names_at: dict[tuple[Any, ...], list[str]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and not is_lazy(value):
            names_at.setdefault(_place_of(value), []).append(name)
    added: dict[str, Any] = {}
    for names in names_at.values():
        known = next((name for name in names if name in state), None)
        if known is not None:
            added |= {name: state[known] for name in names if name not in state}
    return table_like(state, {**state, **added}) if added else state


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that two tensors share if they are the same memory in the same shape."""
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    local = local_tensor(tensor)
    place = local.untyped_storage().data_ptr(), local.storage_offset()
    return *place, tensor.dtype, tuple(local.shape), local.stride()


def _prefix_rule(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return a rule of `rename` for names that differ by a prefix; else an example."""
    for name in given:
        for end in own:
            if name.endswith(f".{end}"):
                prefix = re.escape(name.removesuffix(end)).replace("\\", "\\\\")  # as in TOML
                return f'{{ "^{prefix}" = "" }}'
            if end.endswith(f".{name}"):
                return f'{{ "^" = "{end.removesuffix(name)}" }}'
    return r'{ "^encoder\\." = "body." }'


def _make_room(model: nn.Module, state: Mapping[str, Any], *, resizes: bool) -> None:
    """Replace buffers that the values of a state cannot be copied into.

    None of a model whose parameters the state does not fit: that is another model.
    """
    resizes = resizes and all(
        _shape(state.get(name)) == _shape(parameter) for name, parameter in model.named_parameters()
    )
    for prefix, module in model.named_modules():
        table = private_torch.buffers_of(module)
        for name, buffer in list(table.items()):
            saved = state.get(f"{prefix}.{name}".removeprefix("."))
            if not isinstance(buffer, Tensor) or not isinstance(saved, Tensor) or is_lazy(buffer):
                continue
            is_resized = resizes and buffer.shape != saved.shape
            is_expanded = buffer.layout is torch.strided and any(
                size > 1 and not stride
                for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
            )
            if is_resized or (is_expanded and buffer.shape == saved.shape):
                table[name] = torch.empty(saved.shape, dtype=buffer.dtype, device=buffer.device)


def save_weights(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write the weights of a model into one safetensors file, which runs no code when read.

    CheckpointError when something in its state is no tensor, or the disk refuses. Where several
    processes have the model together all of them call this, and the first one writes.
    """
    place = Path(path)
    state = model.state_dict()
    is_together = any(map(is_dtensor, state.values()))
    is_writing = not is_together or torch.distributed.get_rank() == 0
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_complex():
            fix = "Save it as a checkpoint: Saver(folder).save_model(0, model)."
            raise CheckpointError(
                f"A file of weights cannot keep {name}: it is no tensor of real numbers.", fix=fix
            )
        full = full_tensor(value)
        if is_writing:
            tensors[name] = full.detach().cpu() if is_together else full
    if not is_writing:
        return place
    temporary = place.with_name(f".{place.name}.{os.getpid()}{manifests.TEMPORARY}")
    try:
        write_tensors(temporary, separate(tensors))
        os.replace(temporary, place)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(
            f"The weights were not written: {error}.", where=str(place)
        ) from error
    return place


def load_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    rename: Mapping[str, str] | None = None,
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    pickled: bool = False,
    verify: bool = True,
) -> Report:
    """Load weights of a checkpoint folder, a file of another framework or, if `pickled`, of torch.

    Files end in .safetensors, .npz or .h5. `rename` has regular expressions and what they become,
    applied to every name; `mapping`, or a TOML file with it, also reshapes: see `weight_rules`.
    What does not fit is an error that names it; with `strict=False` it is left out and reported,
    unless nothing fits. A weight that the model uses under several names may have one in the file.
    InputError when there is no such file.
    """
    state = _weights_in(read_foreign(path, pickled=pickled, verify=verify), path)
    return fit_weights(model, state, strict=strict, rename=rename, mapping=mapping)


def fit_weights(
    model: nn.Module,
    state: Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Mapping[str, str] | None = None,
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    resizes: bool = False,
) -> Report:
    """As `load_weights`, from weights that are in memory; `resizes` as for `load_model_state`."""
    if mapping is not None:
        state = map_weights(state, weight_rules(mapping))
    named = _rename(state, model, rename or {})
    return load_model_state(model, named, strict=strict, resizes=resizes)


def load_checkpoint(
    model: nn.Module,
    path: str | os.PathLike[str] | None,
    optimizer: Optimizer | None = None,
    *,
    strict: bool = True,
    rename: Mapping[str, str] | None = None,
    pickled: bool = False,
    verify: bool = True,
) -> Loaded:
    """Load a checkpoint into a model and its optimizer; return the rest: epoch, best loss, ...

    As `load_weights`; InputError too when `path` is None, CheckpointError when there is nothing for
    the optimizer.
    """
    if path is None:
        raise InputError(
            "There is no checkpoint to load: its path is None.", fix="Give the path of one."
        )
    found = read_foreign(path, pickled=pickled, verify=verify)
    rest = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
    state = _weights_in(found, path)
    rest = {key: value for key, value in rest.items() if value is not state and key != "optimizer"}
    if optimizer is not None and "optimizer" not in found:
        fix = f"It has: {', '.join(map(str, found))}." if len(found) < 2 * _SHOWN else ""
        raise CheckpointError(
            "The checkpoint holds nothing for the optimizer.", where=str(path), fix=fix
        )
    report = fit_weights(model, state, strict=strict, rename=rename)
    if optimizer is not None:
        saved = found["optimizer"]
        if isinstance(saved, Mapping) and ("groups" in saved or "whole" in saved):
            load_optimizer_state(optimizer, model, saved)
        else:
            optimizer.load_state_dict(saved)
    return Loaded(model=model, optimizer=optimizer, rest=rest, report=report)


def read_foreign(
    path: str | os.PathLike[str], *, pickled: bool = False, verify: bool = True
) -> Mapping[str, Any]:
    """Return the contents of a checkpoint folder or a file of weights; runs no code in it.

    InputError when it is not there, or is a pickle and `pickled` does not allow one;
    CheckpointError when it cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        return load_parts(place, verify=verify)
    if not place.exists():
        raise InputError("There is no checkpoint here.", where=str(place), fix="Look at the path.")
    if place.suffix == ".safetensors":
        return read_tensors(place)
    if place.suffix in ENDINGS:
        return read_arrays(place)
    if not pickled:
        fix = (
            "load_weights with pickled=True reads tensors and plain data only, save_weights "
            "writes a file for here."
        )
        what = (
            f"{place.name} is no checkpoint of assay, and torch's own files are pickles, which "
            "can run code."
        )
        raise InputError(what, where=str(place), fix=fix)
    return _unpickle(place)


def _unpickle(path: Path) -> Mapping[str, Any]:
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < _SAFE_UNPICKLING:
        what = f"torch {torch.__version__} cannot read a pickle safely."
        raise InputError(what, where=str(path), fix="Update torch to 2.10 or newer.")
    try:
        with report_unreadable(path):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError as error:
        held = re.search(r"GLOBAL ([\w.]+)", str(error.__cause__))
        if held is None:
            raise
        fix = "Where the code is, write only its weights: torch.save(net.state_dict(), path)."
        what = (
            f"{path.name} holds more than tensors and plain data: {held[1]}. To read it would "
            "be to run it."
        )
        raise InputError(what, where=str(path), fix=fix) from None
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{path.name} holds a {type(found).__name__}, not a table.", where=str(path)
        )
    return found


def _weights_in(found: Mapping[str, Any], path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the weights in what was read: all of it, or the entry under a usual name."""
    if found and all(isinstance(value, Tensor) for value in found.values()):
        return found
    for name in _OF_MODELS:
        if isinstance(found.get(name), Mapping):
            return found[name]  # type: ignore[no-any-return]
    if isinstance(found.get("whole"), Mapping):
        return _weights_in(found["whole"], path)
    fix = (
        f"It has: {', '.join(map(str, found))}; weights are looked for under "
        f"{', '.join(_OF_MODELS)}."
    )
    raise CheckpointError("The checkpoint holds no weights.", where=str(path), fix=fix)


def _rename(
    state: Mapping[str, Any], model: nn.Module, rules: Mapping[str, str]
) -> Mapping[str, Any]:
    renames = {**rules, **_unwrapping(state, model)}
    if not renames:
        return state
    named: dict[str, Any] = {}
    for name, value in state.items():
        new = name
        for pattern, replacement in renames.items():
            try:
                new = re.sub(pattern, replacement, new)
            except (re.error, IndexError) as error:
                raise InputError(
                    f"`rename` has {pattern!r} = {replacement!r}, which is no rule: {error}."
                ) from None
        if new in named:
            raise InputError(f"`rename` makes two weights {new!r}.")
        named[new] = value
    return named


def _unwrapping(state: Mapping[str, Any], model: nn.Module) -> dict[str, str]:
    """Return a rule that strips prefixes of wrappers which the model does not have."""
    found = _WRAPPERS.match(next(iter(state), ""))
    if found is None or not all(name.startswith(found[0]) for name in state):
        return {}
    if any(name.startswith(_WRAPPED) for name in model.state_dict()):
        return {}
    return {f"^{re.escape(found[0])}": ""}


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else None
