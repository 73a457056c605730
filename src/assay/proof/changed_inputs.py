"""Inputs of two runs that differ and can change bits: config, code, environment and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.run_file import Attempt
from assay.core.verdict import Difference
from assay.query.diff import diff, flat
from assay.query.run import RunView
from assay.query.traces import ranks_of

_WITHOUT_WEIGHT = ("tag", "desc", "threads", "trace", "log", "display", "checkpoint", "evaluate")
"""Sections of a config that change no bit of the weights; threads are told with the environment.

An evaluation changes none if there is a trace, and no buffer in it that an evaluation wrote.
"""


_DECISIVE = (
    *("python", "machine", "packages.torch", "packages.numpy", "packages.assay"),
    *("torch.version", "torch.cuda", "torch.cudnn", "torch.cpu", "torch.devices"),
)
"""What has to be here as it was for equal bits to be expected."""


def changed_inputs(
    a: RunView, b: RunView, first: Difference | None = None
) -> dict[str, tuple[str, str]]:
    """Return the inputs that differ between two runs and can change bits, with both values.

    `first` is the first difference of the runs, where that is known.
    """
    ignored = set(_WITHOUT_WEIGHT)
    is_traced = all(ranks_of(view) for view in (a, b))
    if not is_traced or (first is not None and first.phase == "evaluation"):
        ignored.discard("evaluate")
    found = diff(a, b, ("config", "code"))
    changed = {
        f"config {each.key}": (each.left or "not given", each.right or "not given")
        for each in found.config
        if each.key.partition(".")[0] not in ignored
    }
    changed |= {f"code {each.path}": ("", each.how) for each in found.code}
    left, right = (view.file.newest for view in (a, b))
    for name, values in _environment(left.environment, right.environment).items():
        changed[f"environment {name}"] = values
    changed |= changed_outside(left, right)
    if left.devices != right.devices:
        changed["environment devices"] = (", ".join(left.devices), ", ".join(right.devices))
    return changed


def changed_outside(left: Attempt, right: Attempt) -> dict[str, tuple[str, str]]:
    """Return variables, library files and data files that the code reads and that differ.

    A file counts if both have looked at it. A library file that only one has was edited since the
    other began, or the other has not loaded it. Records of before have none of them.
    """
    a, b = (each.environment.get("inputs") for each in (left, right))
    if a is None or b is None:
        return {}
    absent = {
        name: "as installed"
        for inputs, other in ((a, right), (b, left))
        for name, edited in inputs.get("edited_ns", {}).items()
        if edited.isdecimal() and int(edited) > other.started_ns
    }
    found: dict[str, tuple[str, str]] = {}
    for kind, title in (
        ("variables", "environment variables.{}"),
        ("libraries", "environment library {}"),
        ("files", "file {}"),
    ):
        was, now = a.get(kind, {}), b.get(kind, {})
        for name in dict.fromkeys([*was, *now]):
            otherwise = "not set" if kind == "variables" else absent.get(name, "")
            values = was.get(name, otherwise), now.get(name, otherwise)
            if values[0] != values[1] and all(values):
                found[title.format(name)] = values
    return found


def is_only_outside(changed: Mapping[str, object]) -> bool:
    """Return True if something differs, but neither code nor config."""
    return bool(changed) and not any(name.startswith(("config", "code ")) for name in changed)


def _environment(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return versions, threads and variables that differ."""
    a = dict(flat(left))
    b = dict(flat(right))
    counted = ("packages.", "variables.", "torch.threads")
    names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(counted)]
    found = {
        name: (a.get(name, "not set"), b.get(name, "not set"))
        for name in names
        if a.get(name) != b.get(name)
    }
    return unlike(left, right) | found


def unlike(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return entries of both environments that can change bits and differ."""
    a = dict(flat(then))
    b = dict(flat(now))
    both = [name for name in _DECISIVE if name in a and name in b]
    return {
        name: (a[name], b[name])
        for name in both
        if _shortened(name, a[name]) != _shortened(name, b[name])
    }


def _shortened(name: str, value: str) -> str:
    """Return major and minor version of Python; others change no number that is computed."""
    return ".".join(value.split(".")[:2]) if name == "python" else value
