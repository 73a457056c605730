"""Resolver of references: to numbers, to values of other keys, and to values from outside.

A number is drawn, of the machine, or the length of a loader. Values from outside are put in when a
config is read, so that all that looks at a config compares values; secrets where a run needs them,
and nowhere else.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.config.references import (
    LENGTH,
    MACHINE,
    OUTSIDE,
    RANDOM,
    Uses,
    escape,
    insides,
    is_kept,
    is_secret_variable,
    is_well_formed,
    objects_used,
    outside_used,
    referred_path,
    text_within,
)
from assay.config.settings import Settings
from assay.config.sources.literals import BRACKETS, MalformedError, value_for, value_of
from assay.config.tree import (
    IN_TEXT,
    NONE,
    KeyPath,
    Leaf,
    Node,
    Table,
    change_texts,
    dotted,
    fit_path,
    from_plain,
    get_at,
    plain,
    problem_at,
    reference_of,
    transform,
    walk,
    without_names,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, nearest
from assay.core.secrets.names import is_redacted
from assay.core.secrets.replacement import Secrets

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


def resolve_config(
    written: Table, draws: Draws, uses: Uses, settings: Settings
) -> tuple[Table, list[Problem]]:
    """Return the tree to build and to keep, without what was only there to be copied from.

    What is not set outside stays a reference, which the check reports; and so do secrets.
    """
    body, problems = draw_random(without_names(written, schema.MAKERS), draws)
    root, wrong = resolve_references(body)
    root = without_names(root, _templates(written, root, uses))
    if outside_used(root):
        variables = settings.variables
        root, _ = with_external_values(root, os.environ, variables, with_secrets=False)
    return root, [*problems, *wrong]


def _templates(written: Table, root: Table, uses: Uses) -> set[str]:
    """Return the user's sections that only value references mention: their values are copied."""
    standard = {key.name for key in schema.SECTIONS}
    objects = {str(target[0]) for _, target, _ in objects_used(root) if target}
    return uses.names(written) - standard - objects


# --- numbers --------------------------------------------------------------------------------------


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
            self._values[place] = _pick(spec)
        return self._values[place]


def draw_random(root: Table, draws: Draws) -> tuple[Table, list[Problem]]:
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
            spec = RANDOM.fullmatch(inside)
            if spec is None:
                raise ValueError(f"`${{{inside}}}` asks for no random number")
            return draws.value(path, leaf.origin, found.start(), spec)
        except ValueError as error:
            fix = "write ${random:int:0:9} or ${random:float:0.1:0.5}: the least and the greatest"
            problems.append(problem_at("unknown-reference", str(error), leaf, path, fix))
            return None

    return _with_numbers(root, "random:", "drawn by", number_at), problems


def asks_machine(root: Table) -> bool:
    """Return whether a value of `root` depends on the machine."""
    return any(
        inside.strip() in MACHINE
        for _, node in walk(root)
        if isinstance(node, Leaf) and isinstance(node.value, str)
        for inside in insides(node.value)
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
        for inside in insides(node.value)
        if (asked := LENGTH.fullmatch(inside.strip())) is not None
    }
    return list(found)


def with_lengths(root: Table, lengths: Mapping[str, int]) -> Table:
    """Return `root` with the length of its loader in place of every `${length:data.SPLIT}`."""

    def number_at(leaf: Leaf, path: KeyPath, found: re.Match[str]) -> int | None:
        asked = LENGTH.fullmatch((found["inside"] or "").strip())
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
        origin = _with_notes(leaf.origin, [f"{how} {text}"])
        whole = IN_TEXT.fullmatch(text)
        if whole is not None:
            number = number_at(leaf, path, whole)
            return leaf if number is None else Leaf(number, origin, typed=str(number))

        def put_in(found: re.Match[str]) -> str:
            number = number_at(leaf, path, found)
            return found[0] if number is None else str(number)

        filled = IN_TEXT.sub(put_in, text)
        return leaf if filled == text else Leaf(filled, origin)

    return change_texts(root, leaf_of)


def _pick(spec: re.Match[str]) -> int | float:
    convert = int if spec["kind"] == "int" else float
    try:
        low, high = convert(spec["low"].strip()), convert(spec["high"].strip())
    except ValueError:
        what = "whole numbers" if convert is int else "numbers"
        raise ValueError(f"`${{{spec[0]}}}` does not stand between two {what}") from None
    if not (low <= high and math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"`${{{spec[0]}}}` has its least above its greatest")
    source = secrets.SystemRandom()
    return source.randint(int(low), int(high)) if convert is int else source.uniform(low, high)


# --- values of other keys -------------------------------------------------------------------------


def resolve_references(root: Table) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${a.b}` replaced by its value, and the problems of all references.

    A string that is one reference and nothing else takes the value with its type, be it a table;
    inside a longer string the value becomes text. `${env:X}`, `${global:X}` and `@path` stay: see
    `with_external_values` and the builder.
    """
    work = _Values(root)
    changed = change_texts(root, work.leaf)
    problems = [*work.problems, *_object_problems(changed)]
    return changed, problems


class _UnresolvedError(Exception):
    """Reference that cannot be followed; its problem has been noted."""


@dataclass
class _Values:
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
                target = self.check(inside, leaf, path)
                found = self.follow(target, leaf, path)
                return replace(found, origin=replace(leaf.origin, note=f"from {dotted(target)}"))
            whole_text = self.join(leaf, text, path)
            return replace(leaf, value=None if whole_text == NONE else whole_text)
        except _UnresolvedError:
            return leaf

    def join(self, leaf: Leaf, text: str, path: KeyPath) -> str:
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
            value = self.insert(inside, leaf, path)
            length += len(value)
            if length > MAX_TEXT:
                message = f"the text grows beyond {MAX_TEXT:,} characters"
                raise self.refuse(leaf, path, "too-large", message)
            # `@@x` means `@x`; only at the very start of a string does `@` have to be doubled.
            add(value.removeprefix("@") if value.startswith("@@") and parts else value)
        add(text[at:])
        return "".join(parts)

    def insert(self, inside: str | None, leaf: Leaf, path: KeyPath) -> str:
        """Return the text of the value that `${inside}` names within a longer string."""
        target = self.check(inside, leaf, path)
        node = self.follow(target, leaf, path)
        if isinstance(node, Leaf):
            return text_within(node.value)
        kind = "table" if isinstance(node, Table) else "list"
        message = f"`{dotted(target)}` is a {kind} and cannot stand inside text"
        raise self.refuse(leaf, path, "wrong-type", message)

    def check(self, inside: str | None, leaf: Leaf, path: KeyPath) -> KeyPath:
        """Return the path inside `${...}`, fitted to the tree.

        Raises _UnresolvedError when nothing is there.
        """
        if inside is None and _NESTED.search(str(leaf.value)):
            raise self.refuse(
                leaf,
                path,
                "unknown-reference",
                "a reference cannot stand inside another",
                "write the value in its place",
            )
        if inside is None:
            raise self.refuse(
                leaf,
                path,
                "unknown-reference",
                "`${` is not closed",
                "write $${ for the two characters",
            )
        target = referred_path(inside, path)
        if inside.strip().startswith("." * (len(path) + 1)):
            raise self.refuse(
                leaf, path, "unknown-reference", f"`${{{inside}}}` leads out of the config"
            )
        if target is None:
            raise self.refuse(
                leaf,
                path,
                "unknown-reference",
                f"`${{{inside}}}` is no reference",
                _suggest(inside),
            )
        target = fit_path(self.root, target)
        if get_at(self.root, target) is None:
            problem = _refuse_unknown(self.root, target, f"${{{inside}}}", leaf.origin, path)
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
                    self.refuse(leaf, path, "reference-cycle", message)
                raise _UnresolvedError
        if len(self.following) >= _MAX_CHAIN:
            message = f"more than {_MAX_CHAIN} references lead to each other"
            raise self.refuse(leaf, path, "reference-cycle", message)
        if target not in self.done:
            node = get_at(self.root, target)
            assert node is not None
            before = len(self.problems)
            self.following.append((path, leaf.origin))
            try:
                made = change_texts(node, self.leaf, target)
            finally:
                self.following.pop()
            self.done[target] = made, _size(made)
            if len(self.problems) > before and isinstance(made, Leaf):
                raise _UnresolvedError  # what it leads to is wrong, and has been told
        found, size = self.done[target]
        self.added += size
        if self.added > _MAX_NODES:
            message = f"references make the config larger than {_MAX_NODES:,} values"
            raise self.refuse(leaf, path, "too-large", message)
        return found

    def refuse(
        self, leaf: Leaf, path: KeyPath, kind: str, message: str, fix: str = ""
    ) -> _UnresolvedError:
        self.problems.append(problem_at(kind, message, leaf, path, fix))
        return _UnresolvedError()


def _suggest(inside: str) -> str:
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


def _refuse_unknown(
    root: Table, target: KeyPath, shown: str, origin: Origin, path: KeyPath
) -> Problem:
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
    return problem_at(
        "unknown-reference",
        f"`{shown}` refers to nothing: there is no `{missing}`{where}",
        origin,
        path,
        fix,
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
            problems.append(problem_at("unknown-reference", message, node, path, fix))
            continue
        if target is None:
            continue
        target = fit_path(root, target)
        if get_at(root, target) is None:
            problems.append(_refuse_unknown(root, target, f"@{dotted(target)}", node.origin, path))
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
    return problem_at(
        "reference-cycle",
        f"an object needs itself: {' -> '.join([*steps, dotted(circle[0])])}",
        first.origin,
        circle[0],
    )


# --- values from outside --------------------------------------------------------------------------


def with_external_values(
    root: Table,
    environ: Mapping[str, str],
    variables: Mapping[str, Any],
    *,
    with_secrets: bool = True,
) -> tuple[Table, list[Problem]]:
    """Return `root` with every `${env:X}` and `${global:X}` replaced, and the problems.

    A variable that is alone in its string is parsed like an override (`8` is a number, unless text
    is wanted); a global keeps its type. `${env:X,8}` is 8 where there is no X. A value from outside
    is never a reference itself. Without `with_secrets` a secret stays a reference.
    """
    outside = _External(environ, variables, with_secrets=with_secrets)
    return change_texts(root, outside.node), outside.problems


def with_recorded_values(root: Table, outside: Mapping[str, Any]) -> Table:
    """Return `root` with the values that an older record kept beside its config, by `env:X`."""
    by_kind: dict[str, dict[str, Any]] = {"env": {}, "global": {}}
    for name, value in outside.items():
        kind, _, variable = name.partition(":")
        if kind in by_kind and not is_redacted(value):
            by_kind[kind][variable] = value
    environ = {name: value for name, value in by_kind["env"].items() if isinstance(value, str)}
    kept = _External(environ, by_kind["global"], takes_defaults=False)
    return change_texts(root, kept.node)


@dataclass
class _External:
    environ: Mapping[str, str]
    variables: Mapping[str, Any]
    with_secrets: bool = True
    takes_defaults: bool = True
    problems: list[Problem] = field(default_factory=list)

    def node(self, leaf: Leaf, text: str, path: KeyPath) -> Node:
        whole = IN_TEXT.fullmatch(text)
        named = OUTSIDE.fullmatch((whole["inside"] or "").strip()) if whole is not None else None
        node = self.join(leaf, text, path) if named is None else self.whole(leaf, named, path)
        key = next((part for part in reversed(path) if isinstance(part, str)), "")
        # Values that are no secrets may be one together, or under the name of this key.
        if not self.with_secrets and Secrets().tree(plain(node), key) != plain(node):
            return leaf
        return node

    def join(self, leaf: Leaf, text: str, path: KeyPath) -> Leaf:
        """Return `leaf` with the variables inside its text replaced by the text of their values."""
        names: list[str] = []

        def put_in(found: re.Match[str]) -> str:
            named = OUTSIDE.fullmatch((found["inside"] or "").strip())
            if named is None or not self.is_there(named, leaf, path) or self.stays(named):
                return found[0]
            value = self.value(named)
            if isinstance(value, Mapping | list):
                name = f"the global `{named['name']}`"
                message = f"{name} is a list or table and cannot stand inside text"
                self.problems.append(problem_at("wrong-type", message, leaf, path))
                return found[0]
            names.append(self.note(named))
            written = value if isinstance(value, str) else text_within(value)
            return written.replace("${", "$${")

        filled = IN_TEXT.sub(put_in, text)
        if not names:
            return leaf
        # What comes from outside is never a reference to an object.
        if filled.startswith("@") and not text.startswith("@"):
            filled = f"@{filled}"
        return Leaf(filled, _with_notes(leaf.origin, names), typed=filled)

    def whole(self, leaf: Leaf, named: re.Match[str], path: KeyPath) -> Node:
        if not self.is_there(named, leaf, path) or self.stays(named):
            return leaf
        origin = _with_notes(leaf.origin, [self.note(named)])
        if named["kind"] == "global" and named["name"] in self.variables:
            return transform(from_plain(self.value(named), origin), _escape)
        is_default = named["name"] not in self.variables_for(named)
        text = named["default"].strip() if is_default else self.environ[named["name"]]
        try:
            # A secret that begins with a bracket is a text like any other.
            is_text = text.strip()[:1] in BRACKETS and is_secret_variable(named["name"], text)
            node = Leaf(text, origin) if is_text else value_for(path, text, origin)
        except MalformedError as error:
            message = f"{error.what}, the value of `{named['name']}`"
            self.problems.append(problem_at("syntax", message, leaf, path, error.fix))
            return leaf
        return transform(node, _escape)

    def value(self, named: re.Match[str]) -> Any:
        """Return the value of a variable that is there; its default is written as an override."""
        variables = self.variables_for(named)
        if named["name"] in variables:
            return variables[named["name"]]
        try:
            return value_of(named["default"].strip())
        except MalformedError:  # in a longer text it is a text
            return named["default"].strip()

    def variables_for(self, named: re.Match[str]) -> Mapping[str, Any]:
        return self.variables if named["kind"] == "global" else self.environ

    def note(self, named: re.Match[str]) -> str:
        """Return the origin of a value, which stands behind it in a saved config."""
        name = f"{named['kind']}:{named['name']}"
        return (
            f"from {name}" if named["name"] in self.variables_for(named) else f"default of {name}"
        )

    def stays(self, named: re.Match[str]) -> bool:
        """Return whether a variable is a secret that is not to be put in."""
        if self.with_secrets:
            return False
        return is_secret_variable(named["name"], self.value(named))

    def is_there(self, named: re.Match[str], leaf: Leaf, path: KeyPath) -> bool:
        name = named["name"]
        known: Iterable[str] = self.variables_for(named)
        if name in known or (self.takes_defaults and named["default"] is not None):
            return True
        if named["kind"] == "global":
            message = f"the global `{name}` is not set"
            fix = f"assay config set --global {name} VALUE"
        else:
            message = f"the environment variable `{name}` is not set"
            fix = f"export {name}=..."
        fix = did_you_mean(name, known) or fix
        self.problems.append(problem_at("unknown-reference", message, leaf, path, fix))
        return False


def _with_notes(origin: Origin, names: Iterable[str]) -> Origin:
    return replace(origin, note=", ".join(dict.fromkeys(filter(None, [origin.note, *names]))))


def _escape(node: Node, _: KeyPath) -> Node:
    if isinstance(node, Leaf) and isinstance(node.value, str):
        return replace(node, value=escape(node.value))
    return node
