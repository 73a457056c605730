"""Figure of curves in a file: one line a run, or the mean of repeats with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import InputError, MissingExtraError, choose, did_you_mean
from assay.query.run import RunView

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

SUFFIXES = ("pdf", "png", "svg")
_BUCKETS = 2000
_UNDATED: Mapping[str, Mapping[str, None]] = {
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a figure. `band` is half the height of the area around it, None for none; `runs`
    are those in it."""

    label: str
    axis: str
    xs: NDArray[np.float64]
    ys: NDArray[np.float64]
    band: NDArray[np.float64] | None
    runs: tuple[str, ...]


def named(run: RunView, name: str) -> list[str]:
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
    standard deviation.
    """
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        alike = run.file.newest.seedless_hash if run.file.attempts else ""
        group = groups.setdefault(alike or run.id, [])
        if all(each.id != run.id for each in group):
            group.append(run)
    found = []
    for group in groups.values():
        chosen = dict.fromkeys(
            metric for run in group for name in names for metric in named(run, name)
        )
        title = group[-1].tag or group[-1].id
        many = len(chosen) > 1 or len(groups) == 1
        for metric in chosen:
            label = " ".join(
                [
                    title,
                    *([metric] if many else []),
                    *([f"(mean of {len(group)})"] if group[1:] else []),
                ]
            )
            found.append(_line(group, metric, label))
    return found


def _line(group: Sequence[RunView], metric: str, label: str) -> Line:
    import numpy as np

    ids = tuple(run.id for run in group)
    curves = [run.metric(metric) for run in group]
    if len(curves) == 1:
        (curve,) = curves
        return Line(label=label, axis=curve.axis, xs=curve.xs, ys=curve.values, band=None, runs=ids)
    by_step = [
        dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) for curve in curves
    ]
    steps = sorted(set.intersection(*(set(each) for each in by_step)))
    if not steps:
        raise InputError(
            f"{', '.join(ids)} have no step of `{metric}` in common.", fix="plot them one by one"
        )
    values = np.array([[each[step] for step in steps] for each in by_step])
    xs = np.array(steps, dtype=np.float64)
    return Line(
        label=label,
        axis="",
        xs=xs,
        ys=values.mean(axis=0),
        band=values.std(axis=0, ddof=1),
        runs=ids,
    )


def draw(found: Sequence[Line], to: Path, *, title: str = "", log: bool = False) -> None:
    """Write the figure; the suffix of the file says as what. MissingExtraError without
    matplotlib."""
    if to.suffix.lstrip(".").lower() not in SUFFIXES:
        raise InputError(
            f"{to.name} is no kind of figure.",
            fix=f"name it {to.stem or 'fig'}.{SUFFIXES[0]}, .png or .svg",
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("`assay plot`", extra="plot") from None
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for line in found:
        _draw(axes, line)
    axes.set_xlabel(", ".join(dict.fromkeys(line.axis or "step" for line in found)))
    if log:
        axes.set_yscale("log")
    if title:
        axes.set_title(title)
    axes.legend(frameon=False)
    metadata: Mapping[str, None] = _UNDATED.get(to.suffix.lower(), {})  # same curves, same file
    try:
        figure.savefig(to, metadata=metadata)
    except OSError as error:
        raise InputError(
            f"The figure cannot be written: {error.strerror or error}.", where=str(to)
        ) from error


def _draw(axes: Axes, line: Line) -> None:
    import numpy as np

    xs, ys, band = line.xs, line.ys, line.band
    if len(xs) > _BUCKETS and band is None:  # a spike stays: of each range both extremes
        parts = np.array_split(np.arange(len(xs)), _BUCKETS // 2)
        keep = np.unique(
            [at for part in parts for at in (part[np.argmin(ys[part])], part[np.argmax(ys[part])])]
        )
        xs, ys = xs[keep], ys[keep]
    (drawn,) = axes.plot(xs, ys, label=line.label, linewidth=1.2, marker="" if len(xs) > 1 else "o")
    if band is not None:
        axes.fill_between(xs, ys - band, ys + band, color=drawn.get_color(), alpha=0.2, linewidth=0)
