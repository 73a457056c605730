"""`assay live`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator

import click

from assay.cli.terminal import STATUS_STYLES, paint, use_color
from assay.core.diagnostics import visible
from assay.core.errors import InputError, did_you_mean
from assay.query.chart import chart, middles, sparkline
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.words import duration, elided, number
from assay.store.series import read_series

_WIDEST = 100
_NAME = 24
_NUMBERS = 10


@click.command(
    name="live",
    help="The curves of a run, drawn in the terminal again and again while it trains; Ctrl-C leaves it alone.",
)
@click.argument("run")
@click.option("-m", "--metric", metavar="NAME", help="The curve to draw large. Left out: the first loss.")
@click.option("--every", "every_s", metavar="S", type=click.FloatRange(min=0.1), default=1.0, help="Seconds between.")
@click.option("--once", is_flag=True, help="Draw once. So it is where there is no terminal.")
def command(run: str, metric: str | None, every_s: float, once: bool) -> int:
    view = find_run(run)
    if metric is not None and metric not in view.metrics and view.status != "running":
        fix = did_you_mean(metric, view.metrics) or f"it has {', '.join(view.metrics[:10])}"
        raise InputError(f"The run {view.id} has no metric `{metric}`.", fix=fix)
    once = once or not sys.stdout.isatty()
    drawn = 0
    while True:
        view = RunView(view.folder)
        size = shutil.get_terminal_size((80, 24))
        lines = list(_page(view, metric, min(size.columns, _WIDEST), size.lines - 2, use_color(sys.stdout)))
        # Back to where the last picture began, and over it line by line: a screen that is cleared would flicker.
        click.echo((f"\x1b[{drawn}A" if drawn else "") + "\n".join(line + "\x1b[K" * (not once) for line in lines))
        if drawn > len(lines):
            click.echo("\x1b[J", nl=False)
        drawn = len(lines)
        if once or view.status != "running":
            return 0
        time.sleep(every_s)


def _page(view: RunView, metric: str | None, width: int, height: int, color: bool) -> Iterator[str]:
    status = paint(view.status, STATUS_STYLES[view.status], on=color)
    summaries = view.summaries
    step = max((each.step for each in summaries.values()), default=0)
    tag = visible(elided(view.tag, 30)) or "-"
    yield f"{paint(tag, 'bold', on=color)}  {view.id}  {status}  step {step}  {duration(view.duration_s)}"
    if not summaries:
        yield from ("", "nothing was logged yet")
        return
    chosen = metric if metric is not None and metric in summaries else _first_loss(list(summaries))
    rows = min(len(summaries), max(1, height - 14))
    shown = list(summaries)[:rows]
    found = read_series(view.folder.metrics, names=[*shown, chosen])
    yield from ("", paint(visible(chosen), "bold", on=color))
    yield from chart(found[chosen], width=width, height=max(4, min(10, height - rows - 5)))
    yield ""
    room = width - _NAME - _NUMBERS - 4
    for name in shown:
        line = sparkline(middles(found[name], room), room)
        yield f"{elided(visible(name), _NAME):<{_NAME}}  {number(summaries[name].last):>{_NUMBERS}}  {line}"
    if rows < len(summaries):
        yield f"... and {len(summaries) - rows} more: --metric NAME draws one"


def _first_loss(names: list[str]) -> str:
    return next((name for name in names if "loss" in name), names[0])
