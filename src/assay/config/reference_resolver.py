"""Resolution of references between the values of a tree, and the problems of all references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from assay.config.references import (
    IN_TEXT,
    MACHINE,
    each_text,
    each_text_below,
    is_kept,
    is_well_formed,
    reference_of,
    target_of,
    text_of,
)
from assay.config.tree import (
    NONE,
    KeyPath,
    Leaf,
    Node,
    Table,
    dotted,
    fitted,
    get_at,
    walk,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, nearest

# Values that references may add to a tree: ten lines could ask for a billion.
_MAX_NODES = 100_000


MAX_TEXT = 1_000_000  # characters of one string put together from others


_MAX_CHAIN = 100  # references to references

_NESTED = re.compile(r"\$\{[^{}]*\$\{")


_FORMS = (
    "write ${path.to.a.key}, ${.beside}, ${env:NAME}, ${env:NAME,default}, ${global:NAME},"
    " ${random:int:0:9}, ${device:count} or"
    " ${length:data.train}, or $${ for the two characters"
)


def resolved(root: Table) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${a.b}` replaced by its value, and the problems of all references.

    A string that is one reference and nothing else takes the value with its type, be it a table;
    inside a longer string the value becomes text. `${env:X}`, `${global:X}` and `@path` stay: see
    `external_values` and the builder.
    """
    work = _Resolver(root)
    changed = each_text(root, work.leaf)
    problems = [*work.problems, *_object_problems(changed)]
    return changed, problems


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

    def leaf(self, leaf: Leaf, text: str, path: KeyPath) -> Node:
        try:
            whole = IN_TEXT.fullmatch(text)
            inside = whole["inside"] if whole is not None else None
            if inside is not None and not is_kept(inside):
                target = self.checked(inside, leaf, path)
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
            if found[0] == "$${" or (inside is not None and is_kept(inside)):
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
        if inside is None and _NESTED.search(str(leaf.value)):
            raise self.stop(
                leaf,
                path,
                "unknown-reference",
                "a reference cannot stand inside another",
                "write the value in its place",
            )
        if inside is None:
            raise self.stop(
                leaf,
                path,
                "unknown-reference",
                "`${` is not closed",
                "write $${ for the two characters",
            )
        target = target_of(inside, path)
        if inside.strip().startswith("." * (len(path) + 1)):
            raise self.stop(
                leaf, path, "unknown-reference", f"`${{{inside}}}` leads out of the config"
            )
        if target is None:
            raise self.stop(
                leaf, path, "unknown-reference", f"`${{{inside}}}` is no reference", _meant(inside)
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
                    circle.append(circle[0] if place == target else dotted(target))
                    message = f"a value needs itself: {' -> '.join(circle)}"
                    self.stop(leaf, path, "reference-cycle", message)
                raise _UnresolvedError
        if len(self.following) >= _MAX_CHAIN:
            message = f"more than {_MAX_CHAIN} references lead to each other"
            raise self.stop(leaf, path, "reference-cycle", message)
        if target not in self.done:
            node = get_at(self.root, target)
            assert node is not None
            before = len(self.problems)
            self.following.append((path, leaf.origin))
            try:
                made = each_text_below(node, target, self.leaf)
            finally:
                self.following.pop()
            self.done[target] = made, _size(made)
            if len(self.problems) > before and isinstance(made, Leaf):
                raise _UnresolvedError  # what it leads to is wrong, and has been told
        found, size = self.done[target]
        self.added += size
        if self.added > _MAX_NODES:
            message = f"references make the config larger than {_MAX_NODES:,} values"
            raise self.stop(leaf, path, "too-large", message)
        return found

    def stop(
        self, leaf: Leaf, path: KeyPath, kind: str, message: str, fix: str = ""
    ) -> _UnresolvedError:
        self.problems.append(
            Problem(kind=kind, message=message, origin=leaf.origin, key=dotted(path), fix=fix)
        )
        return _UnresolvedError()


def _meant(inside: str) -> str:
    """Return the fix for a malformed reference: one that was meant, if it would be right."""
    kind, colon, rest = inside.strip().partition(":")
    near = nearest(kind, ("env", "global", "random", "length")) if colon else []
    likely = [f"{near[0]}:{rest}"] if near else nearest(inside.strip(), MACHINE)
    is_right = bool(likely) and likely[0] != inside.strip() and is_well_formed(likely[0])
    return f"did you mean `${{{likely[0]}}}`?" if is_right else _FORMS


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
