"""Strings with a meaning. Never code.

`"@model"` is an object, `"${a.b}"` a value, `"${.b}"` and `"${..b}"` values beside and above.
`"${env:X}"` and `"${global:X}"` come from outside, `"${random:int:0:9}"` is drawn,
`"${device:count}"` and `"${length:data.train}"` are known when a run starts, `"run:last@best"` is a
run. A tree keeps the written form of what is decided later: object references, references to the
outside and to the machine, runs and the escapes `"@@text"` and `"$${"`. So resolving twice is
resolving once, and a saved tree reads back as it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time

from assay.config.tree import (
    NONE,
    KeyPath,
    Leaf,
    List,
    Node,
    Scalar,
    Table,
    dotted,
    fitted,
    get_at,
    parse_dotted,
    walk,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, nearest

# Values that references may add to a tree: ten lines could ask for a billion.
_MAX_NODES = 100_000
MAX_TEXT = 1_000_000  # characters of one string put together from others
_MAX_CHAIN = 100  # references to references

IN_TEXT = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|\$\{")
OUTSIDE = re.compile(r"(?P<kind>env|global):(?P<name>[A-Za-z_][\w-]*)", re.ASCII)
_RANDOM = re.compile(r"random:(?P<kind>int|float):(?P<low>[^:]+):(?P<high>[^:]+)")
_LENGTH = re.compile(r"length:data\.(?P<split>[A-Za-z_][\w-]*)", re.ASCII)
_FORMS = (
    "write ${path.to.a.key}, ${.beside}, ${env:NAME}, ${global:NAME}, ${random:int:0:9},"
    " ${device:count} or"
    " ${length:data.train}, or $${ for the two characters"
)

_MACHINE = ("device:count",)
"""References that the machine of the run resolves: the devices. Recorded when a run starts."""

RUN = "run:"
"""What an address of a run starts with in a config."""


def reference_of(node: Node) -> KeyPath | None:
    """Return the path that `"@path"` names; None for other nodes.

    ValueError for a malformed path.
    """
    if (
        not isinstance(node, Leaf)
        or not isinstance(node.value, str)
        or node.value[:1] != "@"
        or node.value[1:2] == "@"
    ):
        return None
    return parse_dotted(node.value[1:])


def literal(value: Scalar) -> Scalar:
    """Return a scalar with the escapes `@@` and `$${` replaced by `@` and `${`.

    >>> literal("@@home"), literal("$${HOME}")
    ('@home', '${HOME}')
    """
    if not isinstance(value, str):
        return value
    return value.removeprefix("@" if value.startswith("@@") else "").replace("$${", "${")


def run_of(value: object) -> str | None:
    """Return the address in `"run:last@best"`; None for everything else.

    >>> run_of("run:last@best"), run_of("last")
    ('last@best', None)
    """
    return (
        value.removeprefix(RUN).strip()
        if isinstance(value, str) and value.startswith(RUN)
        else None
    )


def is_unresolved(leaf: Leaf) -> bool:
    """Return whether a value holds a reference that is broken or comes from outside."""
    value = leaf.value
    return isinstance(value, str) and any(found[0] != "$${" for found in IN_TEXT.finditer(value))


def escaped(text: str) -> str:
    """Return `text` with its references escaped: the inverse of `literal`."""
    return ("@" if text.startswith("@") else "") + text.replace("${", "$${")


class Draws:
    """Values of `${random:...}`. Each place is drawn once, however often the tree is made."""

    def __init__(self) -> None:
        self._values: dict[tuple[object, ...], int | float] = {}

    def value(self, path: KeyPath, origin: Origin, at: int, spec: re.Match[str]) -> int | float:
        """Return the number at character `at` of the string at `path`.

        ValueError for a bad `spec`.
        """
        place = (path, origin.source, origin.line, origin.column, origin.text, at)
        if place not in self._values:
            self._values[place] = _draw(spec)
        return self._values[place]


def drawn(root: Table, draws: Draws) -> tuple[Table, list[Problem]]:
    """Return `root` with numbers for `${random:int:LOW:HIGH}` and `${random:float:LOW:HIGH}`.

    Both ends are included. The numbers come from the operating system: no generator of the program
    is touched.
    """
    problems: list[Problem] = []

    def number_at(leaf: Leaf, path: KeyPath, found: re.Match[str]) -> int | float | None:
        inside = (found["inside"] or "").strip()
        if not inside.startswith("random:"):
            return None
        try:
            spec = _RANDOM.fullmatch(inside)
            if spec is None:
                raise ValueError(f"`${{{inside}}}` asks for no random number")
            return draws.value(path, leaf.origin, found.start(), spec)
        except ValueError as error:
            fix = "write ${random:int:0:9} or ${random:float:0.1:0.5}: the least and the greatest"
            problems.append(
                Problem(
                    kind="unknown-reference",
                    message=str(error),
                    origin=leaf.origin,
                    key=dotted(path),
                    fix=fix,
                )
            )
            return None

    return _with_numbers(root, "random:", "drawn by", number_at), problems


def asks_machine(root: Table) -> bool:
    """Return whether a value of `root` depends on the machine."""
    return any(
        inside.strip() in _MACHINE
        for _, node in walk(root)
        if isinstance(node, Leaf) and isinstance(node.value, str)
        for inside in _insides(node.value)
    )


def with_machine(root: Table, values: Mapping[str, int]) -> Table:
    """Return `root` with this machine's values in place of `${device:count}`."""

    def number_at(leaf: Leaf, path: KeyPath, found: re.Match[str]) -> int | None:
        return values.get((found["inside"] or "").strip())

    return _with_numbers(root, "device:", "known by", number_at)


def asks_lengths(root: Table) -> list[str]:
    """Return the splits whose length in optimizer steps, `${length:data.SPLIT}`, `root` uses."""
    found = {
        asked["split"]: None
        for _, node in walk(root)
        if isinstance(node, Leaf) and isinstance(node.value, str)
        for inside in _insides(node.value)
        if (asked := _LENGTH.fullmatch(inside.strip())) is not None
    }
    return list(found)


def with_lengths(root: Table, lengths: Mapping[str, int]) -> Table:
    """Return `root` with the length of its loader in place of every `${length:data.SPLIT}`."""

    def number_at(leaf: Leaf, path: KeyPath, found: re.Match[str]) -> int | None:
        asked = _LENGTH.fullmatch((found["inside"] or "").strip())
        return None if asked is None else lengths.get(asked["split"])

    return _with_numbers(root, "length:", "known by", number_at)


def _with_numbers(
    root: Table,
    kind: str,
    how: str,
    number_at: Callable[[Leaf, KeyPath, re.Match[str]], int | float | None],
) -> Table:
    """Replace every reference that `number_at` knows; the origin notes `how` it was written."""

    def leaf_of(leaf: Leaf, text: str, path: KeyPath) -> Leaf:
        if kind not in text:
            return leaf
        origin = replace(
            leaf.origin, note=", ".join(filter(None, [leaf.origin.note, f"{how} {text}"]))
        )
        whole = IN_TEXT.fullmatch(text)
        if whole is not None:
            number = number_at(leaf, path, whole)
            return leaf if number is None else Leaf(number, origin, typed=str(number))

        def put_in(found: re.Match[str]) -> str:
            number = number_at(leaf, path, found)
            return found[0] if number is None else str(number)

        filled = IN_TEXT.sub(put_in, text)
        return leaf if filled == text else Leaf(filled, origin)

    return each_text(root, leaf_of)


def resolved(root: Table) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${a.b}` replaced by its value, and the problems of all references.

    A string that is one reference and nothing else takes the value with its type, be it a table;
    inside a longer string the value becomes text. `${env:X}`, `${global:X}` and `@path` stay: see
    `external_values` and the builder.
    """
    work = _Resolver(root)
    changed = work.node(root, ())
    assert isinstance(changed, Table)
    problems = [*work.problems, *_object_problems(changed)]
    return changed, problems


def outside_used(root: Table) -> list[str]:
    """Every `env:X` and `global:X` that `root` mentions, each once, in order."""
    texts = (
        node.value
        for _, node in walk(root)
        if isinstance(node, Leaf) and isinstance(node.value, str)
    )
    return list(
        dict.fromkeys(f"{kind}:{name}" for text in texts for kind, name in external_names(text))
    )


def external_names(text: str) -> list[tuple[str, str]]:
    """Return the kind and name of each variable that a string takes from outside.

    >>> external_names("${env:HOME}/${global:sets}")
    [('env', 'HOME'), ('global', 'sets')]
    """
    found = (OUTSIDE.fullmatch(inside.strip()) for inside in _insides(text))
    return [(each["kind"], each["name"]) for each in found if each is not None]


def value_named(text: str, path: KeyPath) -> list[KeyPath]:
    """Return the path of each value that the string at `path` copies.

    >>> value_named("${model.width} of ${env:HOME} by ${..rate}", ("data", "train", "size"))
    [('model', 'width'), ('data', 'rate')]
    """
    return [target for inside in _insides(text) if (target := _target(inside, path))]


def _insides(text: str) -> list[str]:
    return [found["inside"] for found in IN_TEXT.finditer(text) if found["inside"] is not None]


class Uses:
    """References between the sections of a tree. Trees that share a section share its reading."""

    def __init__(self) -> None:
        # By identity: trees that differ in one key share all other nodes, which are kept here so
        # that none is reused.
        self._by_section: dict[
            tuple[str, int], tuple[Node, frozenset[KeyPath], frozenset[KeyPath]]
        ] = {}

    def values(self, root: Table) -> set[KeyPath]:
        """Return the paths that some `${path}` of `root` mentions from another section."""
        return {path for name, node in root.items.items() for path in self._of(name, node)[1]}

    def names(self, root: Table) -> set[str]:
        """Return the top-level names that a `${name...}` in another section of `root` mentions."""
        return {str(path[0]) for path in self.values(root)}

    def objects(self, root: Table) -> set[KeyPath]:
        """Return the paths that some `"@path"` of `root` names."""
        return {path for name, node in root.items.items() for path in self._of(name, node)[2]}

    def _of(self, name: str, node: Node) -> tuple[Node, frozenset[KeyPath], frozenset[KeyPath]]:
        known = self._by_section.get((name, id(node)))
        if known is None:
            values: set[KeyPath] = set()
            for path, inner in walk(node, (name,)):
                if isinstance(inner, Leaf) and isinstance(inner.value, str) and "${" in inner.value:
                    values.update(
                        target
                        for target in value_named(inner.value, path)
                        if target[:1] != path[:1]
                    )
            objects = frozenset(
                target for _, target, _ in objects_used(node, path=(name,)) if target
            )
            known = self._by_section[name, id(node)] = node, frozenset(values), objects
        return known


def is_plain(node: Node) -> bool:
    """Return whether a value holds no call and no reference of any kind."""
    return all(
        not (isinstance(part, Table) and "type" in part.items)
        and not (
            isinstance(part, Leaf)
            and isinstance(part.value, str)
            and (part.value[:1] == "@" or is_unresolved(part))
        )
        for _, part in walk(node)
    )


def objects_used(root: Node, *, path: KeyPath = ()) -> Iterator[tuple[KeyPath, KeyPath, Origin]]:
    """Yield place, target and origin of each well-formed object reference below `root`."""
    for here, node in walk(root, path):
        try:
            target = reference_of(node)
        except ValueError:
            continue
        if target is not None:
            yield here, target, node.origin


def each_text(root: Table, change: Callable[[Leaf, str, KeyPath], Node]) -> Table:
    """Return `root` with every string that holds `${` changed; unchanged parts stay shared."""

    def node_of(node: Node, path: KeyPath) -> Node:
        match node:
            case Leaf(str() as text) if "${" in text:
                return change(node, text, path)
            case Table():
                items = {key: node_of(item, (*path, key)) for key, item in node.items.items()}
                return (
                    replace(node, items=items)
                    if _differ(items.values(), node.items.values())
                    else node
                )
            case List():
                row = tuple(node_of(item, (*path, i)) for i, item in enumerate(node.items))
                return replace(node, items=row) if _differ(row, node.items) else node
            case _:
                return node

    changed = node_of(root, ())
    assert isinstance(changed, Table)
    return changed


def _draw(spec: re.Match[str]) -> int | float:
    convert = int if spec["kind"] == "int" else float
    try:
        low, high = convert(spec["low"].strip()), convert(spec["high"].strip())
    except ValueError:
        what = "whole numbers" if convert is int else "numbers"
        raise ValueError(f"`${{{spec[0]}}}` does not stand between two {what}") from None
    if not (low <= high and math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"`${{{spec[0]}}}` has its least above its greatest")
    import secrets  # few configs draw

    source = secrets.SystemRandom()
    return source.randint(int(low), int(high)) if convert is int else source.uniform(low, high)


def _differ(a: Iterable[object], b: Iterable[object]) -> bool:
    return any(x is not y for x, y in zip(a, b, strict=True))


def _target(inside: str | None, path: KeyPath) -> KeyPath | None:
    """Return the path of a value reference at `path`; None if malformed or from outside.

    Leading dots count from the table or list that the reference stands in: one is beside, each
    further one above.
    """
    if inside is None or ":" in inside:
        return None
    name = inside.strip()
    dots = len(name) - len(name.lstrip("."))
    if dots > len(path):
        return None
    try:
        target = parse_dotted(name[dots:])
    except ValueError:
        return None
    return (*path[: len(path) - dots], *target) if dots else target


def text_of(value: Scalar) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


class _UnresolvedError(Exception):
    """Reference that cannot be followed; its problem has been noted."""


@dataclass
class _Resolver:
    root: Table
    problems: list[Problem] = field(default_factory=list)
    # Resolved targets, and how many nodes each has.
    done: dict[KeyPath, tuple[Node, int]] = field(default_factory=dict)
    # Targets that are being resolved, outermost first.
    following: list[tuple[KeyPath, Origin]] = field(default_factory=list)
    added: int = 0
    told: set[KeyPath] = field(default_factory=set)

    def node(self, node: Node, path: KeyPath) -> Node:
        match node:
            case Leaf(str() as text) if "${" in text:
                return self.leaf(node, text, path)
            case Table():
                items = {key: self.node(item, (*path, key)) for key, item in node.items.items()}
                return (
                    replace(node, items=items)
                    if _differ(items.values(), node.items.values())
                    else node
                )
            case List():
                row = tuple(self.node(item, (*path, i)) for i, item in enumerate(node.items))
                return replace(node, items=row) if _differ(row, node.items) else node
            case _:
                return node

    def leaf(self, leaf: Leaf, text: str, path: KeyPath) -> Node:
        try:
            whole = IN_TEXT.fullmatch(text)
            if whole is not None and whole["inside"] is not None and not _is_kept(whole["inside"]):
                target = self.checked(whole["inside"], leaf, path)
                found = self.follow(target, leaf, path)
                return replace(found, origin=replace(leaf.origin, note=f"from {dotted(target)}"))
            whole_text = self.joined(leaf, text, path)
            return replace(leaf, value=None if whole_text == NONE else whole_text)
        except _UnresolvedError:
            return leaf

    def joined(self, leaf: Leaf, text: str, path: KeyPath) -> str:
        """Return `text` with each reference in it replaced by the text of its value."""
        parts: list[str] = []
        at = length = 0

        def add(part: str) -> None:
            # A `$` and a `{` from different sides must not become a reference nobody wrote.
            if parts and parts[-1].endswith("$") and part.startswith("{"):
                parts.append("$")
            if part:
                parts.append(part)

        for found in IN_TEXT.finditer(text):
            add(text[at : found.start()])
            at = found.end()
            inside = found["inside"]
            if found[0] == "$${" or (inside is not None and _is_kept(inside)):
                parts.append(found[0])
                continue
            value = self.inserted(inside, leaf, path)
            length += len(value)
            if length > MAX_TEXT:
                message = f"the text grows beyond {MAX_TEXT:,} characters"
                raise self.stop(leaf, path, "too-large", message)
            # `@@x` means `@x`; only at the very start of a string does `@` have to be doubled.
            add(value.removeprefix("@") if value.startswith("@@") and parts else value)
        add(text[at:])
        return "".join(parts)

    def inserted(self, inside: str | None, leaf: Leaf, path: KeyPath) -> str:
        """Return the text of the value that `${inside}` names within a longer string."""
        target = self.checked(inside, leaf, path)
        node = self.follow(target, leaf, path)
        if isinstance(node, Leaf):
            return text_of(node.value)
        kind = "table" if isinstance(node, Table) else "list"
        message = f"`{dotted(target)}` is a {kind} and cannot stand inside text"
        raise self.stop(leaf, path, "wrong-type", message)

    def checked(self, inside: str | None, leaf: Leaf, path: KeyPath) -> KeyPath:
        """Return the path inside `${...}`, fitted to the tree.

        Raises _UnresolvedError when nothing is there.
        """
        if inside is None:
            raise self.stop(
                leaf,
                path,
                "unknown-reference",
                "`${` is not closed",
                "write $${ for the two characters",
            )
        target = _target(inside, path)
        if inside.strip().startswith("." * (len(path) + 1)):
            raise self.stop(
                leaf, path, "unknown-reference", f"`${{{inside}}}` leads out of the config"
            )
        if target is None:
            kind, colon, rest = inside.strip().partition(":")
            near = nearest(kind, ("env", "global", "random", "length")) if colon else []
            whole = [f"{near[0]}:{rest}"] if near else nearest(inside.strip(), _MACHINE)
            fix = f"did you mean `${{{whole[0]}}}`?" if whole else _FORMS
            raise self.stop(
                leaf, path, "unknown-reference", f"`${{{inside}}}` is no reference", fix
            )
        target = fitted(self.root, target)
        if get_at(self.root, target) is None:
            problem = _unknown(self.root, target, f"${{{inside}}}", leaf.origin, path)
            self.problems.append(problem)
            raise _UnresolvedError
        return target

    def follow(self, target: KeyPath, leaf: Leaf, path: KeyPath) -> Node:
        places = [*(place for place, _ in self.following), path]
        for i, place in enumerate(places):
            if place[: len(target)] == target:
                circle = [dotted(step) for step in places[i:]]
                if not self.told.intersection(places[i:]):
                    self.told.update(places[i:])
                    chain = " -> ".join([*circle, circle[0] if place == target else dotted(target)])
                    self.stop(leaf, path, "reference-cycle", f"a value needs itself: {chain}")
                raise _UnresolvedError
        if len(self.following) >= _MAX_CHAIN:
            raise self.stop(
                leaf,
                path,
                "reference-cycle",
                f"more than {_MAX_CHAIN} references lead to each other",
            )
        if target not in self.done:
            node = get_at(self.root, target)
            assert node is not None
            before = len(self.problems)
            self.following.append((path, leaf.origin))
            try:
                made = self.node(node, target)
            finally:
                self.following.pop()
            self.done[target] = made, _size(made)
            if len(self.problems) > before and isinstance(made, Leaf):
                raise _UnresolvedError  # what it leads to is wrong, and has been told
        found, size = self.done[target]
        self.added += size
        if self.added > _MAX_NODES:
            raise self.stop(
                leaf,
                path,
                "too-large",
                f"references make the config larger than {_MAX_NODES:,} values",
            )
        return found

    def stop(
        self, leaf: Leaf, path: KeyPath, kind: str, message: str, fix: str = ""
    ) -> _UnresolvedError:
        self.problems.append(
            Problem(kind=kind, message=message, origin=leaf.origin, key=dotted(path), fix=fix)
        )
        return _UnresolvedError()


def _size(node: Node) -> int:
    """Count the nodes of a tree, no further than matters."""
    count = 0
    for _ in walk(node):
        count += 1
        if count > _MAX_NODES:
            break
    return count


def _unknown(root: Table, target: KeyPath, shown: str, origin: Origin, path: KeyPath) -> Problem:
    """Return the problem of `@optimiser`, with the nearest name beside its first missing part."""
    for length in range(len(target)):
        parent = get_at(root, target[:length])
        if get_at(root, target[: length + 1]) is None:
            break
    missing = target[length]
    choices = (
        [key for key in parent.items if (*target[:length], key) != path[: length + 1]]
        if isinstance(parent, Table)
        else []
    )
    fix = did_you_mean(str(missing), [str(choice) for choice in choices])
    where = f" in `{dotted(target[:length])}`" if length else ""
    return Problem(
        kind="unknown-reference",
        message=f"`{shown}` refers to nothing: there is no `{missing}`{where}",
        origin=origin,
        key=dotted(path),
        fix=fix,
    )


def _object_problems(root: Table) -> list[Problem]:
    problems: list[Problem] = []
    edges: dict[KeyPath, KeyPath] = {}
    for path, node in walk(root):
        try:
            target = reference_of(node)
        except ValueError:
            assert isinstance(node, Leaf)
            message = f"`{node.value}` is no reference to an object"
            fix = "write @path.of.a.section, or @@ for text that starts with @"
            problems.append(
                Problem(
                    kind="unknown-reference",
                    message=message,
                    origin=node.origin,
                    key=dotted(path),
                    fix=fix,
                )
            )
            continue
        if target is None:
            continue
        target = fitted(root, target)
        if get_at(root, target) is None:
            problems.append(_unknown(root, target, f"@{dotted(target)}", node.origin, path))
        else:
            edges[path] = target
    return [*problems, *_circles(root, edges)]


def _circles(root: Table, edges: Mapping[KeyPath, KeyPath]) -> list[Problem]:
    """Return a problem for each circle: building a path builds every reference below it."""
    below: dict[KeyPath, list[KeyPath]] = {}
    for path in edges:
        for length in range(len(path) + 1):
            below.setdefault(path[:length], []).append(path)
    problems: list[Problem] = []
    finished: set[KeyPath] = set()
    for start in edges:
        trail: list[KeyPath] = []  # references being followed
        todo: list[tuple[KeyPath, bool]] = [(start, False)]
        while todo:
            path, is_left = todo.pop()
            if is_left:
                finished.add(trail.pop())
                continue
            if path in finished:
                continue
            if path in trail:
                circle = trail[trail.index(path) :]
                problems.append(_circle(root, circle, edges))
                finished.update(circle)
                continue
            trail.append(path)
            todo.append((path, True))
            todo.extend((inner, False) for inner in reversed(below.get(edges[path], [])))
    return problems


def _circle(root: Table, circle: list[KeyPath], edges: Mapping[KeyPath, KeyPath]) -> Problem:
    steps = [f"{dotted(path)} = @{dotted(edges[path])}" for path in circle]
    first = get_at(root, circle[0])
    assert first is not None
    return Problem(
        kind="reference-cycle",
        message=f"an object needs itself: {' -> '.join([*steps, dotted(circle[0])])}",
        origin=first.origin,
        key=dotted(circle[0]),
    )


def _is_kept(inside: str) -> bool:
    """Return whether `${inside}` is resolved elsewhere: from outside, by the machine, or bad."""
    inside = inside.strip()
    is_length = bool(_LENGTH.fullmatch(inside))
    return (
        bool(OUTSIDE.fullmatch(inside))
        or is_length
        or inside in _MACHINE
        or inside.startswith("random:")
    )
