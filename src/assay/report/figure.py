"""Figure of curves in a file: a panel a metric, in it a line a run or the mean of repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError, InputError, MissingExtraError, choose, did_you_mean
from assay.query.config_rows import flat_config
from assay.query.groups import choose_counted, count_values
from assay.query.run import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = ("pdf", "png", "svg")
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f3c8d",
    "#6b6b6b",
)
"""Colours that the colour-blind tell apart (Okabe and Ito), in the order of their use."""

DASHES = ("-", "--", ":", "-.")
"""Dashes of lines past the last colour: 32 lines look different."""

_BUCKETS = 2000
_MOST_KEYS = 4
_PANELS_ABREAST = 2
_LEGEND_LINES = 12
_UNDATED: Mapping[str, Mapping[str, None]] = {
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a figure.

    `band` is half the height of the area around it, None for none; `runs` are those in it. Lines of
    one `place` share their colour and dashes in every panel.
    """

    label: str
    metric: str
    place: int
    axis: str
    xs: NDArray[np.float64]
    ys: NDArray[np.float64]
    band: NDArray[np.float64] | None
    runs: tuple[str, ...]


def match_metrics(run: RunView, name: str) -> list[str]:
    """Return the metrics that a name means: it, else all with it as their last part.

    InputError when there is none.
    """
    if name in run.metrics:
        return [name]
    found = [each for each in run.metrics if each.rpartition("/")[2] == name]
    if not found:
        short = [each.rpartition("/")[2] for each in run.metrics]
        fix = did_you_mean(name, [*run.metrics, *short]) or choose(name, run.metrics, "it has")
        raise InputError(f"The run {run.id} has no metric `{name}`.", where=str(run.path), fix=fix)
    return found


def lines(runs: Sequence[RunView], names: Sequence[str]) -> list[Line]:
    """Return the lines to draw: repeats of one config together, each other run alone.

    A group's line is the mean over its runs where all of them have a point; its band is one sample
    standard deviation. Repeats that did not finish are left out where another one did. Lines are
    labelled by the config keys that differ. A run without a metric has no line for it; InputError
    when no run has one of `names`.
    """
    groups = _group_runs(runs)
    labels = _labels(groups)
    has_metric = _having(runs, names)
    found = []
    for metric in has_metric:
        for group, label in zip(groups, labels, strict=True):
            counted = choose_counted(group, lambda run: run.status)
            measured = [run for run in counted if metric in run.metrics]
            if not measured:
                continue
            total = len(group)
            part = f"{len(measured)} of {total}" if len(measured) < total else str(total)
            has_ended = any(run.status == "finished" for run in counted)
            repeats = f" (mean of {part}{'' if has_ended else ', none finished'})"
            repeats = repeats if total > 1 else ""
            found.append(_line(measured, metric, f"{label}{repeats}", groups.index(group)))
    return found


def _group_runs(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Return the runs grouped by config without the seed, each run once."""
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        alike = run.file.newest.seedless_hash if run.file.attempts else ""
        group = groups.setdefault(alike or run.id, [])
        if all(each.id != run.id for each in group):
            group.append(run)
    return list(groups.values())


def _having(runs: Sequence[RunView], names: Sequence[str]) -> list[str]:
    """Return the metrics that the names mean in any of the runs."""
    found: dict[str, None] = {}
    for name in names:
        for run in runs:
            with contextlib.suppress(InputError):
                found |= dict.fromkeys(match_metrics(run, name))
        if not any(name in (metric, metric.rpartition("/")[2]) for metric in found):
            match_metrics(max(runs, key=lambda run: len(run.metrics)), name)  # says what there is
    return list(found)


def _labels(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """Return a label for each group: the config keys that differ, else the tag.

    Equal labels get an id.
    """
    configs = [_settings(group[-1]) for group in groups]
    differing = sorted(count_values(configs).keys() - {"seed"})
    shown = _short(differing)
    labels = []
    for group, config in zip(groups, configs, strict=True):
        parts = [f"{shown[key]}={config.get(key, '-')}" for key in differing[:_MOST_KEYS]]
        if len(differing) > _MOST_KEYS:  # whole sections differ: names tell more than values
            parts = []
        labels.append(", ".join(parts) or group[-1].tag or group[-1].id)
    return [
        f"{label} {group[-1].id}" if labels.count(label) > 1 else label
        for label, group in zip(labels, groups, strict=True)
    ]


def _settings(run: RunView) -> dict[str, str]:
    """Return the saved config by key; of a damaged one nothing."""
    try:
        return flat_config(run)
    except ConfigError:
        return {}


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, the whole key where that stands for two."""
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)
    }


def _line(group: Sequence[RunView], metric: str, label: str, place: int) -> Line:
    ids = tuple(run.id for run in group)
    curves = [run.metric(metric) for run in group]
    if len(curves) == 1:
        (curve,) = curves
        xs, ys, axis, band = curve.xs, curve.values, curve.axis, None
    else:
        pairs = [zip(each.steps.tolist(), each.values.tolist(), strict=True) for each in curves]
        by_step = [dict(each) for each in pairs]
        steps = sorted(set.intersection(*map(set, by_step)))
        if not steps:
            raise InputError(
                f"{', '.join(ids)} have no step of `{metric}` in common.",
                fix="plot them one by one",
            )
        values = np.array([[each[step] for step in steps] for each in by_step])
        xs = np.array(steps, dtype=np.float64)
        axis = ""
        ys = values.mean(axis=0)
        band = values.std(axis=0, ddof=1)
    return Line(
        label=label, metric=metric, place=place, axis=axis, xs=xs, ys=ys, band=band, runs=ids
    )


def draw(found: Sequence[Line], to: Path, *, title: str = "", log: bool = False) -> None:
    """Write the figure in the format of the file's suffix; MissingExtraError without matplotlib.

    InputError for an unknown suffix.
    """
    if to.suffix.lstrip(".").lower() not in SUFFIXES:
        raise InputError(
            f"{to.name} is no kind of figure.",
            fix=f"name it {to.stem or 'fig'}.{SUFFIXES[0]}, .png or .svg",
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("`assay plot`", extra="plot") from None
    metrics = list(dict.fromkeys(line.metric for line in found))
    columns = min(len(metrics), _PANELS_ABREAST)
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.0 * rows), layout="constrained")
    for i, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(rows, columns, i)
        shown = [line for line in found if line.metric == metric]
        for line in shown:
            _draw(axes, line)
        axes.set_xlabel(", ".join(dict.fromkeys(line.axis or "step" for line in shown)))
        axes.set_ylabel(metric)
        if log:
            axes.set_yscale("log")
        if len(shown) > 1 or i == 1:
            axes.legend(frameon=False, fontsize="small", ncols=1 + len(shown) // _LEGEND_LINES)
    if title:
        figure.suptitle(title)
    metadata: Mapping[str, None] = _UNDATED.get(to.suffix.lower(), {})  # same curves, same file
    try:
        figure.savefig(to, metadata=metadata)
    except OSError as error:
        raise InputError(
            f"The figure cannot be written: {error.strerror or error}.", where=str(to)
        ) from error


def _draw(axes: Axes, line: Line) -> None:
    xs, ys, band = line.xs, line.ys, line.band
    if len(xs) > _BUCKETS and band is None:  # a spike stays: of each range both extremes
        parts = np.array_split(np.arange(len(xs)), _BUCKETS // 2)
        lowest = [part[np.argmin(ys[part])] for part in parts]
        highest = [part[np.argmax(ys[part])] for part in parts]
        keep = np.unique([*lowest, *highest])
        xs = xs[keep]
        ys = ys[keep]
    color = COLORS[line.place % len(COLORS)]
    dashes = DASHES[line.place // len(COLORS) % len(DASHES)]
    marker = "" if len(xs) > 1 else "o"
    axes.plot(xs, ys, label=line.label, color=color, linestyle=dashes, linewidth=1.2, marker=marker)
    if band is not None and len(xs) == 1:
        axes.errorbar(xs, ys, yerr=band, color=color, capsize=3)
    elif band is not None:
        axes.fill_between(xs, ys - band, ys + band, color=color, alpha=0.2, linewidth=0)
