"""Source map of a Python config: the place of each key and value in calls and assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.config.lazy import Spot
from assay.core.diagnostics import Origin

Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Expression:
    """Expression of a source file."""

    file: SourceFile
    node: ast.expr

    def origin(self) -> Origin:
        return self.file.origin(_span(self.node))

    def entry(self, key: str) -> KeySource | None:
        return self.file.entry(self.node, key)

    def item(self, index: int) -> Expression | None:
        """Return the expression of an item of a list or tuple."""
        if not isinstance(self.node, ast.List | ast.Tuple) or any(
            isinstance(e, ast.Starred) for e in self.node.elts
        ):
            return None
        return self.file.at(self.node.elts[index]) if index < len(self.node.elts) else None

    def says(self, value: object) -> bool:
        """Return False for a constant that differs from `value`: it was changed elsewhere."""
        node = self.node.operand if isinstance(self.node, ast.UnaryOp) else self.node
        return not isinstance(node, ast.Constant) or node is not self.node or node.value == value


@dataclass(frozen=True, slots=True)
class KeySource:
    """Place of a key, and the expression of its value."""

    origin: Origin
    value: Expression | None


@dataclass(frozen=True, slots=True)
class SectionEdit:
    """Statement `section["key"] = value` or, without a key, `section.update(...)`.

    `names` lead to the section.
    """

    names: tuple[str, ...]
    key: str | None
    spot: Spot


@dataclass(frozen=True, slots=True)
class Binding:
    """Statement that binds a name; `value` is None for an import or a definition."""

    span: Span
    value: ast.expr | None
    end: tuple[int, int]


@dataclass(slots=True)
class SourceFile:
    """Python file that was read as a config. `source` is its path as people know it."""

    path: str
    source: str
    text: str
    tree: ast.Module
    lines: list[str] = field(init=False)
    nodes: dict[Span, ast.expr] = field(default_factory=dict)
    assigned: dict[Span, ast.expr] = field(default_factory=dict)
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    edits: list[SectionEdit] = field(default_factory=list)
    keys: dict[int, tuple[dict[str, tuple[Span, ast.expr]], list[ast.expr]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Dict):
                self.nodes[_span(node)] = node
            if isinstance(node, ast.AugAssign):
                self.nodes[_span(node)] = node.value
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.assigned[_span(target)] = node.value
        for statement in _statements(self.tree.body):
            self._learn(statement)

    def _learn(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, statement)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, statement)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="update")) as call):
                names = _chain(owner)
                if names:
                    self.edits.append(SectionEdit(names, None, self.spot(call)))
            case ast.ImportFrom(names=names_of) | ast.Import(names=names_of):
                for alias in names_of:
                    self._bind(
                        (alias.asname or alias.name).partition(".")[0], alias, None, statement
                    )
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                self._bind(statement.name, statement, None, statement)

    def _bind(
        self,
        name: str,
        target: ast.expr | ast.stmt | ast.alias,
        value: ast.expr | None,
        statement: ast.stmt,
    ) -> None:
        binding = Binding(_span(target), value, _span(statement)[2:])
        self.bindings.setdefault(name, []).append(binding)

    def _assign(self, target: ast.expr, value: ast.expr, statement: ast.stmt) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, target, value, statement)
            self.edits = [edit for edit in self.edits if edit.names[0] != target.id]
        elif isinstance(target, ast.Subscript | ast.Attribute):
            names = _chain(target)
            if names:
                self.edits.append(SectionEdit(names[:-1], names[-1], self.spot(target)))

    def is_imported(self, name: str) -> bool:
        """Return whether a name came from an import, or from none of the module's statements."""
        return name not in self.bindings or self.bindings[name][-1].value is None

    def name(self, name: str) -> KeySource | None:
        """Return the place at which a name of the module was last bound."""
        if name not in self.bindings:
            return None
        last = self.bindings[name][-1]
        return KeySource(
            self.origin(last.span), self.at(last.value) if last.value is not None else None
        )

    def at(self, node: ast.expr) -> Expression:
        """Return the expression, or the table or list that a name in its place stands for."""
        while isinstance(node, ast.Name):
            # The binding before this use: `model = dict(model, width=4)` takes up the model of an
            # earlier line.
            here = (node.lineno, node.col_offset)
            value = next(
                (
                    each.value
                    for each in reversed(self.bindings.get(node.id, ()))
                    if each.end <= here
                ),
                None,
            )
            if not isinstance(value, ast.Dict | ast.Call | ast.List | ast.Tuple | ast.Name):
                break
            node = value
        return Expression(self, node)

    def expression(self, spot: Spot) -> Expression | None:
        node = self.nodes.get((spot.line, spot.column, spot.end_line, spot.end_column))
        return Expression(self, node) if node is not None else None

    def entry(self, node: ast.expr, key: str) -> KeySource | None:
        """Return the place of `key` in a dictionary, a call, or the target of an assignment."""
        match node:
            case ast.Attribute() | ast.Subscript():
                span = _span(node)
                value = self.assigned.get(span)
                return KeySource(self.origin(span), self.at(value) if value is not None else None)
            case ast.Dict() | ast.Call():
                named, others = self._keys_of(node)
                if key in named:
                    span, value = named[key]
                    return KeySource(self.origin(span), self.at(value))
                for other in others:
                    inner = self.at(other).node
                    if (
                        isinstance(inner, ast.Dict | ast.Call)
                        and (found := self.entry(inner, key)) is not None
                    ):
                        return found
        return None

    def _keys_of(
        self, node: ast.Dict | ast.Call
    ) -> tuple[dict[str, tuple[Span, ast.expr]], list[ast.expr]]:
        """Return the keys written out, and expressions that may hold more, last one first."""
        known = self.keys.get(id(node))
        if known is not None:
            return known
        named: dict[str, tuple[Span, ast.expr]] = {}
        others: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    named[name.value] = _span(name), value
                elif name is None:
                    others.insert(0, value)
        else:
            for keyword in node.keywords:
                if keyword.arg is None:
                    others.insert(0, keyword.value)
                    continue
                line, column = keyword.lineno, keyword.col_offset
                named[keyword.arg] = (
                    (line, column, line, column + len(keyword.arg.encode())),
                    keyword.value,
                )
            others += node.args
        self.keys[id(node)] = named, others
        return named, others

    def find_keys_given_twice(self) -> Iterator[tuple[str, Origin, Origin]]:
        """Yield each key that a `{...}` has twice, its place and the first; the last counts."""
        for node in self.nodes.values():
            first: dict[str, ast.expr] = {}
            for key in node.keys if isinstance(node, ast.Dict) else ():
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    if key.value in first:
                        before = self.origin(_span(first[key.value]))
                        yield key.value, self.origin(_span(key)), before
                    first.setdefault(key.value, key)

    def spot(self, node: ast.expr) -> Spot:
        return Spot(self.path, *_span(node))

    def origin(self, span: Span) -> Origin:
        line, column, end_line, end_column = span
        return Origin(
            source=self.source,
            line=line,
            column=self._column(line, column),
            end_line=end_line,
            end_column=self._column(end_line, end_column),
        )

    def _column(self, line: int, column: int) -> int:
        """Python counts bytes from 0, people characters from 1."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return (
            column + 1
            if text.isascii()
            else len(text.encode()[:column].decode(errors="replace")) + 1
        )


def _span(node: ast.expr | ast.stmt | ast.alias) -> Span:
    return (
        node.lineno,
        node.col_offset,
        node.end_lineno or node.lineno,
        node.end_col_offset or node.col_offset,
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module in order, those in branches and loops included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, part, []))


def _chain(node: ast.expr) -> tuple[str, ...]:
    """Return `train["amp"].enabled` as names; () for any other expression."""
    names: list[str] = []
    while True:
        match node:
            case ast.Name(id=name):
                return (name, *reversed(names))
            case ast.Attribute(value=inner, attr=name):
                names.append(name)
                node = inner
            case ast.Subscript(value=inner, slice=ast.Constant(value=str() as name)):
                names.append(name)
                node = inner
            case _:
                return ()
