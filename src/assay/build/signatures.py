"""The signature stage of a check: targets are imported, and every call of a config is held against what it calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.build.adapters import is_data, is_reference, misfits
from assay.build.context import NOT_BY_NAME, ROLES
from assay.build.isolation import user_code
from assay.build.parameters import Parameter, Signature, from_assay, injectable, signature_of
from assay.build.register import is_injected
from assay.build.targets import TargetError, find, owner_of
from assay.config.tree import KeyPath, List, Node, Table, dotted, walk
from assay.core import schema
from assay.core.diagnostics import Origin, Problem, Severity
from assay.core.errors import did_you_mean

RESERVED = ("type", "args")
"""Keys of a call that are no arguments."""

# Not objects yet: their keys are overrides of other sections, and are checked when they are in place.
_NOT_BUILT = ("variants", "sweep")


def check_signatures(
    root: Table,
    *,
    user_dirs: Sequence[Path],
    roles: Collection[str] = ROLES,
    types: Collection[Any] = (),
    given: Mapping[str, Collection[str]] | None = None,
    trusted: Collection[str] = (),
) -> list[Problem]:
    """Everything wrong with the calls in a config: target, names, missing arguments, types of values.

    Injection will fill parameters by `roles` and `types`; the call at dotted path `p` gets `given[p]` by keyword when
    it is built. Keys swallowed by `**kwargs` come back as notes of kind "unchecked".
    """
    check = _Check(user_dirs, roles, types, given or {}, trusted)
    with user_code(user_dirs):
        return [problem for path, table in calls(root) for problem in check.call(path, table, root)]


def calls(root: Table) -> Iterator[tuple[KeyPath, Table]]:
    """Every call of a config with its path, the outer before the inner."""
    for path, node in walk(root):
        if isinstance(node, Table) and "type" in node.items and not _is_standard(path) and path[0] not in _NOT_BUILT:
            yield path, node


@dataclass(slots=True)
class _Check:
    user_dirs: Sequence[Path]
    roles: Collection[str]
    types: Collection[Any]
    given: Mapping[str, Collection[str]]
    trusted: Collection[str]
    resolved: dict[str, Any] = field(default_factory=dict)

    def call(self, path: KeyPath, table: Table, root: Table) -> Iterator[Problem]:
        place = table.items["type"].origin
        if table.target is None:
            yield _problem("wrong-type", "`type` must be a string that names a target", place, (*path, "type"))
            return
        if is_reference(table.items["type"]):
            return  # what is referred to cannot be known before it is built
        target = self.resolve(table.target)
        if isinstance(target, TargetError):
            yield target.problem(place, dotted((*path, "type")))
            return
        signature = signature_of(target)
        positional = table.items.get("args")
        if positional is not None and not isinstance(positional, List):
            yield _problem("wrong-type", "`args` must be a list: `args = [...]`", positional.origin, (*path, "args"))
        if signature is None:
            return
        yield from self.positional(path, table, target, signature)
        yield from self.named(path, table, target, signature)
        yield from self.missing(path, table, target, signature)

    def resolve(self, target: str) -> Any:
        """The target, or why not; the frames of a module that fails are shown once."""
        if target not in self.resolved:
            try:
                self.resolved[target] = find(target, user_dirs=self.user_dirs, trusted=self.trusted)
            except TargetError as error:
                self.resolved[target] = TargetError(error.kind, error.what, fix=error.fix)
                return error
        return self.resolved[target]

    def positional(self, path: KeyPath, table: Table, target: Any, signature: Signature) -> Iterator[Problem]:
        for i, node in enumerate(table.args):
            here = (*path, "args", i)
            parameter = signature.at(i)
            if parameter is None:
                count = sum(parameter.by_position for parameter in signature.named)
                takes = f"takes {count} positional argument{'s' * (count != 1)}"
                yield _problem("unknown-argument", f"`{table.target}` {takes}, not {i + 1}", node.origin, here)
                return
            yield from _types(here, node, target, parameter, table)

    def named(self, path: KeyPath, table: Table, target: Any, signature: Signature) -> Iterator[Problem]:
        known = signature.by_keyword()
        by_position = _taken(table, signature)
        for key, node in table.items.items():
            here, where = (*path, key), table.key_origin(key)
            if key in RESERVED:
                continue
            if key in by_position:
                message = f"`{key}` of `{table.target}` is given twice: here and in `args`"
                yield _problem("duplicate-argument", message, where, here, "leave one of them out")
            elif key in known:
                yield from _types(here, node, target, known[key], table)
            elif signature.var_kwargs is not None:
                message = f"`{key}` goes into `**{signature.var_kwargs.name}` of `{table.target}`, unchecked"
                fix = did_you_mean(key, known)
                yield _problem("unchecked", message, where, here, fix, severity="note")
            else:
                takes = ", ".join(known) or "no arguments"
                fix = did_you_mean(key, known) or f"it takes: {takes}"
                yield _problem("unknown-argument", f"`{table.target}` takes no argument `{key}`", where, here, fix)

    def missing(self, path: KeyPath, table: Table, target: Any, signature: Signature) -> Iterator[Problem]:
        filled = {*table.items, *_taken(table, signature), *self.given.get(dotted(path), ())}
        owner = owner_of(target, user_dirs=self.user_dirs, trusted=self.trusted)
        for parameter in signature.named:
            is_foreign_device = parameter.name in NOT_BY_NAME and owner not in ("user", "assay")
            roles = () if is_foreign_device else self.roles
            if parameter.required and parameter.name not in filled and not self.fills(parameter, roles):
                message = f"`{table.target}` needs `{parameter.name}`"
                fix = f"write `{parameter.name} = ...` in [{dotted(path)}]"
                if not parameter.by_keyword:
                    fix = f"write `args = [...]` in [{dotted(path)}]: it is taken by position only"
                yield _problem("missing-argument", message, table.items["type"].origin, path, fix)

    def fills(self, parameter: Parameter, roles: Collection[str]) -> bool:
        """Whether injection will fill a required parameter: as `Context.source`, for objects that are not there yet."""
        if parameter.name in roles or from_assay(parameter.hint):
            return True
        kind = injectable(parameter.hint)
        if kind is None or parameter.name in ROLES:
            return False
        if isinstance(kind, type) and is_injected(kind):
            return True
        return any(one is kind or _is_subclass(one, kind) for one in self.types)


def _is_standard(path: KeyPath) -> bool:
    """Whether assay itself reads the table at `path`: a `type` in it is no target, and the shape stage says so."""
    key = schema.find(path)
    is_split = len(path) == 2 and path[0] == "data"
    return not path or is_split or (key is not None and key.kind in ("table", "tables"))


def _types(path: KeyPath, node: Node, target: Any, parameter: Parameter, table: Table) -> Iterator[Problem]:
    if not is_data(node):
        return
    for misfit in misfits(target, parameter, node):
        message = f"`{parameter.name}` of `{table.target}` {misfit.wanted}, not {misfit.written}"
        yield _problem("wrong-type", message, misfit.origin, path)


def _taken(table: Table, signature: Signature) -> set[str]:
    """Names of the parameters that `args` fills."""
    filled = (signature.at(i) for i in range(len(table.args)))
    return {parameter.name for parameter in filled if parameter is not None and parameter.by_position}


def _is_subclass(one: Any, kind: Any) -> bool:
    try:
        return isinstance(one, type) and isinstance(kind, type) and issubclass(one, kind)
    except TypeError:  # a Protocol that cannot be asked
        return False


def _problem(
    kind: str, message: str, origin: Origin, path: KeyPath, fix: str = "", severity: Severity = "error"
) -> Problem:
    return Problem(kind=kind, message=message, origin=origin, key=dotted(path), fix=fix, severity=severity)
