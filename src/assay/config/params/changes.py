"""Changes from a file or the command line: a value keeps type and limits of the old one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from assay.config.params.arguments import Argument
from assay.config.params.coercion import CoercionError, described, fitted, parsed, type_of
from assay.config.params.group import Holder, caller, child, is_holder, store_at
from assay.config.params.limits import Choice, Range
from assay.config.tree import KeyPath, dotted
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import InputError, did_you_mean

Unknown = Literal["error", "warn", "allow"]
"""What to do with a name that was not declared."""


def change(root: Holder, argument: Argument, unknown: Unknown) -> list[Problem]:
    """Do what one argument of the command line asks for; what is wrong with it."""
    path = argument.path
    is_there = _is_there(root, path)
    if argument.deletes:
        if not is_there:
            return [_unknown(root, path, argument.key_origin, len(path) - 1)]
        parent = _at(root, path[:-1])
        if is_holder(parent):
            parent._drop(path[-1])
        else:
            del parent[path[-1]]
        return []
    if argument.creates and is_there:
        message = f"`{dotted(path)}` is there already"
        fix = f"write {argument.key}=..."
        return [
            Problem(
                kind="duplicate-key",
                message=message,
                origin=argument.key_origin,
                key=dotted(path),
                fix=fix,
            )
        ]
    return assign(
        root,
        path,
        parsed(argument.text),
        origin=argument.value_origin,
        key_origin=argument.key_origin,
        unknown="allow" if argument.creates else unknown,
        text=argument.text,
    )


def assign(
    root: Holder,
    path: KeyPath,
    value: Any,
    *,
    origin: Origin,
    key_origin: Origin,
    unknown: Unknown,
    text: str | None = None,
    above: KeyPath = (),
) -> list[Problem]:
    """Set the value at `path`; what is wrong with it. `above` is where `root` itself stands."""
    here: Any = root
    for depth, part in enumerate(path):
        if not _knows(here, part):
            return _declared(root, path, depth, value, origin, key_origin, unknown, above)
        if depth == len(path) - 1:
            return _replaced(here, part, (*above, *path), value, origin, key_origin, unknown, text)
        try:
            here = child(here, part)
        except KeyError:  # declared, but without a value so far
            return _declared(root, path, depth, value, origin, key_origin, "allow", above)
    return []


def _knows(here: Any, part: str | int) -> bool:
    if is_holder(here):
        return part in here._names()
    try:
        child(here, part)
    except KeyError:
        return False
    return True


def _declared(
    root: Holder,
    path: KeyPath,
    depth: int,
    value: Any,
    origin: Origin,
    key_origin: Origin,
    unknown: Unknown,
    above: KeyPath,
) -> list[Problem]:
    problem = _unknown(root, path, key_origin, depth, above)
    if unknown == "error":
        return [problem]
    try:
        store_at(root, path, value, origin)
    except InputError as error:
        return [
            Problem(
                kind="unknown-key",
                message=error.what.rstrip("."),
                origin=key_origin,
                key=problem.key,
            )
        ]
    if unknown == "warn":
        near = f"; {problem.fix}" if problem.fix.startswith("did") else ""
        place = caller()
        warnings.warn_explicit(
            f"{problem.message}: it is added{near}", UserWarning, place.source, place.line
        )
    return []


def _replaced(
    holder: Any,
    part: str | int,
    path: KeyPath,
    value: Any,
    origin: Origin,
    key_origin: Origin,
    unknown: Unknown,
    text: str | None,
) -> list[Problem]:
    """Replace the value of `part` by one of its type, within its limit; return what is wrong."""
    try:
        old = child(holder, part)
    except KeyError:
        old = None
    if is_holder(old) and isinstance(value, Mapping) and old._names():
        return _replaced_inside(old, path, value, origin, key_origin, unknown)
    if isinstance(holder, tuple):
        return [_part_of_one_value(path, key_origin)]
    limit, wanted = None, type_of(old)
    if is_holder(holder):
        limit, wanted = holder._notes.limits.get(part), holder._kind(part)
        origin = replace(origin, replaced=holder._notes.origins.get(part))
    made, wrong = _fitting(path, value, origin, wanted, limit, text)
    if wrong is not None:
        return [wrong]
    try:
        store_at(holder, (part,), made, origin)
    except InputError as error:
        message = error.what.rstrip(".")
        return [Problem(kind="wrong-value", message=message, origin=origin, key=dotted(path))]
    return []


def _replaced_inside(
    group: Any,
    path: KeyPath,
    values: Mapping[Any, Any],
    origin: Origin,
    key_origin: Origin,
    unknown: Unknown,
) -> list[Problem]:
    """Replace values of the group at `path`; return what is wrong."""
    places: dict[str, Any] = {"origin": origin, "key_origin": key_origin, "above": path}
    problems: list[Problem] = []
    for name, value in values.items():
        problems += assign(group, (name,), value, unknown=unknown, **places)
    return problems


def _part_of_one_value(path: KeyPath, key_origin: Origin) -> Problem:
    """Return the problem of a key within a value that has no parts, as a tuple."""
    above = dotted(path[:-1])
    return Problem(
        kind="unknown-key",
        message=f"`{above}` is one value, so it has no `{path[-1]}`",
        origin=key_origin,
        key=dotted(path),
        fix=f"give `{above}` as a whole",
    )


def _fitting(
    path: KeyPath,
    value: Any,
    origin: Origin,
    wanted: Any,
    limit: Choice | Range | None,
    text: str | None,
) -> tuple[Any, Problem | None]:
    """Return `value` as the wanted type and within the limit, or the problem with it."""
    try:
        if isinstance(limit, Choice):
            return _chosen(value, limit, text), None
        made = fitted(value, wanted, text)
    except CoercionError as misfit:
        kind = "wrong-value" if isinstance(limit, Choice) else "wrong-type"
        fix = _advice(wanted, limit, value, text)
        return None, _misfit(kind, path, str(misfit), value, origin, fix)
    if isinstance(limit, Range) and not limit.allows(made):
        return None, _misfit("wrong-value", path, limit.wanted(), made, origin)
    return made, None


def _chosen(value: Any, limit: Choice, text: str | None) -> Any:
    for choice in limit.choices:
        try:
            made = fitted(value, type_of(choice), text)
        except CoercionError:
            continue
        if limit.allows(made) and made == choice:
            return choice
    raise CoercionError(limit.wanted())


def _misfit(
    kind: str, path: KeyPath, wanted: str, value: Any, origin: Origin, fix: str = ""
) -> Problem:
    message = f"`{dotted(path)}` must be {wanted}, not {value!r}"
    return Problem(kind=kind, message=message, origin=origin, key=dotted(path), fix=fix)


def _advice(wanted: Any, limit: Choice | Range | None, value: Any, text: str | None) -> str:
    if isinstance(limit, Choice):
        return limit.near(value if text is None else text)
    if wanted is int and isinstance(value, float):
        return f"write {described(float)} as its default, as in 1.0, if it may be a fraction"
    if (
        text is not None
        and described(wanted).startswith(("a tuple", "a list"))
        and not isinstance(value, tuple | list)
    ):
        return f"write `{text},` for one item" if "," not in text else ""
    return ""


def _unknown(root: Any, path: KeyPath, origin: Origin, depth: int, above: KeyPath = ()) -> Problem:
    """Return the problem that `path` names nothing from its part `depth` on."""
    while depth and not _is_there(root, path[:depth]):
        depth -= 1
    parent = _at(root, path[:depth])
    key = dotted((*above, *path[: depth + 1]))
    if not is_holder(parent):
        message = f"`{dotted((*above, *path[:depth]))}` has no `{path[depth]}`"
        return Problem(kind="unknown-key", message=message, origin=origin, key=key)
    near = did_you_mean(str(path[depth]), parent._names())
    new = f"+{dotted((*above, *path))}=... declares a new one"
    fix = f"{near} {new}" if near else new
    return Problem(
        kind="unknown-key", message=f"unknown parameter `{key}`", origin=origin, key=key, fix=fix
    )


def _is_there(root: Any, path: KeyPath) -> bool:
    try:
        _at(root, path)
    except KeyError:
        return False
    return True


def _at(root: Any, path: KeyPath) -> Any:
    for part in path:
        root = child(root, part)
    return root
