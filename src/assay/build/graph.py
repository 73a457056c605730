"""Dependency graph of a config, checked before anything is built.

It holds the calls of the config, providers and promises. Targets are imported and signatures read;
nothing is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.build.context import NOT_BY_NAME, ROLES, Context
from assay.build.context_entries import Entry, Promise
from assay.build.context_errors import ContextError
from assay.build.marks import is_injected, provision_of
from assay.build.parameters import Parameter, Signature, from_assay, injectable, signature_of
from assay.build.target_owners import owner_of
from assay.build.targets import TargetError, find_target
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    fit_path,
    get_at,
    is_reference,
    parse_dotted,
    problem_at,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.ports import Recorder


class _NotLoaded:
    """Placeholder for a type of the engine's while the engine is not imported."""


_NOT_BUILT = ("plugins", "variants", "sweep")
"""Plugins come first and one by one; the others are no objects."""


def expected_type(
    root: Table, path: KeyPath, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> Any:
    """Return the type of the node at `path`, None if unknown: a class, or a return type."""
    _, node = _follow(root, path, get_at(root, path))
    if not isinstance(node, Table) or node.target is None:
        return None
    try:
        target = find_target(node.target, user_dirs=user_dirs, trusted=trusted)
    except TargetError:
        return None
    if isinstance(target, type):
        return target
    signature = signature_of(target)
    return injectable(signature.returns) if signature else None


def provided_by(target: Any) -> Iterator[Any]:
    """Yield the functions of a class marked with `provides`, unbound."""
    for name in dir(target) if isinstance(target, type) else ():
        function = vars(target).get(name) or getattr(target, name, None)
        function = getattr(function, "__func__", function)
        if not name.startswith("__") and callable(function) and provision_of(function):
            yield function


def promise_providers(context: Context, module: Any) -> None:
    """Promise the values of all providers of the class `module`, before an object of it exists."""
    for function in provided_by(module):
        mark = provision_of(function)
        signature = signature_of(function)
        assert mark is not None
        kind = mark.type or (injectable(signature.returns) if signature else None)
        context.promise(mark.name or function.__name__, Promise(type=kind, provider=function))


def promise_run(
    root: Table, context: Context, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> None:
    """Promise everything that a training run of this config will hold; inside `user_code`."""

    def kind(*path: str | int) -> Any:
        return expected_type(root, path, user_dirs=user_dirs, trusted=trusted)

    def engine(name: str) -> Any:
        return getattr(sys.modules.get("assay.engine"), name, _NotLoaded)

    def section(name: str) -> Promise:
        if name not in root.items:
            return Promise(never=f"this config has no [{name}]")
        return Promise(type=kind(name), paths=((name,),))

    for name in ("task", "model", "optimizer", "schedule", "criterion", "process"):
        context.promise(name, section(name))
    source: tuple[KeyPath, ...] = (("data", "train", "source"),)
    context.promise("params", Promise(type=list, names=("model",)))
    context.promise("backward", _backward(root, engine, kind("backward")))
    context.promise("engine", Promise(type=engine("Engine"), names=("process",), paths=source))
    context.promise("state", Promise(type=engine("State"), names=("process",), paths=source))
    data = root.items.get("data")
    loaders = getattr(sys.modules.get("assay.engine.loop.names"), "LOADERS", {})
    for split in data.items if isinstance(data, Table) else ():
        kind_of_loader = loaders.get(split, _NotLoaded)
        kept = Promise(type=kind_of_loader, paths=(("data", split, "source"),))
        context.promise(f"{split}_loader", kept)
    context.promise("recorder", Promise(type=Recorder, names=("engine",)))
    context.promise("record_dir", Promise(type=Path, names=("recorder",)))
    for path in plugin_paths(root):
        promise_providers(context, kind(*path))


def _backward(root: Table, engine: Callable[[str], Any], own: Any) -> Promise:
    """Promise the optimizer step: that of the config, or assay's for one or several optimizers."""
    if (get_at(root, ("backward", "type"))) is not None:
        return Promise(type=own, names=("optimizer", "schedule"), paths=(("backward",),))
    node = root.items.get("optimizer")
    is_one = not isinstance(node, Table) or "type" in node.items
    return Promise(
        type=engine("OptimizerStep" if is_one else "MultiOptimizerStep"),
        names=("optimizer", "schedule"),
    )


def plugin_paths(root: Table) -> list[KeyPath]:
    """Return the paths of the plugins in the config, in order."""
    plugins = root.items.get("plugins")
    return [("plugins", i) for i in range(len(plugins.items))] if isinstance(plugins, List) else []


def plan_context(
    root: Table, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> Context:
    """Return a context that holds the promises of a run only; inside `user_code(user_dirs)`."""
    context = Context()
    promise_run(root, context, user_dirs=user_dirs, trusted=trusted)
    return context


def promised_types(context: Context) -> list[Any]:
    """Return the types of all promises; Any stands for those that are unknown."""
    entries = [
        entry
        for entry in context.entries()
        if entry.promise is not None and not entry.promise.never
    ]
    return [Any if entry.expected is None else entry.expected for entry in entries]


def check_graph(
    root: Table,
    context: Context,
    *,
    user_dirs: Sequence[Path],
    trusted: Collection[str] = (),
    roles: Collection[str] = ROLES,
) -> list[Problem]:
    """Return every dependency that is missing, ambiguous or cyclic; build nothing.

    `context` holds objects and promises. Missing arguments of a call are found by
    `check_signatures`. Call it inside the `user_code` in which `context` was planned: a class that
    is imported anew is another class.
    """
    plugins = plugin_paths(root)
    graph = _Graph(root, context, user_dirs, trusted, roles, plugins)
    graph.note_provided(plugins)
    for path in (*plugins, *((name,) for name in root.items if name not in _NOT_BUILT)):
        node = get_at(root, path)
        if node is not None:
            graph.visit(path, node)
    return graph.problems


@dataclass(slots=True)
class _Graph:
    root: Table
    context: Context
    user_dirs: Sequence[Path]
    trusted: Collection[str]
    roles: Collection[str]
    first: Collection[KeyPath]
    problems: list[Problem] = field(default_factory=list)
    done: set[Any] = field(default_factory=set)
    open: dict[Any, str] = field(default_factory=dict)
    """What is being looked at, the outermost first, each with what it is called."""
    places: list[Origin] = field(default_factory=list)
    """Where the calls that are open are written."""

    def note_provided(self, plugins: Sequence[KeyPath]) -> None:
        """Report every name that two plugins provide."""
        owners: dict[str, KeyPath] = {}
        for path in plugins:
            for name in _names_of(
                expected_type(self.root, path, user_dirs=self.user_dirs, trusted=self.trusted)
            ):
                first = owners.setdefault(name, path)
                node = get_at(self.root, path)
                if first != path and node is not None:
                    both = f"by `{dotted(first)}` and by `{dotted(path)}`"
                    message = f"`{name}` is provided twice: {both}"
                    fix = "give one of them another name: @provides(name=...)"
                    problem = problem_at("provided-twice", message, node, path, fix)
                    self.problems.append(problem)

    def visit(self, path: KeyPath, node: Node) -> None:
        path, found = _follow(self.root, path, node)
        if found is None or isinstance(found, Leaf):
            return
        if not self.enter(path, dotted(path), found.origin):
            return
        match found:
            case List():
                for i, item in enumerate(found.items):
                    self.visit((*path, i), item)
            case Table():
                for key, item in found.items.items():
                    if key != "type" or found.target is None:
                        self.visit((*path, key), item)
                if found.target is not None:
                    self.call(path, found)
        self.leave(path)

    def call(self, path: KeyPath, node: Table) -> None:
        try:
            target = find_target(str(node.target), user_dirs=self.user_dirs, trusted=self.trusted)
        except TargetError:
            return  # told by the signature stage
        signature = signature_of(target) or Signature(named=())
        by_position = {
            parameter.name for i in range(len(node.args)) if (parameter := signature.at(i))
        }
        given = {*node.items, *by_position}
        is_foreign = owner_of(target, user_dirs=self.user_dirs, trusted=self.trusted) not in (
            "user",
            "assay",
        )
        roles = [role for role in self.roles if not (is_foreign and role in NOT_BY_NAME)]
        self.parameters(target, signature, given, roles, is_provider=False)

    def parameters(
        self,
        target: Any,
        signature: Signature,
        given: Collection[str],
        roles: Collection[str] | None,
        *,
        is_provider: bool,
    ) -> None:
        with_defaults = is_injected(target)
        for parameter in signature.named:
            if parameter.name in given or not (
                parameter.required or with_defaults or from_assay(parameter.hint)
            ):
                continue
            try:
                entry = self.context.source(parameter, roles=roles)
            except ContextError as error:
                self.tell("ambiguous", f"{error.what.rstrip('.')}", error.fix)
                continue
            if entry is not None:
                self.entry(entry)
            elif is_provider and parameter.required and not self.may_come(parameter):
                hint = (
                    ""
                    if injectable(parameter.hint) is None
                    else f" ({_name(injectable(parameter.hint))})"
                )
                self.tell("missing-provider", f"nothing provides `{parameter.name}`{hint}")

    def entry(self, entry: Entry) -> None:
        """Return the entry that fills a parameter, after checking what it is made from."""
        maker = entry.provider or (entry.promise.provider if entry.promise else None)
        if maker is None and entry.promise and next(iter(self.open)) in self.first:
            self.tell(
                "too-early", f"`{entry.name}` is made later than this", "ask for it in a handler"
            )
            return
        if entry.is_ready or not self.enter((entry.owner, entry.name), entry.name, None):
            return
        if maker is not None:
            signature = signature_of(maker) or Signature(named=())
            given = ("self",) if entry.provider is None else ()
            self.parameters(maker, signature, given, None, is_provider=True)
        elif entry.promise is not None:
            for name in entry.promise.names:
                entries = self.context.entries()
                self.entry(next(each for each in entries if each.name == name))
            for path in entry.promise.paths:
                node = get_at(self.root, path)
                if node is not None:
                    self.visit(path, node)
        self.leave((entry.owner, entry.name))

    def may_come(self, parameter: Parameter) -> bool:
        """Return True if a promise of unknown type may turn out to be the requested object."""
        kind = injectable(parameter.hint)
        return kind is not None and any(entry.may_be(kind) for entry in self.context.entries())

    def enter(self, key: Any, label: str, origin: Origin | None) -> bool:
        """Return True to visit a node; False if it was visited, or is in progress: a cycle."""
        if key in self.done:
            return False
        if key in self.open:
            labels = list(self.open.values())
            loop = [*labels[list(self.open).index(key) :], label]
            names = [name for i, name in enumerate(loop) if i == 0 or name != loop[i - 1]]
            chain = " -> ".join(f"`{name}`" for name in names)
            self.tell("reference-cycle", f"these need each other to be built: {chain}", path=False)
            return False
        self.open[key] = label
        if origin is not None:
            self.places.append(origin)
        return True

    def leave(self, key: Any) -> None:
        del self.open[key]
        self.done.add(key)
        if not isinstance(key[0] if key else "", Context):
            self.places.pop()

    def tell(self, kind: str, what: str, fix: str = "", *, path: bool = True) -> None:
        labels = list(dict.fromkeys(self.open.values()))
        message = (
            f"{what}, needed by {' -> '.join(f'`{label}`' for label in labels)}" if path else what
        )
        origin = self.places[-1]
        key = next(
            (
                label
                for key, label in reversed(self.open.items())
                if not isinstance(key[0], Context)
            ),
            "",
        )
        if not any((one.kind, one.message) == (kind, message) for one in self.problems):
            self.problems.append(problem_at(kind, message, origin, key, fix))


def _names_of(module: Any) -> list[str]:
    marked = [(function, provision_of(function)) for function in provided_by(module)]
    return [mark.name or function.__name__ for function, mark in marked if mark is not None]


def _follow(root: Table, path: KeyPath, node: Node | None) -> tuple[KeyPath, Node | None]:
    """Return where the references at `path` lead, and what is there; None for nothing or a circle.

    Both are told by the check of references.
    """
    seen: set[KeyPath] = set()
    while isinstance(node, Leaf) and is_reference(node):
        path = _target_at(root, node)
        node = get_at(root, path) if path and path not in seen else None
        seen.add(path)
    return path, node


def _target_at(root: Table, leaf: Leaf) -> KeyPath:
    """Return the path that "@a.b" refers to; () if there is none."""
    try:
        return fit_path(root, parse_dotted(str(leaf.value)[1:]))
    except ValueError:
        return ()


def _name(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind))
