"""Changes from a file or the command line: a value keeps type and limits of the old one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from assay.config.overrides import DELETE, origin_in
from assay.config.params.coercion import (
    Choice,
    CoercionError,
    Range,
    describe,
    fit,
    parse_literal,
    type_of,
)
from assay.config.params.group import Holder, caller, child, is_holder, store_at
from assay.config.tree import KeyPath, Leaf, Setting, dotted, parse_dotted, problem_at
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import InputError, did_you_mean

Unknown = Literal["error", "warn", "allow"]
"""What to do with a name that was not declared."""


_ARGUMENT = re.compile(
    r"(?:--)?(?P<plus>\+?)(?P<key>[A-Za-z_][\w.\-\[\]]*)(?:=(?P<value>.*))?", re.ASCII | re.DOTALL
)


def read_arguments(
    argv: Sequence[str], *, is_flag: Callable[[str], bool]
) -> tuple[list[Setting], list[Problem]]:
    """Return the settings that `argv` asks for, and the arguments that cannot be parsed.

    They are overrides with dashes, where `--key value` is `--key=value`, and `--key` alone is true
    where `is_flag(key)` says that the value is a bool.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    rest = list(argv)
    while rest:
        given = rest.pop(0)
        found = _ARGUMENT.fullmatch(given)
        if found is None or (found["value"] is None and not given.startswith("--")):
            problems.append(_refuse(given, f"`{given}` names no parameter", "write --name=value"))
            continue
        key, text = found["key"], found["value"]
        if text is None and is_flag(key):
            text = "true"
        elif text is None:
            if not rest or _is_option(rest[0]):
                problems.append(_refuse(given, f"`{given}` has no value", f"write --{key}=value"))
                continue
            text = rest.pop(0)
            given = f"{given} {text}"
        try:
            parts = parse_dotted(key)
        except ValueError:
            message = f"`{key}` is no name of a parameter"
            problems.append(_refuse(given, message, "write --a.b=value"))
            continue
        origins = (origin_in(given, found.start("key"), found.end("key")),) * len(parts)
        place = origin_in(given, len(given) - len(text), len(given))
        value = None if text.strip() == DELETE else Leaf(text, place)
        creates = bool(found["plus"])
        settings.append(
            Setting(parts=parts, value=value, origins=origins, creates=creates, text=text)
        )
    return settings, problems


def _is_option(text: str) -> bool:
    found = _ARGUMENT.fullmatch(text)
    return text.startswith("--") or (found is not None and found["value"] is not None)


def _refuse(given: str, message: str, fix: str) -> Problem:
    return Problem(kind="syntax", message=message, origin=origin_in(given, 0, len(given)), fix=fix)


def change(root: Holder, setting: Setting, unknown: Unknown) -> list[Problem]:
    """Do what one argument of the command line asks for; what is wrong with it."""
    path = setting.parts
    is_there = _is_there(root, path)
    if setting.value is None:
        if not is_there:
            return [_unknown(root, path, setting.key_origin(), len(path) - 1)]
        parent = _at(root, path[:-1])
        if is_holder(parent):
            parent._drop(path[-1])
        else:
            del parent[path[-1]]
        return []
    if setting.creates and is_there:
        message = f"`{dotted(path)}` is there already"
        fix = f"write {dotted(path)}=..."
        return [problem_at("duplicate-key", message, setting.key_origin(), path, fix)]
    text = setting.text or ""
    return assign(
        root,
        path,
        parse_literal(text),
        origin=setting.value.origin,
        key_origin=setting.key_origin(),
        unknown="allow" if setting.creates else unknown,
        text=text,
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
            return _declare(root, path, depth, value, origin, key_origin, unknown, above)
        if depth == len(path) - 1:
            return _replace(here, part, (*above, *path), value, origin, key_origin, unknown, text)
        try:
            here = child(here, part)
        except KeyError:  # declared, but without a value so far
            return _declare(root, path, depth, value, origin, key_origin, "allow", above)
    return []


def _knows(here: Any, part: str | int) -> bool:
    if is_holder(here):
        return part in here._names()
    try:
        child(here, part)
    except KeyError:
        return False
    return True


def _declare(
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
        return [problem_at("unknown-key", error.what.rstrip("."), key_origin, problem.key)]
    if unknown == "warn":
        near = f"; {problem.fix}" if problem.fix.startswith("did") else ""
        place = caller()
        warnings.warn_explicit(
            f"{problem.message}: it is added{near}", UserWarning, place.source, place.line
        )
    return []


def _replace(
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
        return _replace_inside(old, path, value, origin, key_origin, unknown)
    if isinstance(holder, tuple):
        return [_part_of_one_value(path, key_origin)]
    limit, wanted = None, type_of(old)
    if is_holder(holder):
        limit, wanted = holder._notes.limits.get(part), holder._kind(part)
        origin = replace(origin, replaced=holder._notes.origins.get(part))
    made, wrong = _fit(path, value, origin, wanted, limit, text)
    if wrong is not None:
        return [wrong]
    try:
        store_at(holder, (part,), made, origin)
    except InputError as error:
        message = error.what.rstrip(".")
        return [problem_at("wrong-value", message, origin, path)]
    return []


def _replace_inside(
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
    return problem_at(
        "unknown-key",
        f"`{above}` is one value, so it has no `{path[-1]}`",
        key_origin,
        path,
        f"give `{above}` as a whole",
    )


def _fit(
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
            return _choose(value, limit, text), None
        made = fit(value, wanted, text)
    except CoercionError as misfit:
        kind = "wrong-value" if isinstance(limit, Choice) else "wrong-type"
        fix = _advice(wanted, limit, value, text)
        return None, _misfit(kind, path, str(misfit), value, origin, fix)
    if isinstance(limit, Range) and not limit.allows(made):
        return None, _misfit("wrong-value", path, limit.requirement(), made, origin)
    return made, None


def _choose(value: Any, limit: Choice, text: str | None) -> Any:
    for choice in limit.choices:
        try:
            made = fit(value, type_of(choice), text)
        except CoercionError:
            continue
        if limit.allows(made) and made == choice:
            return choice
    raise CoercionError(limit.requirement())


def _misfit(
    kind: str, path: KeyPath, wanted: str, value: Any, origin: Origin, fix: str = ""
) -> Problem:
    message = f"`{dotted(path)}` must be {wanted}, not {value!r}"
    return problem_at(kind, message, origin, path, fix)


def _advice(wanted: Any, limit: Choice | Range | None, value: Any, text: str | None) -> str:
    if isinstance(limit, Choice):
        return limit.near(value if text is None else text)
    if wanted is int and isinstance(value, float):
        return f"write {describe(float)} as its default, as in 1.0, if it may be a fraction"
    if (
        text is not None
        and describe(wanted).startswith(("a tuple", "a list"))
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
        return problem_at("unknown-key", message, origin, key)
    near = did_you_mean(str(path[depth]), parent._names())
    new = f"+{dotted((*above, *path))}=... declares a new one"
    fix = f"{near} {new}" if near else new
    return problem_at("unknown-key", f"unknown parameter `{key}`", origin, key, fix)


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
