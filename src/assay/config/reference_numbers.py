"""References that stand for a number: drawn, of the machine, or the length of a loader."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from assay.config.references import IN_TEXT, LENGTH, MACHINE, RANDOM, each_text, insides
from assay.config.tree import (
    KeyPath,
    Leaf,
    Table,
    dotted,
    walk,
)
from assay.core.diagnostics import Origin, Problem


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
            spec = RANDOM.fullmatch(inside)
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


def _draw(spec: re.Match[str]) -> int | float:
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
