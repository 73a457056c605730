"""Records of chosen runs as panels of plain values, before they are drawn.

Which runs count, how they are grouped and what a cell holds is decided by `query`, as for
`assay ls --group` and result tables.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from assay.core.errors import InputError, RecordError, choose, did_you_mean
from assay.core.formatting import count, name_some, number
from assay.query.catalog import Asked, Catalog
from assay.query.columns import COLUMNS, Column, show_value
from assay.query.drawing import DrawnCurve, choose_strokes, keep_extremes
from assay.query.find import select_runs
from assay.query.groups import BY_CONFIG, Spread, compute_spread
from assay.query.naming import count_values
from assay.query.observations import choose_counted
from assay.query.run import RunView
from assay.query.significance import confidence_interval
from assay.store.blobs import FileBlobs
from assay.store.series import Series

Kind = Literal["curves", "bars", "scatter", "heatmap", "confusion"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_MOST_ROWS = 60
MOST_PANELS = 12
_RANGES = 500
_AXES = {"bars": (0, 0), "scatter": (1, 1), "heatmap": (2, 2)}
"""Least and most keys beside the metric."""

_ON_LOG_AXES = ("curves", "bars", "scatter")
"""Kinds whose metric has an axis that can be logarithmic."""

_ALONE = "draw them one by one"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """Question of a figure: addresses of runs, what of them is drawn, and how.

    `metrics` are columns of `assay ls`; of curves metrics, of a confusion names of what the runs
    kept. `keys` are the axes beside them. Runs alike in the columns `by` are a group:
    those of BY_CONFIG may differ in the seed and in the keys of `ignored`. `log` names the
    logarithmic axes of x and y.
    """

    kind: Kind
    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    keys: tuple[str, ...] = ()
    by: tuple[str, ...] = (BY_CONFIG,)
    ignored: tuple[str, ...] = ()
    style: str = "screen"
    title: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureItem:
    """One group in a panel: a line, a bar, a point, a cell or a matrix, with the runs in it.

    `repeats` says how many runs of how many, "" for one of one. Items of one `stroke`, the numbers
    of a colour and a dash, look alike in all panels. `values` has `x`, `y` and `band` of a curve;
    the keys of a point or bar, `mean`, `std` and `n`, the interval `low` to `high`, and the values
    of its `runs`; `names` and `counts` [true][predicted] of a confusion.
    """

    group: str
    repeats: str
    stroke: tuple[int, int]
    runs: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.group} {self.repeats}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Axes of a figure: `title` is what is measured, `axes` what it is measured against.

    `left_out` has the reason for each run that is not shown, by id; `warnings` say what to know
    before the means are believed.
    """

    title: str
    axes: tuple[str, ...] = ()
    items: tuple[FigureItem, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of one group; `counted` are those whose numbers count, `cells` one a key."""

    label: str
    stroke: tuple[int, int]
    runs: tuple[str, ...]
    counted: Sequence[str]
    cells: Mapping[str, Any]
    warnings: tuple[str, ...]


class _ChosenRuns:
    """The chosen runs, and what the catalog knows about them."""

    def __init__(self, catalog: Catalog, request: FigureRequest) -> None:
        """InputError for no run at an address, and for a run that the catalog does not know."""
        self.request = request
        self.views = {view.id: view for view in select_runs(request.runs, catalog.project)}
        self._catalog = catalog
        self._selection = catalog.select_ids(list(self.views))
        ids, statuses = self._selection.values([COLUMNS["id"], COLUMNS["status"]])
        self._statuses: dict[str, str] = dict(zip(ids, statuses, strict=True))
        configs = zip(*self._selection.configs(), strict=True)
        self._configs = dict(zip(ids, configs, strict=True))
        for run in self.views.keys() - self._statuses.keys():
            where = str(self.views[run].path)
            raise InputError(f"The run {run} is of another project.", where=where)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """Return columns that one of the runs has; InputError for another."""
        found = [self._catalog.known_column(name) for name in names]
        for column in found:
            if not self.read(column):
                what = f"None of the chosen runs has `{column.name}`."
                known = self._catalog.metrics_of(list(self.views))
                raise InputError(what, fix=choose(column.name, known, "they have"))
        return found

    def read(self, column: Column) -> dict[str, Any]:
        """Return the value of each run that has one, by id."""
        (cells,) = self._selection.values([column])
        pairs = zip(self._statuses, cells, strict=True)
        return {run: value for run, value in pairs if value is not None}

    def varying(self, runs: Iterable[str]) -> list[str]:
        """Return the config keys in which runs differ, without the seed."""
        configs = [self._configs[run] for run in runs]
        taken = [defaults for _, defaults in configs]
        found = count_values([own for own, _ in configs], taken).keys() - {"seed"}
        return sorted(map(self._catalog.names().of_key, found))

    def group(self, keys: Sequence[Column] = (), by: Sequence[str] = ()) -> list[_Group]:
        """Return the groups in the order of their first runs, with the cells of keys."""
        asked = Asked(group=by or self.request.by, ignored=self.request.ignored)
        self.columns([name for name in asked.group if name != BY_CONFIG])
        groups = self._catalog.group(self._selection, asked).groups(keys, 0, None)
        strokes = choose_strokes(str(each.name) for each in groups)
        return [
            _Group(
                str(each.name),
                strokes[str(each.name)],
                each.ids,
                choose_counted(each.ids, self._statuses.__getitem__),
                dict(zip([key.name for key in keys], each.cells, strict=True)),
                each.warnings,
            )
            for each in groups
        ]

    def item(self, group: _Group, runs: Iterable[str], values: Mapping[str, Any]) -> FigureItem:
        """Return an item of a group, of the runs that are shown."""
        shown, total = tuple(runs), len(group.runs)
        part = f"{len(shown)} of {total}" if len(shown) < total else str(total)
        has_ended = any(self._statuses[run] == "finished" for run in group.counted)
        repeats = f"(n = {part}{'' if has_ended else ', none finished'})" if total > 1 else ""
        return FigureItem(
            group=group.label, repeats=repeats, stroke=group.stroke, runs=shown, values=values
        )

    def leave_out(self, group: _Group, shown: Container[str], name: str) -> dict[str, str]:
        """Return why runs of a group are not shown: their status, or that they lack the value."""
        return {
            run: f"no {name}" if run in group.counted else self._statuses[run]
            for run in group.runs
            if run not in shown
        }


def read_panels(catalog: Catalog, request: FigureRequest) -> tuple[Panel, ...]:
    """Return what a figure shows, a panel for each metric (and group, of what runs kept).

    InputError where nothing can be drawn: a metric or key that no chosen run has, a key that is no
    number on an axis of numbers, more groups than can be told apart.
    """
    chosen = _ChosenRuns(catalog, request)
    match request.kind:
        case "curves":
            panels = _read_curves(chosen)
        case "confusion":
            panels = _read_matrices(chosen)
        case _:
            panels = _read_points(chosen)
    told = [f"{group.label}: {each}" for group in chosen.group() for each in group.warnings]
    return tuple(replace(panel, warnings=tuple(told)) for panel in panels)


def spell_value(value: Any) -> str:
    """Return a value as labels and axes show it."""
    return "-" if value is None else show_value(value)


def refuse_many(found: int, most: int, noun: str) -> None:
    """Raise InputError where more is to be drawn than can be told apart."""
    if found > most:
        what = f"There are {count(found, noun)}, of which {most} can be told apart."
        fix = "narrow the expression, or group the runs by fewer values: --by tag"
        raise InputError(what, fix=fix)


def _match_metrics(runs: Iterable[RunView], names: Sequence[str]) -> list[str]:
    """Return the metrics of runs that names mean: each itself, else all that end in it.

    InputError where there is none.
    """
    known = {metric: metric.rpartition("/")[2] for run in runs for metric in run.metrics}
    found: dict[str, None] = {}
    for name in names:
        meant = [name] if name in known else [each for each in known if known[each] == name]
        if not meant:
            fix = did_you_mean(name, [*known, *known.values()]) or choose(name, known, "they have")
            raise InputError(f"None of the chosen runs has a metric `{name}`.", fix=fix)
        found |= dict.fromkeys(meant)
    return list(found)


def _read_curves(chosen: _ChosenRuns) -> list[Panel]:
    """Return a line for each group: the mean of its runs, with the sample deviation as `band`."""
    groups = chosen.group()
    panels = []
    for metric in _match_metrics(chosen.views.values(), chosen.request.metrics):
        items: list[FigureItem] = []
        left_out: dict[str, str] = {}
        found: list[tuple[_Group, dict[str, Series]]] = []
        for group in groups:
            views = [chosen.views[run] for run in group.counted]
            curves = {view.id: view.metric(metric) for view in views if metric in view.metrics}
            left_out |= chosen.leave_out(group, curves, metric)
            found += [(group, curves)] if curves else []
        axis, lines = _merge_groups([curves for _, curves in found])
        for (group, curves), merged in zip(found, lines, strict=True):
            if hidden := _why_hidden(merged.ys, metric, chosen.request):
                left_out |= dict.fromkeys(curves, hidden)
                continue
            line = keep_extremes(merged, _RANGES)
            columns = [("x", line.xs), ("y", line.ys)]
            columns += [("band", line.band)] if line.band is not None else []
            values = {name: each.astype(float).tolist() for name, each in columns}
            items.append(chosen.item(group, curves, values))
        _refuse_nothing(items, left_out, metric)
        panels.append(Panel(title=metric, axes=(axis,), items=tuple(items), left_out=left_out))
    return panels


def _why_hidden(values: Sequence[float] | Any, name: str, request: FigureRequest) -> str:
    """Return why none of the values has a place on its axis; "" where one has."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return f"{name} is {' or '.join(sorted({number(value) for value in values}))}"
    if "y" in request.log and request.kind in _ON_LOG_AXES and max(finite) <= 0:
        return f"{name} is never above 0, as a logarithmic axis needs"
    return ""


def _refuse_nothing(items: Sequence[FigureItem], left_out: Mapping[str, str], metric: str) -> None:
    """Raise InputError where a panel would be empty, with why."""
    if not items:
        why = "; ".join(f"{run}: {reason}" for run, reason in list(left_out.items())[:3])
        raise InputError(f"No run has a value of `{metric}` to draw.", fix=why)


def _merge_groups(groups: Sequence[Mapping[str, Series]]) -> tuple[str, list[DrawnCurve]]:
    """Return the x axis that the lines of all groups have, else the step, and the lines over it."""
    merged = [_merge_curves(curves) for curves in groups]
    axes = {axis for axis, _ in merged}
    if len(axes) > 1:
        merged = [_merge_curves(curves, over_steps=True) for curves in groups]
    return axes.pop() if len(axes) == 1 else "step", [line for _, line in merged]


def _merge_curves(
    curves: Mapping[str, Series], *, over_steps: bool = False
) -> tuple[str, DrawnCurve]:
    """Return the x axis of curves, and their mean and deviation where all of them have a point."""
    first, *others = curves.values()
    if not others:
        xs = first.steps.astype(float) if over_steps else first.xs
        return first.axis or "step", DrawnCurve(xs, first.values)
    # The last point at each step counts.
    places = [{step: at for at, step in enumerate(each.steps.tolist())} for each in curves.values()]
    steps = sorted(set.intersection(*map(set, places)))
    if not steps:
        what = f"{', '.join(curves)} have no step of `{first.name}` in common."
        raise InputError(what, fix=_ALONE)
    picks = [[own[step] for step in steps] for own in places]
    rows = list(zip(curves.values(), picks, strict=True))
    xs = first.xs[picks[0]]
    is_shared = not over_steps and all(
        each.axis == first.axis and np.array_equal(each.xs[pick], xs) for each, pick in rows
    )
    values = np.stack([each.values[pick] for each, pick in rows])
    with np.errstate(invalid="ignore"):  # of inf
        mean, band = values.mean(axis=0), values.std(axis=0, ddof=1)
    axis = first.axis if is_shared else ""
    return axis or "step", DrawnCurve(xs if axis else np.array(steps), mean, band)


def as_curve(item: FigureItem) -> DrawnCurve:
    """Return the line of an item of a figure of curves."""
    columns = (item.values[name] for name in ("x", "y", "band") if name in item.values)
    return DrawnCurve(*(np.asarray(column, float) for column in columns))


def _choose_keys(chosen: _ChosenRuns) -> list[Column]:
    """Return the axes beside the metric: those asked for, else the keys that vary."""
    kind = chosen.request.kind
    least, most = _AXES[kind]
    names = list(chosen.request.keys) or (chosen.varying(chosen.views) if least else [])
    if not least <= len(names) <= most:
        needed = str(least) if least == most else f"{least} to {most}"
        there = f"these vary: {name_some(names, MOST_PANELS)}" if names else "no key varies"
        what = f"A figure of the kind {kind} has {needed} of the keys as axes, not {len(names)}."
        raise InputError(what, fix=f"name them with -k; {there}" if least else "leave out -k")
    return chosen.columns(names)


def _read_points(chosen: _ChosenRuns) -> list[Panel]:
    """Return an item for each group: the values of its keys; mean and interval of a metric."""
    kind = chosen.request.kind
    metrics = chosen.columns(chosen.request.metrics)
    keys = _choose_keys(chosen)
    names = tuple(column.name for column in keys)
    groups = chosen.group(keys, names if kind == "heatmap" else ())
    refuse_many(len(groups) if kind == "bars" else 0, _MOST_ROWS, "bar")
    panels = []
    for metric in metrics:
        values = chosen.read(metric)
        items: list[FigureItem] = []
        left_out: dict[str, str] = {}
        for group in groups:
            having = [run for run in group.counted if run in values]
            numbers = [_number(values[run], metric.name, run) for run in having]
            spread = compute_spread(numbers) if numbers else None
            lacking = next((name for name in names if group.cells[name] is None), "")
            left_out |= chosen.leave_out(group, having, metric.name)
            means = [] if spread is None else [spread.mean]
            hidden = _why_hidden(means, f"the mean of {metric.name}", chosen.request)
            if spread is None or lacking or hidden:
                left_out |= dict.fromkeys(having, f"no single {lacking}" if lacking else hidden)
                continue
            low, high = confidence_interval(numbers) or (None, None)
            row = {
                name: _coordinate(cell, name, group.runs[-1], kind == "scatter")
                for name, cell in group.cells.items()
            }
            row |= {"mean": spread.mean, "std": spread.std, "n": spread.count}
            row |= {"low": low, "high": high, "runs": numbers}
            items.append(chosen.item(group, having, row))
        _refuse_nothing(items, left_out, metric.name)
        for name in names if kind == "heatmap" else ():
            sides = len({str(item.values[name]) for item in items})
            refuse_many(sides, _MOST_ROWS, f"value of {name}")
        panels.append(Panel(title=metric.name, axes=names, items=tuple(items), left_out=left_out))
    return panels


def _coordinate(cell: Any, name: str, run: str, is_number: bool) -> Any:
    """Return the value of a key on an axis, of a metric its mean."""
    value = cell.mean if isinstance(cell, Spread) else cell
    if is_number:
        return _number(value, name, run, f"`assay figure bars --by {name}` compares its values")
    return value if isinstance(value, int | float | str) else spell_value(value)


def _number(value: Any, name: str, run: str, fix: str = "name a metric, or a number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"`{name}` is no number in the run {run}: {spell_value(value)}.", fix=fix)
    return float(value)


def _read_matrices(chosen: _ChosenRuns) -> list[Panel]:
    """Return a panel for each name and group, of the matrices that the runs that count kept."""
    panels: list[Panel] = []
    for name in chosen.request.metrics:
        before = len(panels)
        left_out: dict[str, str] = {}
        for group in chosen.group():
            parts = {run: _read_matrix(chosen.views[run], name) for run in group.counted}
            parts = {run: part for run, part in parts.items() if part}
            left_out |= chosen.leave_out(group, parts, name)
            if parts:
                item = chosen.item(group, parts, _merge_matrices(parts, name))
                panels.append(Panel(title=name, items=(item,), left_out=left_out))
        if len(panels) == before:
            views = chosen.views.values()
            names = [each.name for view in views for each in view.artifacts if each.kind == "table"]
            results = (item for view in views for item in view.values.items())
            names += [key for key, value in results if type(value) is list]
            what = f"None of the chosen runs kept a table `{name}`."
            raise InputError(what, fix=choose(name, names, "they have"))
    return panels


def _read_matrix(view: RunView, name: str) -> tuple[list[str], list[list[float]]] | None:
    """Return the classes and counts that a run kept last, as a table or result; None for none."""
    tables = _read_tables(view, name, f"{name}.csv", f"{name}/matrix.csv")
    rows: Any = view.values.get(name)
    classes: list[str] = []
    if tables:
        classes, *rows = csv.reader(io.StringIO(tables[-1].decode("utf-8", "replace")))
        has_names = len(classes) == len(rows) + 1
        if has_names and classes[0] == "true":  # the names of classes stand before the rows, too
            classes, rows = classes[1:], [row[1:] for row in rows]
    elif not isinstance(rows, list):
        return None
    try:
        counts = [[float(cell) for cell in row] for row in rows]
    except (ValueError, TypeError):
        counts = []
    if not counts or any(len(row) != len(counts) for row in counts):
        what = f"`{name}` of the run {view.id} is no square matrix of numbers."
        raise InputError(what, where=str(view.path))
    return classes or [str(place) for place in range(len(counts))], counts


def _merge_matrices(kept: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the sum of the counts of runs."""
    classes, *others = (names for names, _ in kept.values())
    if any(names != classes for names in others):
        raise InputError(f"{', '.join(kept)} have different classes in `{name}`.", fix=_ALONE)
    return {"names": classes, "counts": np.sum([rows for _, rows in kept.values()], 0).tolist()}


def _read_tables(view: RunView, *names: str) -> list[bytes]:
    """Return the tables that a run kept under one of the names."""
    kept = [each for each in view.artifacts if each.kind == "table" and each.name in names]
    blobs = FileBlobs(view.folder.artifacts)
    try:
        return [blobs.get(each.digest) for each in kept]
    except KeyError:
        what = f"A file of `{names[0]}` that the run {view.id} kept is missing."
        raise RecordError(what, where=str(view.path)) from None
