"""`[sweep] "optimizer.lr" = [1e-3, 1e-4]`: many runs from one config, as data.

`mode = "grid"` (every combination, the last axis fastest), "zip" (first with first, second with
second) or "random" (`points` of them, the same ones each time; another `draw` gives others). An
axis is a list of values, or a range `{ low = 1e-5, high = 1e-1, scale = "log" }`: random draws from
it, grid and zip take `count` values from end to end.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from assay.config.tree import KeyPath, Leaf, List, Node, Setting, Table, dotted, plain, problem_at
from assay.config.variants import find_twice_set, key_setting, with_note
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean

SECTION = "sweep"
_MODES = ("grid", "zip", "random")
MAX_POINTS = 10_000
_DRAWS = 20  # draws for each point of ranges, of which many may fall on whole numbers again
MANY = 100  # values of one axis that are all looked at by a check
OPTIONS = ("mode", "points", "draw")
RANGE = ("low", "high", "scale", "count")
_FORM = 'write "optimizer.lr" = [1e-3, 1e-4], or { low = 1e-5, high = 1e-1, scale = "log" }'

Mode = Literal["grid", "zip", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Interval from `low` to `high`, both included; whole numbers when both ends are."""

    low: int | float
    high: int | float
    is_log: bool
    count: int | None
    origin: Origin

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def space(self) -> list[int | float]:
        """Return `count` numbers from end to end."""
        count = self.count or 1
        shares = [i / (count - 1) if count > 1 else 0.0 for i in range(count)]
        return list(dict.fromkeys(self.at(share) for share in shares))

    def at(self, share: float) -> int | float:
        """Return the number at a share of the way, in six digits: results need no more."""
        if share in (0.0, 1.0):
            return self.high if share else self.low
        value = self.between(share)
        if self.is_whole:
            return min(max(round(value), self.low), self.high)
        return min(max(float(f"{value:.6g}"), self.low), self.high)

    def between(self, share: float) -> float:
        """Return the point at a share of the way, on the scale of the interval."""
        if self.is_log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)

    def draw(self, stream: random.Random) -> int | float:
        """Return a random number. Each whole number has the part of the interval around it."""
        share = stream.random()
        if not self.is_whole:
            return self.at(share)
        wide = replace(self, low=self.low - 0.5, high=self.high + 0.5)
        return min(max(round(wide.between(share)), self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """Key that varies. `setting` sets it to the first value."""

    setting: Setting
    values: tuple[Node, ...] = ()
    range: Interval | None = None

    @property
    def key(self) -> str:
        return dotted(self.setting.parts)

    def is_in(self, path: KeyPath) -> bool:
        """Return whether setting `path` sets this key too; `0` on the command line is `[0]`."""
        return tuple(map(str, self.setting.parts[: len(path)])) == tuple(map(str, path))

    def with_value(self, value: Node, note: str) -> Setting:
        """Return the setting of one point."""
        return replace(self.setting, value=with_note(value, note))


Point = tuple[tuple[SweepAxis, Node], ...]
"""One value for every axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Axes of a sweep, and the mode that combines them."""

    mode: Mode
    axes: tuple[SweepAxis, ...]
    origin: Origin
    count: int = 0
    draw: int = 0

    def without(self, fixed: Sequence[KeyPath]) -> Sweep:
        """Return the sweep without the keys that the command line has fixed."""
        return replace(
            self, axes=tuple(axis for axis in self.axes if not any(map(axis.is_in, fixed)))
        )

    def size(self) -> int:
        """Number of points."""
        match self.mode:
            case _ if not self.axes:
                return 0
            case "grid":
                return math.prod(len(axis.values) for axis in self.axes)
            case "zip" | "random":
                return sum(1 for _ in self.points())

    def points(self) -> Iterator[Point]:
        """Yield every point once, in order; one that comes again is left out."""
        if not self.axes:
            return
        match self.mode:
            case "grid":
                rows: Iterator[tuple[Node, ...]] = itertools.product(
                    *(axis.values for axis in self.axes)
                )
            case "zip":
                rows = zip(*(axis.values for axis in self.axes), strict=False)
            case "random":
                rows = self._draw()
        earlier: set[str] = set()
        for row in rows:
            point = tuple(zip(self.axes, row, strict=True))
            text = text_of_point(point)
            if text not in earlier:
                earlier.add(text)
                yield point

    def points_to_check(self) -> Iterator[Point]:
        """Yield the points that show all mistakes: each, with the ends of ranges.

        Of very many numbers of one key only the ends.
        """
        match self.mode:
            case "grid":
                few = tuple(
                    replace(axis, values=_worth_checking(axis.values)) for axis in self.axes
                )
                yield from replace(self, axes=few).points()
            case "zip":
                worth = [set(map(_text_of, _worth_checking(axis.values))) for axis in self.axes]
                for point in self.points():
                    if any(
                        _text_of(value) in few for (_, value), few in zip(point, worth, strict=True)
                    ):
                        yield point
            case "random":
                for point in itertools.islice(self.points(), 1):
                    yield from _with_ends(point)
                yield from self.points()

    def _combinations(self) -> int | None:
        if any(axis.range is not None for axis in self.axes):
            return None
        return math.prod(len(axis.values) for axis in self.axes)

    def _draw(self) -> Iterator[tuple[Node, ...]]:
        """Yield the rows that are drawn: `count` different ones, or as many as there are."""
        total = self._combinations()
        if total is not None:
            for index in _draw_places(total, min(self.count, total), random.Random(f"{self.draw}")):
                values = []
                for axis in reversed(self.axes):
                    index, at = divmod(index, len(axis.values))
                    values.append(axis.values[at])
                yield tuple(reversed(values))
            return
        # One stream for each axis: another axis more changes nothing in those that were there.
        streams = [random.Random(f"{self.draw}:{axis.key}") for axis in self.axes]
        drawn: set[tuple[str, ...]] = set()
        for _ in range(_DRAWS * self.count):
            row = tuple(
                _value(axis, stream) for axis, stream in zip(self.axes, streams, strict=True)
            )
            drawn.add(tuple(map(_text_of, row)))
            yield row
            if len(drawn) == self.count:
                return


def _draw_places(total: int, count: int, stream: random.Random) -> Iterator[int]:
    """Yield `count` different numbers below `total`; a larger count begins with the same ones."""
    moved: dict[int, int] = {}  # a shuffled pack of `total` cards, of which few have moved
    for place in range(count):
        other = stream.randrange(place, total)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def assignments(point: Point) -> tuple[tuple[str, Node], ...]:
    """Return the keys and values of a point."""
    return tuple((axis.key, value) for axis, value in point)


def text_of_point(point: Point) -> str:
    """Return the values of a point as a text that equal ones share."""
    return repr([plain(value) for _, value in point])


def _text_of(node: Node) -> str:
    """Return a value as a text that equal ones share."""
    return repr(plain(node))


def _with_ends(point: Point) -> Iterator[Point]:
    """Yield a point with each end of each range, and each value of a list, instead of the drawn."""
    for i, (axis, _) in enumerate(point):
        values: Iterable[Node] = _worth_checking(axis.values)
        if axis.range is not None:
            ends = (axis.range.low, axis.range.high)
            values = [Leaf(end, axis.range.origin) for end in ends]
        for value in values:
            yield (*point[:i], (axis, value), *point[i + 1 :])


def _worth_checking(values: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the values that may be wrong; of many numbers only the ends."""
    if len(values) <= MANY:
        return values
    numbers: dict[type, list[Leaf]] = {}
    others = []
    for node in values:
        if isinstance(node, Leaf) and isinstance(node.value, int | float):
            numbers.setdefault(type(node.value), []).append(node)
        else:
            others.append(node)
    ends = [
        end for same in numbers.values() for end in (min(same, key=_number), max(same, key=_number))
    ]
    return (*ends, *others)


def _number(leaf: Leaf) -> float:
    assert isinstance(leaf.value, int | float)
    return leaf.value


def sweep_of(root: Table) -> tuple[Sweep | None, list[Problem]]:
    """Return the sweep of a file, and the problems of its section."""
    section = root.items.get(SECTION)
    if section is None:
        return None, []
    if not isinstance(section, Table):
        message = f"`{SECTION}` must be a table"
        return None, [problem_at("wrong-type", message, section.origin, SECTION, _FORM)]
    problems: list[Problem] = []
    origin = root.key_origin(SECTION)
    settings = {name: node for name, node in section.items.items() if name in OPTIONS}
    options = {name: node for name, node in settings.items() if not _is_axis(node)}
    mode = _mode(options.get("mode"), problems)
    count = _whole(options, "points", 1, problems)
    draw = _whole(options, "draw", 0, problems)
    axes = tuple(_axes(section, (), (), mode, tuple(options), problems))
    problems += find_twice_set(axis.setting for axis in axes)
    if not axes and not problems:
        message = f"`{SECTION}` varies nothing"
        problems.append(problem_at("missing-key", message, origin, SECTION, _FORM))
    problems += _misplaced_options(section, options, mode, origin)
    if mode == "zip":
        problems += _uneven(axes)
    if problems:
        return None, problems
    sweep = Sweep(mode=mode, axes=axes, origin=origin, count=count or 0, draw=draw or 0)
    if sweep.size() > MAX_POINTS:
        message = f"the sweep has {sweep.size():,} points; at most {MAX_POINTS:,} are run"
        fix = 'write mode = "random" and points = 100'
        return None, [problem_at("too-large", message, origin, SECTION, fix)]
    return sweep, []


def _misplaced_options(
    section: Table, options: Mapping[str, Node], mode: Mode, origin: Origin
) -> Iterator[Problem]:
    """Yield a problem for each option that the mode lacks, or has no use for."""
    if mode == "random":
        if "points" not in options:
            fix = "write points = 20 under [sweep]"
            yield problem_at("missing-key", "a random sweep needs `points`", origin, SECTION, fix)
        return
    for name in ("points", "draw"):
        if name in options:
            message = f"`{name}` is for a random sweep; this one is {mode}"
            fix = 'write mode = "random", or remove it'
            place = section.key_origin(name)
            yield problem_at("unknown-key", message, place, f"{SECTION}.{name}", fix)


def _is_axis(node: Node) -> bool:
    return isinstance(node, List) or _is_range(node)


def _is_range(node: Node) -> bool:
    """Return whether a table is a range, from `low` to `high`, and not one of further axes."""
    if not isinstance(node, Table) or "type" in node.items:
        return False
    return bool({"low", "high"} & node.items.keys()) and all(
        isinstance(item, Leaf) for item in node.items.values()
    )


def _axes(
    table: Table,
    above: KeyPath,
    origins: tuple[Origin, ...],
    mode: Mode,
    options: tuple[str, ...],
    problems: list[Problem],
) -> Iterator[SweepAxis]:
    """Yield the axes of `[sweep]`, or of a table of keys inside it."""
    for key, node in table.items.items():
        if key in options and not above:
            continue
        shown = dotted((SECTION, *above, key))
        try:
            setting = key_setting(table, key, node, above, origins)
        except ValueError:
            message = f"`{key}` is no path of keys"
            problems.append(problem_at("syntax", message, table.key_origin(key), shown, _FORM))
            continue
        if setting.creates:
            message = f"`{key}` in a sweep makes nothing new"
            fix = "put the key into the file, then vary it"
            problems.append(problem_at("syntax", message, table.key_origin(key), shown, fix))
        elif isinstance(node, Table) and "type" not in node.items and not _is_range(node):
            yield from _axes(node, setting.parts, setting.origins, mode, (), problems)
        else:
            yield from _axis(setting, node, shown, mode, problems)


def _axis(
    setting: Setting, node: Node, shown: str, mode: Mode, problems: list[Problem]
) -> Iterator[SweepAxis]:
    """Yield the axis of one key, unless its values are wrong."""
    if isinstance(node, List) and not node.items:
        message = f"`{shown}` has no values"
        problems.append(problem_at("wrong-value", message, node.origin, shown, _FORM))
    elif isinstance(node, List):
        # In a zip values go together by their places: there a whole point may come again.
        different: dict[str, Node] = {}
        for item in node.items:
            different.setdefault(_text_of(item), item)
        values = node.items if mode == "zip" else tuple(different.values())
        yield SweepAxis(setting=setting, values=values)
    elif isinstance(node, Table) and _is_range(node):
        found = _range(node, shown, mode, problems)
        if found is not None and mode == "random":
            yield SweepAxis(setting=setting, values=(), range=found)
        elif found is not None:
            values = tuple(Leaf(value, node.origin) for value in found.space())
            yield SweepAxis(setting=setting, values=values)
    else:
        is_option = setting.parts == (shown.removeprefix(f"{SECTION}."),)
        near = did_you_mean(str(setting.parts[0]), OPTIONS) if is_option else ""
        message = f"`{shown}` must be a list of values or a range"
        problems.append(problem_at("wrong-type", message, node.origin, shown, near or _FORM))


def _range(node: Table, shown: str, mode: Mode, problems: list[Problem]) -> Interval | None:
    """Return the interval of a table such as `{ low = 0, high = 1, count = 5 }`."""
    before = len(problems)
    for key in node.items:
        if key not in RANGE:
            fix = did_you_mean(key, RANGE) or f"a range has {', '.join(RANGE)}"
            message = f"unknown key `{key}` of a range"
            place = node.key_origin(key)
            problems.append(problem_at("unknown-key", message, place, f"{shown}.{key}", fix))
    ends = [_end(node, name, shown, problems) for name in ("low", "high")]
    scale = _plain(node.items.get("scale"), "linear")
    if scale not in ("linear", "log"):
        message = f'`{shown}.scale` must be "linear" or "log"'
        place = node.items["scale"].origin
        problems.append(problem_at("wrong-value", message, place, f"{shown}.scale"))
    count = _whole(node.items, "count", 1, problems, shown)
    low, high = ends
    if len(problems) > before or low is None or high is None:
        return None
    if low > high or (scale == "log" and low <= 0):
        why = "its `low` is above its `high`" if low > high else "a log scale begins above 0"
        message = f"`{shown}` is no range: {why}"
        problems.append(problem_at("wrong-value", message, node.origin, shown))
        return None
    if mode != "random" and count is None:
        message = f"`{shown}` needs a `count`: how many values from low to high"
        fix = 'write count = 5, or mode = "random"'
        problems.append(problem_at("missing-key", message, node.origin, shown, fix))
        return None
    return Interval(low=low, high=high, is_log=scale == "log", count=count, origin=node.origin)


def _end(node: Table, name: str, shown: str, problems: list[Problem]) -> int | float | None:
    """Return the `low` or `high` of a range; None, with a problem, unless it is a number."""
    end = node.items.get(name)
    value = end.value if isinstance(end, Leaf) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    place = end.origin if end is not None else node.origin
    message = f"`{shown}.{name}` must be a number"
    problems.append(problem_at("wrong-type", message, place, f"{shown}.{name}"))
    return None


def _mode(node: Node | None, problems: list[Problem]) -> Mode:
    value = _plain(node, "grid")
    match value:
        case "grid" | "zip" | "random":
            return value
        case _:
            assert node is not None
            fix = did_you_mean(str(value), _MODES) or f"it is one of {', '.join(_MODES)}"
            problems.append(
                problem_at(
                    "wrong-value", f"a sweep has no mode `{value}`", node.origin, "sweep.mode", fix
                )
            )
            return "grid"


def _plain(node: Node | None, default: object) -> object:
    return default if node is None else node.value if isinstance(node, Leaf) else node


def _whole(
    items: Mapping[str, Node],
    name: str,
    minimum: int,
    problems: list[Problem],
    above: str = SECTION,
) -> int | None:
    node = items.get(name)
    if node is None:
        return None
    value = _plain(node, None)
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= minimum
        and not (minimum and value > MAX_POINTS)
    ):
        return value
    limit = f"from {minimum} to {MAX_POINTS:,}" if minimum else "of at least 0"
    message = f"`{above}.{name}` must be a whole number {limit}"
    problems.append(problem_at("wrong-value", message, node.origin, f"{above}.{name}"))
    return None


def _uneven(axes: Sequence[SweepAxis]) -> Iterator[Problem]:
    """Yield a problem for each axis of a zip with another length than the first."""
    for axis in axes[1:]:
        if len(axis.values) != len(axes[0].values):
            message = (
                f"`{axis.key}` has {len(axis.values)} values"
                f" and `{axes[0].key}` {len(axes[0].values)}:"
                " in a zip they go together"
            )
            yield problem_at(
                "wrong-value", message, axis.setting.key_origin(), f"{SECTION}.{axis.key}"
            )


def _value(axis: SweepAxis, stream: random.Random) -> Node:
    if axis.range is not None:
        return Leaf(axis.range.draw(stream), axis.range.origin)
    return axis.values[int(stream.random() * len(axis.values))]
