"""Drawing of panels with matplotlib, at the width, fonts and sizes of a venue."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import InputError, MissingExtraError, choose
from assay.core.formatting import count
from assay.core.terminal import elide, visible
from assay.query.drawing import COLORS, label_ticks
from assay.query.groups import Spread
from assay.query.significance import LEVEL
from assay.report.figure_data import (
    MOST_PANELS,
    FigureItem,
    FigureRequest,
    Panel,
    as_curve,
    refuse_many,
    spell_value,
)
from assay.store.cells import in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_STYLES = ("-", "--", ":", "-.")
"""Dashes of the page as matplotlib has them: 32 lines look different."""

_MOST_LINES = len(COLORS) * len(LINE_STYLES)

STYLES: Mapping[str, float] = {
    "screen": 6.4,
    "neurips": 5.5,
    "iclr": 5.5,
    "icml": 3.25,
    "icml-wide": 6.75,
    "ieee": 3.49,
    "ieee-wide": 7.14,
    "cvpr": 3.28,
    "cvpr-wide": 6.88,
    "acl": 3.03,
    "acl-wide": 6.3,
}
"""Width in inches of a column, and of the page (-wide), in the LaTeX class of each venue."""

FILE_SETTINGS: Any = {"pdf.fonttype": 42, "svg.hashsalt": "assay", "savefig.dpi": 300}
"""matplotlib's settings for files: whole fonts in them, no random ids, print resolution."""

_CHINESE = ("Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "SimHei", "WenQuanYi Zen Hei")
_COLORMAP = "cividis"  # even in lightness: for the colour-blind, and on grey paper
_LABEL_CELLS = 40
_MOST_TEXTS = 150


def draw_figure(panels: Sequence[Panel], request: FigureRequest) -> Figure:
    """Return a matplotlib figure of panels; a notebook shows it, `savefig` writes it.

    MissingExtraError without matplotlib, InputError for an unknown style.
    """
    width = STYLES.get(request.style)
    if width is None:
        fix = choose(request.style, STYLES, n=2)
        raise InputError(f"There is no style `{request.style}`.", fix=fix)
    refuse_many(len(panels), MOST_PANELS, "panel")
    lines = max(len(each.items) for each in panels) if request.kind == "curves" else 0
    refuse_many(lines, _MOST_LINES, "line")
    try:
        from matplotlib import rc_context, rcParamsDefault
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("`assay figure`", extra="plot") from None
    # Not the user's matplotlibrc: a figure is the same wherever it is drawn.
    usual: Any = {name: rcParamsDefault[name] for name in rcParamsDefault if "backend" not in name}
    with rc_context(usual | _settings(request.style)):
        columns = 2 if len(panels) > 1 and width > 5 else 1
        rows = -(-len(panels) // columns)
        height = max(_height(each, request.kind, width / columns) for each in panels)
        figure = Figure(figsize=(width, rows * height), layout="constrained")
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place)
            x, y = _DRAWINGS[request.kind](axes, panel, request)
            axes.set_xlabel(_text(x))
            axes.set_ylabel(_text(y))
        if request.title:
            figure.suptitle(_text(request.title))
        _add_legend(figure, width)
    # matplotlib shows a bare figure in a notebook only where pyplot was imported.
    figure._repr_png_ = lambda: _png(figure)  # type: ignore[attr-defined]
    return figure


def _settings(style: str) -> Any:
    from matplotlib.font_manager import get_font_names

    others = [name for name in _CHINESE if name in get_font_names()]
    size, font, formulas = 8, "STIXGeneral", "stix"  # they fit Times, and come with matplotlib
    if style == "screen":
        size, font, formulas = 9, "DejaVu Sans", "dejavusans"
    return {
        **FILE_SETTINGS,
        "font.family": [font, "DejaVu Sans", *others],  # a letter that one lacks is of the next
        "mathtext.fontset": formulas,
        "font.size": size,
        "axes.titlesize": size,
        "figure.titlesize": size + 1,
        "xtick.labelsize": size - 1,
        "ytick.labelsize": size - 1,
        "legend.fontsize": size - 1,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.2,
        "lines.markersize": 4,
    }


def _height(panel: Panel, kind: str, width: float) -> float:
    """Return the height of a panel in inches."""
    if kind == "bars":
        return 0.5 + 0.22 * (len(panel.items) + 1)
    return min(width, 4.5) * 0.9 if kind == "confusion" else max(width * 0.62, 1.9)


def _add_legend(figure: Figure, width: float) -> None:
    """Add one legend for all panels, since an item looks alike in each."""
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    if shown:
        columns = max(1, min(len(shown), int(width * 18 / (max(map(len, shown)) + 8))))
        figure.legend(
            shown.values(), shown, loc="outside lower center", ncols=columns, frameon=False
        )


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _text(text: str, cells: int = 200) -> str:
    """Return a text that matplotlib shows as it is: no formula, and no label that it hides."""
    readable = visible(text).encode("utf-8", "replace").decode()
    shown = elide(readable, cells).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _draw_curves(axes: Axes, panel: Panel, request: FigureRequest) -> tuple[str, str]:
    for item in panel.items:
        line = as_curve(item)
        slot, dash = item.stroke
        color, dashes = COLORS[slot], LINE_STYLES[dash]
        label = _text(item.label, _LABEL_CELLS)
        marker = "" if len(line.xs) > 1 else "o"
        axes.plot(line.xs, line.ys, label=label, color=color, linestyle=dashes, marker=marker)
        if line.band is not None and len(line.xs) == 1:
            axes.errorbar(line.xs, line.ys, yerr=line.band, color=color, capsize=3)
        elif line.band is not None:
            low, high = line.ys - line.band, line.ys + line.band
            axes.fill_between(line.xs, low, high, color=color, alpha=0.2, linewidth=0)
    return _scale(axes, request, ", ".join(panel.axes), panel.title)


def _draw_bars(axes: Axes, panel: Panel, request: FigureRequest) -> tuple[str, str]:
    """Draw bars from the top down: their labels are long, and a column is narrow."""
    for row, item in enumerate(panel.items):
        mean, low, runs = (item.values[name] for name in ("mean", "low", "runs"))
        axes.barh(row, mean, height=0.7, color=COLORS[0], alpha=0.45)
        if low is not None:
            error = [[mean - low], [item.values["high"] - mean]]
            axes.errorbar(mean, row, xerr=error, color="black", capsize=3, elinewidth=1)
            places = row + np.linspace(-0.28, 0.28, len(runs))
            axes.plot(runs, places, ".", color=COLORS[0], markersize=2, zorder=2)
    labels = [_text(item.label, _LABEL_CELLS) for item in panel.items]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    if "y" in request.log:
        axes.set_xscale("log")
        _label_logs(axes.xaxis)
    return f"{panel.title} (mean, {LEVEL * 100:.0f} % interval)", ""


def _draw_scatter(axes: Axes, panel: Panel, request: FigureRequest) -> tuple[str, str]:
    (key,) = panel.axes
    is_named = 1 < len(panel.items) <= len(COLORS)
    for item in panel.items:
        label = _text(item.label, _LABEL_CELLS) if is_named else None
        color = COLORS[item.stroke[0] if is_named else 0]
        x, mean, std = (item.values[name] for name in (key, "mean", "std"))
        axes.errorbar(x, mean, std, label=label, color=color, fmt="o", elinewidth=0.8, capsize=2)
    return _scale(axes, request, key, panel.title)


def _scale(axes: Axes, request: FigureRequest, x: str, y: str) -> tuple[str, str]:
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in request.log:
            (axes.set_xscale if name == "x" else axes.set_yscale)("log")
            _label_logs(axis)
        else:
            axis.set_major_formatter(_tick_labels())
    return x, y


def _tick_labels() -> Any:
    """Return a formatter with the digits that ticks need: matplotlib's writes an offset aside."""
    from matplotlib.ticker import Formatter

    class TickLabels(Formatter):
        """Labels of the page, for matplotlib."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return label_ticks([x])[0]

        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return label_ticks(list(values))

    return TickLabels()


def _label_logs(axis: Any) -> None:
    """Label 1, 2 and 5 of each power of ten by numbers; the powers alone where they are many."""
    from matplotlib.ticker import LogLocator

    low, high = axis.get_view_interval()
    axis.set_minor_locator(LogLocator(subs=(2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}" if high < 100 * low else "")


def _draw_heatmap(axes: Axes, panel: Panel, request: FigureRequest) -> tuple[str, str]:
    x, y = panel.axes
    xs, ys = (_distinct(item.values[name] for item in panel.items) for name in panel.axes)
    means = np.full((len(ys), len(xs)), np.nan)
    texts = {}
    for item in panel.items:
        place = ys.index(item.values[y]), xs.index(item.values[x])
        means[place] = item.values["mean"]
        texts[place] = describe_item(item).replace(" ± ", "\n± ")
    _draw_matrix(axes, means, texts, (xs, ys), panel.title)
    axes.invert_yaxis()
    return x, y


def _draw_confusion(axes: Axes, panel: Panel, request: FigureRequest) -> tuple[str, str]:
    (item,) = panel.items
    counts = np.asarray(item.values["counts"], float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    texts = {place: f"{share:.2f}" for place, share in np.ndenumerate(shares) if share}
    names = item.values["names"]
    _draw_matrix(axes, shares, texts, (names, names), "share of the true class", most=1.0)
    axes.set_title(_text(item.label, _LABEL_CELLS))
    return "predicted", "true"


def _draw_matrix(
    axes: Axes,
    values: Any,
    texts: Mapping[Any, str],
    sides: Sequence[Sequence[Any]],
    title: str,
    most: float | None = None,
) -> None:
    """Draw a matrix with texts in its cells and names on two sides; nan is left white.

    Its colours go from 0 to `most`, else from its least value to its largest.
    """
    least = None if most is None else 0.0
    image = axes.imshow(values, cmap=_COLORMAP, aspect="auto", vmin=least, vmax=most)
    across, down = ([_text(spell_value(value), 12) for value in side] for side in sides)
    axes.set_xticks(range(len(across)), across, rotation=90 if sum(map(len, across)) > 30 else 0)
    axes.set_yticks(range(len(down)), down)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), text in texts.items() if len(texts) <= _MOST_TEXTS else ():
        red, green, blue, _ = image.to_rgba(values)[row, column]
        color = "white" if 0.21 * red + 0.72 * green + 0.07 * blue < 0.45 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize="x-small", color=color)
    axes.figure.colorbar(image, ax=axes, label=_text(title))


_DRAWINGS = {
    "curves": _draw_curves,
    "bars": _draw_bars,
    "scatter": _draw_scatter,
    "heatmap": _draw_heatmap,
    "confusion": _draw_confusion,
}


def _distinct(values: Iterable[Any]) -> list[Any]:
    return in_order((value, value) for value in dict.fromkeys(values))


def describe_item(item: FigureItem) -> str:
    """Return the values of an item in a few words."""
    values = item.values
    if "mean" in values:
        return str(Spread(values["mean"], values["std"], values["n"]))
    if "y" in values:
        return count(int(np.isfinite(as_curve(item).ys).sum()), "point")
    nouns = {"names": "row", "steps": "step"}
    return next(count(len(values[name]), noun) for name, noun in nouns.items() if name in values)
