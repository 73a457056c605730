"""Builder of objects from a tree: depth first, each path once, errors with their place."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from assay.build.adapters import judge, scalar
from assay.build.context import NOT_BY_NAME, ROLES, Context, context_here
from assay.build.marks import is_configurable
from assay.build.parameters import Parameter, Signature, signature_of
from assay.build.signatures import RESERVED, SOURCE, is_factory, mapping_given
from assay.build.target_owners import owner_of
from assay.build.targets import TargetError, find_target
from assay.config.resolver import Draws, draw_random, resolve_references, with_external_values
from assay.config.settings import Settings
from assay.config.sources.objects import read_object
from assay.config.translator import translator
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    fit_path,
    get_at,
    is_data,
    is_reference,
    is_unresolved,
    leaf_of,
    parse_dotted,
    walk,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ArgumentError, ConfigError, did_you_mean

_PYTHON = Origin(source="<python>")


def build(
    node: Node,
    context: Context,
    *,
    root: Table,
    path: KeyPath,
    user_dirs: Sequence[Path] = (),
    trusted: Collection[str] = (),
    roles: Collection[str] = ROLES,
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """Build the object that `node`, at `path` of `root`, describes; inside `user_code(user_dirs)`.

    Arguments are those of the config, then `extra` (by keyword, for this node only), then what
    `context` injects; earlier ones win. Each path is built once for a context. ConfigError if the
    tree is invalid; an exception of the called code passes through with a note.
    """
    builder = _Builder(root, context, tuple(user_dirs), tuple(trusted), roles, context.built, [])
    return builder.node(node, path, extra or {})


def instantiate(target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Build one object from Python: a target, a callable, or a tree with a `type`.

    >>> instantiate({"type": "torch.nn.Linear", "in_features": 2}, out_features=3).weight.shape
    torch.Size([3, 2])

    A list is built item by item. `"${width}"` and `"${.width}"` are values of this tree; variables
    of the environment and of the project are read now. Arguments given here win over those of the
    tree. Required parameters that are in neither come from the context in use, if there is one. An
    object that exists already is returned unchanged.
    """
    if isinstance(target, Sequence) and not isinstance(target, str):
        return instantiate({"items": target}, *args, **kwargs)["items"]
    here = (Path.cwd(), Path(sys.path[0] or "."))
    trusted = tuple(Settings(Path.cwd()).trusted)
    context = context_here() or Context()
    tree = _as_tree(target)
    if tree is None:
        builder = _Builder(Table({}, _PYTHON), context, here, trusted, ROLES, {}, [])
        if isinstance(target, str):
            found = find_target(target, user_dirs=here, trusted=trusted)
            return builder.make(found, list(args), kwargs, (), _PYTHON, target)
        if isinstance(target, type | functools.partial) or inspect.isroutine(target):
            return builder.make(target, list(args), kwargs, (), _PYTHON)
        if args or kwargs:
            raise TypeError(f"a {type(target).__name__} is made already, and takes no arguments")
        return target
    if args:
        raise TypeError("positional arguments of a tree are written in it: args = [...]")
    if kwargs and (not isinstance(tree, Table) or tree.target is None):
        raise TypeError("only a call takes arguments: there is no `type` in this tree")
    if not isinstance(target, Leaf | List | Table) and is_data(tree):
        return target
    if isinstance(tree, Table):
        tree = _without_references(tree, kwargs)
    return _Builder(tree, context, here, trusted, ROLES, {}, []).node(tree, (), kwargs)


def _without_references(tree: Table, late: Mapping[str, Any]) -> Table:
    """Return `tree` with references replaced by values, without the `late` arguments."""
    leaves = {
        key: leaf for key, value in late.items() if (leaf := leaf_of(value, _PYTHON)) is not None
    }
    given = replace(tree, items={**tree.items, **leaves})
    body, problems = draw_random(given, Draws())
    body, wrong = resolve_references(body)
    problems += [problem for problem in wrong if problem.key not in late]
    root, wrong = with_external_values(body, os.environ, Settings(Path.cwd()).variables)
    problems += wrong
    told = {problem.key for problem in problems}
    for path, node in walk(root):
        if isinstance(node, Leaf) and is_unresolved(node) and dotted(path) not in told:
            message = f"`{node.value}` is known when a run starts, and here is none"
            problems.append(
                Problem(
                    kind="unknown-reference",
                    message=message,
                    origin=node.origin,
                    key=dotted(path),
                )
            )
    if problems:
        raise ConfigError(problems)
    return replace(root, items={key: node for key, node in root.items.items() if key not in late})


def argument_problem(error: ArgumentError, root: Node, path: KeyPath, origin: Origin) -> Problem:
    """Return a mistake in an argument of the call at `path`, with its nearest place."""
    for depth in range(len(error.inside), 0, -1):
        node = get_at(root, (*path, *error.inside[:depth]))
        if node is not None:
            origin = node.origin
            break
    key = dotted((*path, *error.inside))
    return Problem(kind="wrong-argument", message=error.said, origin=origin, key=key, fix=error.fix)


def _as_tree(target: object) -> Node | None:
    """Return the given tree, in whatever form; None for a callable or its name."""
    match target:
        case Leaf() | List() | Table():
            return target
        case Mapping():
            root, problems = read_object(target, _PYTHON.source)
            if problems:
                raise ConfigError(problems)
            node, notes = translator().translate_forms(root)
            for note in notes:
                warnings.warn(note.message, stacklevel=3)
            return node
        case str() | type():
            return None
        case _:
            # Params have one, and so do calls that are not made yet.
            tree = getattr(target, "tree", None)
            made = tree() if callable(tree) else None
            return made if isinstance(made, Leaf | List | Table) else None


@dataclass(frozen=True, slots=True)
class _Builder:
    root: Node
    context: Context
    user_dirs: tuple[Path, ...]
    trusted: tuple[str, ...]
    roles: Collection[str]
    built: dict[Any, Any]
    """What is built already, by path, each with the node it was built from."""
    open: list[KeyPath]
    """What is being built now, the outermost first."""

    def node(self, node: Node, path: KeyPath, extra: Mapping[str, Any]) -> Any:
        if isinstance(node, Leaf):
            if is_unresolved(node):  # a secret that is not here must not become its own name
                message = f"`{node.value}` has no value here"
                self.fail("unknown-reference", message, node.origin, path, "")
            return self.refer(node, path) if is_reference(node) else scalar(node)
        known = self.built.get(path)
        if known is not None and known[0] is node:
            return known[1]
        if path in self.open:
            self.cycle(path, node.origin)
        self.open.append(path)
        try:
            thing = self.inside(node, path, extra)
        finally:
            self.open.pop()
        self.built[path] = (node, thing)
        return thing

    def inside(self, node: List | Table, path: KeyPath, extra: Mapping[str, Any]) -> Any:
        if isinstance(node, List):
            return [self.node(item, (*path, i), {}) for i, item in enumerate(node.items)]
        if node.target is None:
            return {key: self.node(item, (*path, key), {}) for key, item in node.items.items()}
        return self.call(node, path, extra)

    def refer(self, leaf: Leaf, path: KeyPath) -> Any:
        """Return the object of a reference such as "@a.b"."""
        name = str(leaf.value)[1:]
        try:
            to = fit_path(self.root, parse_dotted(name))
        except ValueError:
            to = ()
        found = get_at(self.root, to) if to else None
        if found is None:
            known = self.root.items if isinstance(self.root, Table) else ()
            message = f"`{leaf.value}` refers to nothing: there is no `{name}` in this config"
            self.fail("unknown-reference", message, leaf.origin, path, did_you_mean(name, known))
        if isinstance(found, Leaf):
            if to in self.open:
                self.cycle(to, leaf.origin)
            self.open.append(to)
            try:
                return self.node(found, to, {})
            finally:
                self.open.pop()
        return self.node(found, to, {})

    def call(self, node: Table, path: KeyPath, extra: Mapping[str, Any]) -> Any:
        name = str(node.target)
        try:
            target = find_target(name, user_dirs=self.user_dirs, trusted=self.trusted)
        except TargetError as error:
            origin = node.items["type"].origin
            problem = error.problem(origin, dotted((*path, "type")))
            raise ConfigError([problem]) from error.__cause__
        signature = signature_of(target) or Signature(named=())
        known = signature.by_keyword()
        at = signature.at if mapping_given(target, node) is None else lambda _: None
        args = [
            self.argument(item, (*path, "args", i), target, at(i))
            for i, item in enumerate(node.args)
        ]
        kwargs = {
            key: self.argument(item, (*path, key), target, known.get(key))
            for key, item in node.items.items()
            if key not in RESERVED
        }
        source = known.get(SOURCE)
        is_stage = source is not None and source.required and SOURCE not in kwargs and not args
        if is_factory(node) or is_stage:
            return functools.partial(target, *args, **{**extra, **kwargs})
        return self.make(target, args, {**extra, **kwargs}, path, node.origin, name)

    def argument(self, node: Node, path: KeyPath, target: Any, parameter: Parameter | None) -> Any:
        """Return one argument: data converted to the parameter's type, anything else built."""
        if parameter is None or not is_data(node):
            return self.node(node, path, {})
        found = judge(target, parameter, node)
        if found.misfits:
            raise ConfigError(
                [
                    Problem(
                        kind="wrong-type",
                        message=f"`{dotted((parameter.name, *misfit.inside))}` {misfit.said}",
                        origin=misfit.origin,
                        key=dotted(path),
                    )
                    for misfit in found.misfits
                ]
            )
        return found.value

    def make(
        self,
        target: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        path: KeyPath,
        origin: Origin,
        name: str = "",
    ) -> Any:
        """Make the call, with missing arguments from the context."""
        label = name or getattr(target, "__qualname__", repr(target))
        signature = signature_of(target) or Signature(named=())
        config = args[0] if len(args) == 1 else kwargs.get("cfg")
        if is_configurable(target) and isinstance(config, Mapping):
            signature = Signature(named=())  # the mapping says the rest
        taken = [signature.at(i) for i in range(len(args))]
        given = {*kwargs, *(parameter.name for parameter in taken if parameter is not None)}
        is_foreign = owner_of(target, user_dirs=self.user_dirs) not in ("user", "assay")
        roles = [role for role in self.roles if not (is_foreign and role in NOT_BY_NAME)]
        where = f" {dotted(path)} =" if path else ""
        note = f"while building{where} {label} ({origin})"
        try:
            sources = self.context.arguments(target, given=given, roles=roles)
            injected = {key: self.context.value(entry) for key, entry in sources.items()}
        except Exception as error:
            error.add_note(note)
            raise
        missing = self._missing(signature, given | injected.keys(), label, path, origin)
        if missing:
            raise ConfigError(missing)
        try:
            return target(*args, **kwargs, **injected)
        except ArgumentError as error:
            raise ConfigError([argument_problem(error, self.root, path, origin)]) from error
        except Exception as error:
            refusal = self.refusal(error, signature, path, label) if is_foreign else None
            if refusal is not None:
                raise ConfigError([refusal]) from error
            error.add_note(note)
            raise

    def refusal(
        self, error: Exception, signature: Signature, path: KeyPath, label: str
    ) -> Problem | None:
        """Return a library's error about one number of its arguments, at the place of that number.

        None where the error names none of them, or one that stands there twice.
        """
        node = get_at(self.root, path)
        if not isinstance(error, ValueError) or not isinstance(node, Table):
            return None
        words = set(re.findall(r"[-+]?[\w.]*\w", str(error)))
        named = [
            (inside, leaf.value, leaf.origin)
            for inside, leaf in walk(node)
            if isinstance(leaf, Leaf) and isinstance(leaf.value, int | float) and inside
            # The argument of a float may be written as an int.
            if str(leaf.value) in words or f"{leaf.value}.0" in words
        ]
        if len(named) != 1:
            return None
        ((inside, number, origin),) = named
        parameter = signature.by_keyword().get(str(inside[0]))
        fix = ""
        if parameter is not None and not parameter.required:
            fix = f"leave `{parameter.name}` out: its default is {parameter.default}"
        if number < 0:
            fix = f"write {-number}"
        return Problem(
            kind="wrong-value",
            message=f"`{label}` refuses it: {error}",
            origin=origin,
            key=dotted((*path, *inside)),
            fix=fix,
        )

    def _missing(
        self,
        signature: Signature,
        given: Collection[str],
        label: str,
        path: KeyPath,
        origin: Origin,
    ) -> list[Problem]:
        """Return a problem for each required parameter that is not `given`."""
        return [
            Problem(
                kind="missing-argument",
                message=(
                    f"`{label}` needs `{parameter.name}`, which is not given and"
                    " which nothing provides"
                ),
                origin=origin,
                key=dotted((*path, parameter.name)),
                fix=did_you_mean(parameter.name, self.context.names()),
            )
            for parameter in signature.named
            if parameter.required and parameter.name not in given
        ]

    def cycle(self, path: KeyPath, origin: Origin) -> NoReturn:
        loop = [*self.open[self.open.index(path) :], path]
        chain = " -> ".join(f"`{dotted(link)}`" for link in loop)
        self.fail("reference-cycle", f"These need each other to be built: {chain}", origin, path)

    def fail(
        self, kind: str, message: str, origin: Origin, path: KeyPath, fix: str = ""
    ) -> NoReturn:
        raise ConfigError(
            [Problem(kind=kind, message=message, origin=origin, key=dotted(path), fix=fix)]
        )
