"""Cause of the first difference of two runs, and the inputs that differ and can change bits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any

from assay.config.tree import Table, walk
from assay.formats.golden_file import has_changed_digests
from assay.formats.run_file import Attempt
from assay.formats.trace_file import SAMPLE_INDICES
from assay.formats.verdict import Cause, Difference
from assay.proof.differences import ORDER
from assay.query.diff import diff, flat
from assay.query.run import RunView
from assay.query.traces import ABSENT, Alignment, Compared, ranks_of

_WITHOUT_WEIGHT = ("tag", "desc", "threads", "trace", "log", "display", "checkpoint", "evaluate")
"""Sections of a config that change no bit of the weights; threads are told with the environment.

An evaluation changes none if there is a trace, no buffer in it that an evaluation wrote, and
nothing that trains by its numbers.
"""

_READ_EVALUATIONS = ("ReduceLROnPlateau", "EarlyStop")
"""Classes that train by the numbers of evaluations."""


_DECISIVE = (
    *("python", "machine", "packages.torch", "packages.numpy", "packages.assay"),
    *("torch.version", "torch.cuda", "torch.cudnn", "torch.cpu", "torch.devices"),
)
"""Keys of the environment that must be equal for equal bits to be expected."""


def changed_inputs(
    a: RunView, b: RunView, first: Difference | None = None
) -> dict[str, tuple[str, str]]:
    """Return the inputs that differ between two runs and can change bits, with both values.

    `first` is the first difference of the runs, where that is known.
    """
    ignored = set(_WITHOUT_WEIGHT)
    is_traced = all(ranks_of(view) for view in (a, b))
    is_of_evaluation = first is not None and first.phase == "evaluation"
    if not is_traced or is_of_evaluation or any(map(_trains_by_evaluations, (a, b))):
        ignored.discard("evaluate")
    differences = diff(a, b, ("config", "code"))
    changed = {
        f"config {each.key}": (each.left or "not given", each.right or "not given")
        for each in differences.config
        if each.key.partition(".")[0] not in ignored
    }
    changed |= {
        f"code {each.path}": ("", each.how)
        for each in differences.code
        if not (each.path.endswith(".json") and has_changed_digests(each.diff))  # a golden file
    }
    left, right = (view.file.newest for view in (a, b))
    for name, values in _environment_changes(left.environment, right.environment).items():
        changed[f"environment {name}"] = values
    changed |= changed_outside(left, right)
    if left.devices != right.devices:
        changed["environment devices"] = (", ".join(left.devices), ", ".join(right.devices))
    return changed


def _trains_by_evaluations(view: RunView) -> bool:
    targets = (node.target for _, node in walk(view.config_tree) if isinstance(node, Table))
    return any(re.split("[.:]", target)[-1] in _READ_EVALUATIONS for target in targets if target)


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
    return unlike_inputs(a, b, absent)


def unlike_inputs(
    a: Mapping[str, Mapping[str, str]],
    b: Mapping[str, Mapping[str, str]],
    absent: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[str, str]]:
    """Return inputs of two runs that differ; `absent` says what a library file is without text."""
    changes: dict[str, tuple[str, str]] = {}
    for kind, title in (
        ("config", "config {}"),
        ("variables", "environment variables.{}"),
        ("libraries", "environment library {}"),
        ("files", "file {}"),
    ):
        was, now = a.get(kind, {}), b.get(kind, {})
        for name in dict.fromkeys([*was, *now]):
            otherwise = "not set" if kind == "variables" else absent.get(name, "")
            values = was.get(name, otherwise), now.get(name, otherwise)
            if values[0] != values[1] and all(values):
                changes[title.format(name)] = values
    return changes


def is_only_outside(changed: Mapping[str, object]) -> bool:
    """Return True if something differs, but neither code nor config."""
    return bool(changed) and not any(name.startswith(("config", "code ")) for name in changed)


def _environment_changes(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Return versions, threads and variables that differ."""
    a = dict(flat(left))
    b = dict(flat(right))
    counted = ("packages.", "variables.", "torch.threads")
    names = [name for name in dict.fromkeys([*a, *b]) if name.startswith(counted)]
    changes = {
        name: (a.get(name, "not set"), b.get(name, "not set"))
        for name in names
        if a.get(name) != b.get(name)
    }
    return decisive_changes(left, right) | changes


def decisive_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return entries of both environments that can change bits and differ."""
    a = dict(flat(then))
    b = dict(flat(now))
    both = [name for name in _DECISIVE if name in a and name in b]
    return {
        name: (a[name], b[name])
        for name in both
        if _short_version(name, a[name]) != _short_version(name, b[name])
    }


def _short_version(name: str, value: str) -> str:
    """Return major and minor version of Python; others change no number that is computed."""
    return ".".join(value.split(".")[:2]) if name == "python" else value


OUTSIDE: Cause = "an input outside the record changed"


def cause_of(
    found: Alignment, changed: Mapping[str, object], *, repeats: bool | None = None
) -> Cause | None:
    """Return the cause of a difference, None for equal runs.

    `changed` has the inputs that differ. `repeats` says what training again has shown: True where
    it gives the same bits twice, though a record has others, so that an input has changed since;
    False where it gives other bits each time, so that no input has to change.

    A phase is the cause only if what comes before it in the step, and the weights that the step
    began with, are compared and equal. Else the cause is the list of what it may be.
    """
    first = found.difference
    if first is None:
        return None
    cause = _cause_by_phase(found, first)
    if cause in ("init", "data", "data order"):
        return cause
    if repeats or (repeats is None and is_only_outside(changed)):
        is_of_environment = any(name.startswith("environment ") for name in changed)
        return "environment" if is_of_environment else OUTSIDE
    return cause


def _cause_by_phase(found: Alignment, first: Difference) -> Cause:
    known = found.traced.get(first.step, frozenset())
    match first.phase:
        case "init" | "randomness" | "evaluation":
            return first.phase
        case "data":
            if first.name in (SAMPLE_INDICES, ORDER):
                return "data order"
            return "data" if "order" in known else "data or data order: not traced"
        case "forward" | "loss" | "state" if _knows_before(found, first, known, "data"):
            return "randomness" if found.kind == "random operation" else "forward"
        case "backward" if _knows_before(found, first, known, "data"):
            is_of_one = ABSENT in (first.left, first.right)
            is_known = is_of_one or "operations" in known
            return "backward" if is_known else "forward or backward: not traced"
        case "optimizer" if first.name.startswith("train/lr"):
            return "optimizer"
        case "average":
            # The weights of the step are equal, else one of them were the first difference.
            return "optimizer" if "optimizer" in known else "this step or one before it: not traced"
        case "optimizer" if _knows_before(found, first, known, "backward"):
            return "optimizer"
    is_at_start = first.step <= 1 and first.phase in ("forward", "loss")
    return (
        "data, init or forward: not traced"
        if is_at_start
        else "this step or one before it: not traced"
    )


def _knows_before(
    found: Alignment, first: Difference, known: Set[Compared], phase: Compared
) -> bool:
    """Return True if the weights before the step, and a phase of the step, are compared."""
    before = found.traced.get(first.step - 1, frozenset())
    return phase in known and bool(before & {"init", "optimizer"})
