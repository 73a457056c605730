"""Signature check of a config: each call against the signature of its target."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.build.adapters import judge
from assay.build.context import NOT_BY_NAME, ROLES
from assay.build.marks import is_configurable, is_injected
from assay.build.parameters import (
    UNKNOWN,
    Parameter,
    Signature,
    from_assay,
    injectable,
    signature_of,
)
from assay.build.target_owners import owner_of
from assay.build.targets import TargetError, canonical_name, find_target
from assay.config.check import Default
from assay.config.isolation import user_code
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    get_at,
    is_data,
    is_reference,
    key_origin_at,
    parse_dotted,
    set_at,
    walk,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem, Severity, at_most
from assay.core.errors import did_you_mean, nearest

FACTORY = "_partial_"
"""Key of a call that is not made: `_partial_ = true` builds a factory with the arguments."""

SOURCE = "datapipe"
"""Required parameter that a chain fills with what is before: a call that lacks it is a factory."""

RESERVED = ("type", "args", FACTORY)
"""Keys of a call that are no arguments."""

# Not objects yet: their keys are overrides of other sections, and are checked when they are in
# place.
_NOT_BUILT = ("variants", "sweep")

_SHOWN_KEYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Parameter filled by injection: its dotted path, the source, and the call it belongs to."""

    key: str
    by: str
    owner: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Result of the signature check.

    `typed` are the values of the command line whose reading changed once their type was known;
    `targets` the canonical name of each target. Both by path.
    """

    problems: tuple[Problem, ...] = ()
    defaults: tuple[Default, ...] = ()
    injected: tuple[Injected, ...] = ()
    typed: Mapping[KeyPath, tuple[Node, Node]] = field(default_factory=dict)
    targets: Mapping[KeyPath, str] = field(default_factory=dict)

    def settle(self, root: Table) -> Table:
        """Return `root` with each value as its type reads it: the tree to build and to keep."""
        for path, (before, after) in self.typed.items():
            if get_at(root, path) is before:
                root = set_at(root, path, after, key_origin_at(root, path))
        return root

    def canonical(self, root: Table) -> Table:
        """Return the settled tree with canonical targets: the tree to hash."""
        root = self.settle(root)
        for path, target in self.targets.items():
            node = get_at(root, (*path, "type"))
            if isinstance(node, Leaf) and node.value != target:
                here = (*path, "type")
                root = set_at(root, here, replace(node, value=target), key_origin_at(root, here))
        return root


def check_signatures(
    root: Table,
    *,
    user_dirs: Sequence[Path],
    roles: Collection[str] = ROLES,
    types: Collection[Any] = (),
    given: Mapping[str, Collection[str]] | None = None,
    trusted: Collection[str] = (),
    strict: bool = False,
) -> list[Problem]:
    """Return every mistake of the calls in a config; see `examine`."""
    how = {"roles": roles, "types": types, "given": given, "trusted": trusted, "strict": strict}
    return list(examine(root, user_dirs=user_dirs, **how).problems)  # type: ignore[arg-type]


def examine(
    root: Table,
    *,
    user_dirs: Sequence[Path],
    roles: Collection[str] = ROLES,
    types: Collection[Any] = (),
    given: Mapping[str, Collection[str]] | None = None,
    trusted: Collection[str] = (),
    strict: bool = False,
    is_whole: bool = True,
) -> Examined:
    """Check every call of a config: target, names, missing arguments, types of values.

    Injection will fill parameters by `roles` and `types` (Any among them: by an object of unknown
    type); the call at dotted path `p` gets `given[p]` by keyword when it is built. Unchecked
    arguments come back as notes of kind "unchecked"; `strict` turns unknown keys into errors and
    reports unchecked types too. Of an incomplete tree no argument is reported missing.
    """
    check = _Check(user_dirs, roles, types, given or {}, trusted, strict, is_whole)
    with user_code(user_dirs):
        problems = tuple(
            at_most(problem for path, table in calls(root) for problem in check.call(path, table))
        )
    return Examined(
        problems=problems,
        defaults=tuple(check.defaults),
        injected=tuple(check.injected),
        typed=check.typed,
        targets=check.targets,
    )


def calls(root: Table) -> Iterator[tuple[KeyPath, Table]]:
    """Yield every call of a config with its path, the outer before the inner."""
    for path, node in walk(root):
        if (
            isinstance(node, Table)
            and "type" in node.items
            and not schema.is_standard_table(path)
            and path[0] not in _NOT_BUILT
        ):
            yield path, node


def mapping_given(target: Any, table: Table) -> Table | None:
    """Return the mapping given in place of keyword arguments to a class under `configurable`.

    The mapping is the only positional argument, or the argument `cfg`.
    """
    if not is_configurable(target):
        return None
    given = table.args[0] if len(table.args) == 1 else table.items.get("cfg")
    return given if isinstance(given, Table) and given.target is None else None


def _spread_out(table: Table, mapping: Table) -> Table:
    """Return the call with the items of the mapping as its own arguments."""
    own = {
        key: node
        for key, node in table.items.items()
        if key != "args" and not (key == "cfg" and node is mapping)
    }
    origins = {**mapping.key_origins, **table.key_origins}
    return replace(table, items={**mapping.items, **own}, key_origins=origins)


_CALLED_LATER = ("collate", "worker_init", "criterion", "batch_hook", "transform")
"""Places, and arguments by their names, that call what they get."""
_BY_TYPE = {
    "backward": "assay.engine.OptimizerStep",
    "engine": "assay.engine.Engine",
    "schedule": "assay.engine.Schedule",
}
"""Arguments that are filled by their annotation alone, with the type that is meant."""


def is_factory(table: Table) -> bool:
    """Return True for a call that whoever gets the factory makes later."""
    leaf = table.items.get(FACTORY)
    return isinstance(leaf, Leaf) and leaf.value is True


@dataclass(slots=True)
class _Check:
    user_dirs: Sequence[Path]
    roles: Collection[str]
    types: Collection[Any]
    given: Mapping[str, Collection[str]]
    trusted: Collection[str]
    strict: bool
    is_whole: bool
    resolved: dict[str, Any] = field(default_factory=dict)
    failed_imports: set[str] = field(default_factory=set)
    """Errors told of modules that cannot be imported: each once, however many targets lie in it."""
    defaults: list[Default] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    typed: dict[KeyPath, tuple[Node, Node]] = field(default_factory=dict)
    targets: dict[KeyPath, str] = field(default_factory=dict)

    def call(self, path: KeyPath, table: Table) -> Iterator[Problem]:
        place = table.items["type"].origin
        if table.target is None:
            yield _problem(
                "wrong-type", "`type` must be a string that names a target", place, (*path, "type")
            )
            return
        if is_reference(table.items["type"]):
            return  # what is referred to cannot be known before it is built
        target = self.resolve(table.target)
        if isinstance(target, TargetError):
            if target.kind != "import-failed" or target.what not in self.failed_imports:
                yield target.problem(place, dotted((*path, "type")))
            self.failed_imports.add(target.what)
            return
        self.targets[path] = canonical_name(target, table.target, user_dirs=self.user_dirs)
        yield from self.check_call(path, table, target)

    def check_call(self, path: KeyPath, table: Table, target: Any) -> Iterator[Problem]:
        """Yield the problems of a call whose target is known."""
        place = table.items["type"].origin
        lacking = sorted(getattr(target, "__abstractmethods__", ()))
        if lacking and inspect.isabstract(target):
            message = (
                f"`{table.target}` is abstract and cannot be made: it lacks"
                f" {_and([f'`{name}`' for name in lacking])}"
            )
            yield _problem(
                "abstract-class", message, place, (*path, "type"), "name a class under it that can"
            )
            return
        positional = table.items.get("args")
        if positional is not None and not isinstance(positional, List):
            yield _problem(
                "wrong-type",
                "`args` must be a list: `args = [...]`",
                positional.origin,
                (*path, "args"),
            )
        signature = signature_of(target)
        if signature is None:
            message = f"Python cannot tell what `{table.target}` takes"
            yield self.tell_unchecked(message, place, (*path, "type"))
            return
        mapping = mapping_given(target, table)
        if mapping is not None and hasattr(target, "from_config"):
            yield self.tell_unchecked(
                f"`from_config` of `{table.target}` says what this means", mapping.origin, path
            )
            return
        if mapping is not None:
            table = _spread_out(table, mapping)
        yield from self.arguments(path, table, target, signature)

    def arguments(
        self, path: KeyPath, table: Table, target: Any, signature: Signature
    ) -> Iterator[Problem]:
        """Yield the problems of the arguments of a call, with those of a mapping spread."""
        positional = table.items.get("args")
        yield from self.positional(path, table, target, signature)
        meant: set[str] = set()
        for problem in self.check_named(path, table, target, signature):
            if problem.kind == "unknown-argument":
                meant.update(nearest(str(parse_dotted(problem.key)[-1]), signature.by_keyword()))
            yield problem
        factory = table.items.get(FACTORY)
        if factory is not None and not (
            isinstance(factory, Leaf) and isinstance(factory.value, bool)
        ):
            yield _problem(
                "wrong-type", f"`{FACTORY}` must be true or false", factory.origin, (*path, FACTORY)
            )
        # Whoever calls a factory gives the rest; and without knowing `args`, too much would seem to
        # be missing.
        if not is_factory(table) and (positional is None or isinstance(positional, List)):
            yield from self.check_unfilled(path, table, target, signature, meant)

    def resolve(self, target: str) -> Any:
        """Return the target, or why there is none."""
        if target not in self.resolved:
            try:
                self.resolved[target] = find_target(
                    target, user_dirs=self.user_dirs, trusted=self.trusted
                )
            except TargetError as error:
                self.resolved[target] = error
        return self.resolved[target]

    def tell_unchecked(self, message: str, origin: Origin, path: KeyPath, fix: str = "") -> Problem:
        severity: Severity = "error" if self.strict else "note"
        return _problem(
            "unchecked", f"{message}, so this is unchecked", origin, path, fix, severity
        )

    def positional(
        self, path: KeyPath, table: Table, target: Any, signature: Signature
    ) -> Iterator[Problem]:
        for i, node in enumerate(table.args):
            here = (*path, "args", i)
            parameter = signature.at(i)
            if parameter is None:
                count = sum(parameter.by_position for parameter in signature.named)
                takes = f"takes {count or 'no'} positional argument{'s' * (count != 1)}"
                yield _problem(
                    "unknown-argument", f"`{table.target}` {takes}, not {i + 1}", node.origin, here
                )
                return
            yield from self.value(here, node, target, parameter, table)

    def check_named(
        self, path: KeyPath, table: Table, target: Any, signature: Signature
    ) -> Iterator[Problem]:
        known = signature.by_keyword()
        by_position = _names_taken(table, signature)
        others: list[str] = []
        for key, node in table.items.items():
            here = (*path, key)
            where = table.key_origin(key)
            if key in RESERVED:
                continue
            if key in by_position:
                message = f"`{key}` of `{table.target}` is given twice: here and in `args`"
                yield _problem("duplicate-argument", message, where, here, "leave one of them out")
            elif key in known:
                yield from self.value(here, node, target, known[key], table)
            elif signature.var_kwargs is not None:
                others.append(key)
            else:
                takes = ", ".join(known) or "no arguments"
                fix = did_you_mean(key, known) or f"it takes: {takes}"
                yield _problem(
                    "unknown-argument",
                    f"`{table.target}` takes no argument `{key}`",
                    where,
                    here,
                    fix,
                )
        if signature.var_kwargs is not None:
            yield from self.check_passed_on(path, table, others, signature.var_kwargs.name, known)

    def check_passed_on(
        self, path: KeyPath, table: Table, keys: Sequence[str], name: str, known: Collection[str]
    ) -> Iterator[Problem]:
        """Report the keys that go into `**kwargs`: each likely misspelling, others together."""
        into = f"into `**{name}` of `{table.target}`"
        others = []
        for key in keys:
            if fix := did_you_mean(key, known):
                yield self.tell_unchecked(
                    f"`{key}` goes {into}", table.key_origin(key), (*path, key), fix
                )
            else:
                others.append(key)
        if others:
            shown = [f"`{key}`" for key in others[:_SHOWN_KEYS]]
            rest = [f"{len(others) - _SHOWN_KEYS} more"] if len(others) > _SHOWN_KEYS else []
            message = f"{_and([*shown, *rest])} {'go' if others[1:] else 'goes'} {into}"
            yield self.tell_unchecked(message, table.key_origin(others[0]), (*path, others[0]))

    def value(
        self, path: KeyPath, node: Node, target: Any, parameter: Parameter, table: Table
    ) -> Iterator[Problem]:
        if not is_data(node):
            return
        found = judge(target, parameter, node)
        for misfit in found.misfits:
            place = dotted((parameter.name, *misfit.inside))
            message = f"`{place}` of `{table.target}` {misfit.said}"
            yield _problem("wrong-type", message, misfit.origin, path, misfit.fix)
        if found.node is not node:
            self.typed[path] = node, found.node
        if found.why_not and self.strict:
            message = f"`{parameter.name}` of `{table.target}` is unchecked: {found.why_not}"
            yield _problem("unchecked", message, node.origin, path, severity="note")

    def check_unfilled(
        self, path: KeyPath, table: Table, target: Any, signature: Signature, meant: Collection[str]
    ) -> Iterator[Problem]:
        """Report missing, defaulted and injected arguments; `meant` were misspelt."""
        filled = {
            *table.items,
            *_names_taken(table, signature),
            *self.given.get(dotted(path), ()),
        }
        place = table.items["type"].origin
        owner = owner_of(target, user_dirs=self.user_dirs, trusted=self.trusted)
        with_defaults = is_injected(target)
        for parameter in signature.named:
            if parameter.name in filled:
                continue
            is_foreign_device = parameter.name in NOT_BY_NAME and owner not in ("user", "assay")
            may_inject = parameter.required or with_defaults or from_assay(parameter.hint)
            by = (
                self.filler(parameter, () if is_foreign_device else self.roles)
                if may_inject
                else ""
            )
            key = dotted((*path, parameter.name))
            if by:
                self.injected.append(
                    Injected(key=key, by=by, owner=str(table.target), origin=place)
                )
            elif not parameter.required:
                if parameter.default is not UNKNOWN:
                    value = _show(parameter.default)
                    self.defaults.append(
                        Default(key=key, value=value, owner=str(table.target), origin=place)
                    )
            elif self.is_whole and parameter.name not in meant and parameter.name != SOURCE:
                message = f"`{table.target}` needs `{parameter.name}`"
                fix = f"write `{parameter.name} = ...` in [{dotted(path)}]"
                if schema.section(parameter.name) is not None:
                    fix += f", or a section [{parameter.name}]"
                if not parameter.by_keyword:
                    section = dotted(path)
                    fix = f"write `args = [...]` in [{section}]: it is taken by position only"
                if _is_called_later(path, table, target):
                    fix = f"write `{FACTORY} = true` beside `type`: the function itself is meant"
                elif parameter.hint is UNKNOWN and parameter.name in _BY_TYPE:
                    kind = _BY_TYPE[parameter.name]
                    fix = f"annotate it, and it is filled: `{parameter.name}: {kind}`"
                yield _problem("missing-argument", message, place, path, fix)

    def filler(self, parameter: Parameter, roles: Collection[str]) -> str:
        """Return the entry that will fill a parameter, "" for none; see `Context.source`."""
        if parameter.name in roles:
            return f"the role `{parameter.name}`"
        kind = injectable(parameter.hint)
        by_type = f"the type `{getattr(kind, '__qualname__', kind)}`"
        if from_assay(parameter.hint):
            return by_type
        if kind is None or parameter.name in ROLES:
            return ""
        if isinstance(kind, type) and is_injected(kind):
            return by_type
        return (
            by_type
            if any(one in (kind, Any) or _is_subclass(one, kind) for one in self.types)
            else ""
        )


def _is_called_later(path: KeyPath, table: Table, target: Any) -> bool:
    """Return True for a function without arguments at a place that calls what it gets."""
    has_arguments = any(key not in RESERVED for key in table.items) or bool(table.args)
    return path[-1] in _CALLED_LATER and inspect.isfunction(target) and not has_arguments


def _names_taken(table: Table, signature: Signature) -> set[str]:
    """Return the names of the parameters that `args` fills."""
    filled = (signature.at(i) for i in range(len(table.args)))
    return {
        parameter.name for parameter in filled if parameter is not None and parameter.by_position
    }


def _is_subclass(one: Any, kind: Any) -> bool:
    try:
        return isinstance(one, type) and isinstance(kind, type) and issubclass(one, kind)
    except TypeError:  # a Protocol that cannot be asked
        return False


def _show(value: Any) -> str:
    """Return a default as a config would write it, on one short line; an object by its repr."""
    try:
        text = " ".join(_spell(value).split())
    except Exception as error:  # a repr is the user's code
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _spell(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str() if type(value) is str:
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple() if type(value) in (list, tuple):
            return f"[{', '.join(map(_spell, value))}]"
        case _:
            return repr(value)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _problem(
    kind: str,
    message: str,
    origin: Origin,
    path: KeyPath,
    fix: str = "",
    severity: Severity = "error",
) -> Problem:
    return Problem(
        kind=kind, message=message, origin=origin, key=dotted(path), fix=fix, severity=severity
    )
