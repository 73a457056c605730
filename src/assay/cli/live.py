"""`assay live`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator

import click

from assay.cli.completion import complete_metrics
from assay.cli.one_run import run_argument
from assay.cli.terminal import STATUS_STYLES, echo, paint, redraw, use_color
from assay.core.errors import InputError, RecordError, choose
from assay.core.formatting import duration, number
from assay.core.terminal import elide, visible
from assay.query.drawing import chart, middles, sparkline
from assay.query.find import find_run
from assay.query.run import EPOCH, RunView, epochs_at
from assay.store.artifacts import Artifact, artifacts
from assay.store.series import Series, read_series

_WIDEST = 100
_NAME = 24
_NUMBERS = 10


@click.command(
    name="live",
    help="The curves of a run, drawn in the terminal again and again while it trains; Ctrl-C"
    " leaves it alone.",
)
@run_argument()
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    shell_complete=complete_metrics,
    help="The curve to draw large. Left out: the first loss.",
)
@click.option(
    "-i",
    "--image",
    metavar="NAME",
    help="The newest image of that name, as those of a weight, below it.",
)
@click.option(
    "--every",
    "every_s",
    metavar="S",
    type=click.FloatRange(min=0.1),
    default=1.0,
    help="Seconds between.",
)
@click.option("--once", is_flag=True, help="Draw once. So it is where there is no terminal.")
def command(run: str, metric: str | None, image: str | None, every_s: float, once: bool) -> int:
    view = find_run(run)
    if metric is not None and metric not in view.metrics and view.status != "running":
        fix = choose(metric, view.metrics, "it has")
        raise InputError(f"The run {view.id} has no metric `{metric}`.", fix=fix)
    pictures = _pictures(view)
    if image is not None and image not in pictures and view.status != "running":
        fix = choose(image, pictures, "it has")
        raise InputError(f"The run {view.id} has no image `{image}`.", fix=fix)
    once = once or not sys.stdout.isatty()
    before = 0
    while True:
        view = RunView(view.folder)
        size = shutil.get_terminal_size((80, 24))
        columns = min(size.columns, _WIDEST)
        rows = size.lines - 2
        color = use_color(sys.stdout)
        drawing = _draw(view, image, columns, rows // 3, color) if image is not None else []
        lines = [*_page(view, metric, columns, rows - len(drawing), color), *drawing]
        if once:
            echo("\n".join(lines))
        else:
            before = redraw(lines, before)
        if once or view.status != "running":
            return 0
        time.sleep(every_s)


def _page(view: RunView, metric: str | None, width: int, height: int, color: bool) -> Iterator[str]:
    yield _head(view, color=color)
    if view.status != "running":
        yield from (f"damaged: {visible(sentence)}" for sentence in view.damages)
    summaries = view.summaries
    if not summaries:
        yield from ("", "nothing was logged yet")
        return
    chosen = metric if metric is not None and metric in summaries else _first_loss(list(summaries))
    names = [name for name in summaries if name != EPOCH]
    rows = min(len(names), max(2, height - 14))
    try:
        found = read_series(view.folder.metrics, names=[*names[:rows], chosen, EPOCH])
    except RecordError:  # it was said above
        return
    if chosen not in found:
        return
    yield from ("", paint(visible(chosen), "bold", on=color))
    drawn = chart(found[chosen], width=width, height=max(4, min(10, height - rows - 5)))
    yield from drawn
    if EPOCH in found and chosen != EPOCH and len(drawn) > 1:
        yield _epochs(found[EPOCH], found[chosen], drawn[-1])
    yield ""
    for name in names[:rows]:
        if name in found:
            yield _line(name, found[name], summaries[name].last, width)
    if rows < len(names):
        yield f"... and {len(names) - rows} more: --metric NAME draws one"


def _head(view: RunView, *, color: bool) -> str:
    """Return the line with tag, id, status, place and duration of a run."""
    summaries = view.summaries
    at = f"step {max((each.step for each in summaries.values()), default=0)}"
    if EPOCH in summaries:
        at = f"epoch {summaries[EPOCH].last + 1:.0f}  {at}"
    tag = paint(visible(elide(view.tag, 30)) or "-", "bold", on=color)
    status = paint(view.status, STATUS_STYLES[view.status], on=color)
    return f"{tag}  {view.id}  {status}  {at}  {duration(view.duration_s)}"


def _line(name: str, series: Series, last: float, width: int) -> str:
    """Return the line of a metric: its name, last value and a small curve."""
    room = width - _NAME - _NUMBERS - 4
    curve = sparkline(middles(series, room), room)
    return f"{elide(visible(name), _NAME):<{_NAME}}  {number(last):>{_NUMBERS}}  {curve}"


def _epochs(epochs: Series, curve: Series, axis: str) -> str:
    """Return the line with the epochs of the first and the last step."""
    first, last = (
        str(each + 1) for each in epochs_at(epochs, [int(curve.steps[0]), int(curve.steps[-1])])
    )
    return f"{'':>{axis.index('└') + 1}}epoch {first}".ljust(len(axis) - len(last)) + last


def _pictures(view: RunView) -> dict[str, Artifact]:
    """Return the newest image of each name."""
    return {each.name: each for each in artifacts(view.folder) if each.kind in ("image", "figure")}


def _draw(view: RunView, name: str, width: int, height: int, color: bool) -> list[str]:
    kept = _pictures(view).get(name)
    if kept is None:
        return ["", f"no image {visible(name)} yet"]
    from assay.query.picture import picture
    from assay.store.blobs import FileBlobs

    of_step = f"  step {kept.step}" if kept.step is not None else ""
    try:
        data = FileBlobs(view.folder.artifacts).get(kept.digest)
    except (KeyError, RecordError):
        return ["", f"the image {visible(name)} is damaged or missing"]
    shown = picture(data, width=width, height=max(1, height - 2), color=color)
    return ["", paint(visible(name), "bold", on=color) + of_step, *shown]


def _first_loss(names: list[str]) -> str:
    return next((name for name in names if "loss" in name), names[0])
