"""`assay compare`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from assay.cli.completion import complete_expression, complete_metrics
from assay.cli.terminal import echo, echo_json, paint, use_color, width
from assay.core.errors import InputError
from assay.core.formatting import name_some, number
from assay.core.terminal import cell_count, visible
from assay.core.text_table import align_rows
from assay.formats.json_codec import to_plain

if TYPE_CHECKING:
    from assay.report.sample_comparison import Interval, SampleComparison, SampleDifference

_WIDTH = 80
_NAMED = 8
_LEGEND = (
    "std: sample deviation; IQM: mean of the middle half; interval: BCa bootstrap of the mean."
)


@click.command(
    name="compare",
    help="""Compare groups of runs in one metric: the runs of the first expression with those of
    each other one. A group is what `assay ls EXPR` lists; its failed runs are left out.

    \b
    assay compare 'tag = a' 'tag = b' -m valid/acc.max

    Runs are paired by seed (and fold) where all of the smaller group have a partner, and then a
    paired t-test is made; else Welch's. p is corrected for the number of groups by Holm's
    method.""",
)
@click.argument("expressions", metavar="EXPR EXPR...", nargs=-1, shell_complete=complete_expression)
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    required=True,
    shell_complete=complete_metrics,
    help="A column of `assay ls`: valid/acc (its last value), valid/acc.max, a result.",
)
@click.option(
    "--test",
    type=click.Choice(["paired-t", "wilcoxon", "welch"]),
    help="Make this test, whether or not the runs make pairs.",
)
@click.option(
    "--detect",
    metavar="X",
    type=float,
    help="Say how many seeds would show a difference of X, with a power of 80 %.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    expressions: tuple[str, ...], metric: str, test: str | None, detect: float | None, as_json: bool
) -> int:
    from assay.query.catalog import open_catalog
    from assay.report.sample_comparison import compare_samples
    from assay.store.known_projects import project_here

    if len(expressions) < 2:
        raise InputError(
            "Two groups of runs make a comparison.",
            fix=f"assay compare 'tag = a' 'tag = b' -m {metric}",
        )
    if detect is not None and not 0 < abs(detect) < float("inf"):
        raise InputError("`--detect` takes a difference other than 0.")
    catalog = open_catalog(project_here())
    found = compare_samples(catalog, expressions, metric, test=test, detect=detect)
    if as_json:
        echo_json(to_plain(found))
        return 0
    for line in _lines(found, use_color(sys.stdout)):
        echo(line)
    word = paint("warning:", "yellow", on=use_color(sys.stderr))
    for line in found.warnings:
        echo(f"{word} {visible(line)}", err=True)
    return 0


def _lines(found: SampleComparison, color: bool) -> Iterator[str]:
    from assay.query.significance import LEVEL

    room = width(sys.stdout) or _WIDTH
    rows = [["group", "n", "mean", "std", "median", "IQM", f"{_percent(LEVEL)} interval"]]
    for sample in found.groups:
        numbers = [sample.mean, sample.std, sample.median, sample.iqm]
        cells = [str(sample.n), *(f"{each:.4g}" for each in numbers), _span(sample.interval)]
        rows.append([visible(sample.label), *cells])
    yield paint(f"{found.metric}", "bold", on=color)
    head, *lines = align_rows(rows, to_right=range(1, 6))
    yield paint(head, "dim", on=color)
    yield from lines
    yield from textwrap.wrap(_LEGEND, room)
    for sample in found.groups:
        if sample.left_out:
            yield from _wrap(f"left out of {sample.label}", _name_runs(sample.left_out), room)
    for each in found.differences:
        yield ""
        title = f"{visible(each.group)} against {visible(found.groups[0].label)}"
        yield paint(title, "bold", on=color)
        yield from _difference(each, found, room)


def _difference(each: SampleDifference, found: SampleComparison, room: int) -> Iterator[str]:
    from assay.query.significance import LEVEL, describe_p
    from assay.report.sample_comparison import ALPHA, POWER

    size = " and ".join(map(str, each.n))
    counts = f"n = {size} pairs by {each.paired_by}" if each.paired_by else f"n = {size} runs"
    span = f"{_percent(LEVEL)} interval {_span(each.interval)}"
    shown = f"{each.difference:+.4g}, {span} ({each.interval_method})"
    yield from _wrap("difference", shown, room)
    tests = f"{each.test}, {counts}: {describe_p(each.p)}"
    if len(found.differences) > 1:
        tests += f"; {describe_p(each.p_holm)} by Holm for {len(found.differences)} tests"
    yield from _wrap("test", tests, room)
    effect = "without end: no deviation" if each.effect is None else f"{each.effect:+.3g}"
    yield from _wrap("effect", f"{each.effect_name} {effect}", room)
    yield from _wrap("larger", f"in {_percent(each.larger)} of all pairs of their runs", room)
    if each.unpaired:
        yield from _wrap("not paired", _name_runs(dict.fromkeys(each.unpaired, "")), room)
    if found.detect is not None:
        what = "pairs" if each.paired_by else "seeds of each"
        needed = f"over 100,000 {what}" if each.needed is None else f"{each.needed:,} {what}"
        level = f"p < {found.alpha:.3g}"
        if len(found.differences) > 1:
            level += f" ({ALPHA:g} / {len(found.differences)} tests)"
        difference = f"a difference of {number(found.detect)}"
        text = f"{needed} show {difference} in {_percent(POWER)} of cases, with {level}"
        yield from _wrap("needed", text, room)


def _wrap(name: str, text: str, room: int) -> list[str]:
    """Return `name  text` in lines that fit, those that follow below the text."""
    begin = f"  {visible(name):<10}  "
    return textwrap.wrap(
        visible(text),
        room,
        initial_indent=begin,
        subsequent_indent=" " * min(cell_count(begin), 14),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _name_runs(runs: Mapping[str, str]) -> str:
    return name_some([f"{run} ({why})" if why else run for run, why in runs.items()], _NAMED, "run")


def _percent(part: float) -> str:
    return f"{part * 100:.0f} %"


def _span(interval: Interval) -> str:
    return f"{interval[0]:.4g} to {interval[1]:.4g}"
