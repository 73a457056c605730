"""`assay figure`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import complete_columns, complete_metrics, complete_runs
from assay.cli.terminal import echo, paint, use_color
from assay.core.errors import InputError
from assay.core.formatting import name_some
from assay.core.terminal import visible
from assay.core.text_table import align_rows

if TYPE_CHECKING:
    from assay.report.figure import FigureRecipe

_KINDS = ("curves", "bars", "scatter", "heatmap", "confusion", "redo")
_SHOWN = 12


@click.command(
    name="figure",
    help="""Draw a figure for a paper into a .pdf, .svg or .png. KIND is one of:

    \b
    curves     metrics over steps: a line for each group, its mean, with a band
               of one standard deviation
    bars       the mean of each group, its 95 % interval, a dot for each run
    scatter    a point for each group: the metric against a key or a metric
    heatmap    the mean of the metric over two keys
    confusion  the confusion matrix that the runs kept last, added up
    redo       a figure again from its runs: assay figure redo acc.pdf

    Runs that differ in the seed alone are a group; its failed runs are left out, as in `assay ls
    --group`. The values and the command are in the metadata of FILE, and beside it in FILE.json.
    `redo` ends with 1 if the values have changed.

    \b
    assay figure curves 'tag = a' 'tag = b' -m valid/acc --style icml -o acc.pdf""",
)
@click.argument(
    "kind",
    metavar="KIND",
    shell_complete=lambda _, __, begin: [kind for kind in _KINDS if kind.startswith(begin)],
)
@click.argument(
    "runs", metavar="RUN|EXPR...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_metrics,
    help="What is drawn; may be repeated. Of curves a metric (`loss`: each split's), else a column"
    " of `assay ls` (valid/acc.max), or the name of a kept matrix.",
)
@click.option(
    "-k",
    "--key",
    "keys",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_columns,
    help="Axis of scatter, heatmap (x, then y). Left out: the keys that vary.",
)
@click.option("-o", "--to", metavar="FILE", help="The file to write.")
@click.option(
    "--by",
    metavar="K,..",
    shell_complete=complete_columns,
    default="",
    help="Group the runs by these columns, such as tag, in place of their config.",
)
@click.option(
    "--except",
    "ignored",
    metavar="K,..",
    shell_complete=complete_columns,
    default="",
    help="Runs of a group may differ in these keys, too: '*.fold'.",
)
@click.option(
    "--style",
    metavar="NAME",
    default="screen",
    show_default=True,
    help="Width and font: neurips, iclr, icml, ieee, cvpr, acl; icml-wide: both columns.",
)
@click.option("--title", default="", help="What stands above.")
@click.option(
    "--log",
    type=click.Choice(["x", "y", "xy"]),
    help="Logarithmic axes; y is that of the metric.",
)
def command(kind: str, runs: tuple[str, ...], to: str | None, **options: Any) -> int:
    from assay.report.figure import make_request, write_figure

    if kind == "redo":
        return _redo(runs, to, options)
    for name in ("by", "ignored"):
        options[name] = [part.strip() for part in options[name].split(",") if part.strip()]
    request = make_request(kind, runs, **options)
    if to is None:
        raise InputError(f"`assay figure {kind}` needs the option -o or --to.", fix="-o fig.pdf")
    recipe = write_figure(request, Path(to))
    _print_values(recipe)
    echo(f"written: {visible(to)}, with its values in {visible(to)}.json")
    return 0


def _print_values(recipe: FigureRecipe) -> None:
    """Print a line for each item, and name the runs that are left out."""
    from assay.report.figure_drawing import describe_item

    rows = [
        (visible(item.label), visible(panel.title), describe_item(item))
        for panel in recipe.panels
        for item in panel.items
    ]
    echo("\n".join(align_rows(rows[:_SHOWN])))
    if rows[_SHOWN:]:
        echo(f"... and {len(rows) - _SHOWN} more")
    for each in dict.fromkeys(each for panel in recipe.panels for each in panel.warnings):
        echo(f"{paint('note:', 'yellow', on=use_color(sys.stderr))} {visible(each)}", err=True)
    left_out = {run: why for panel in recipe.panels for run, why in panel.left_out.items()}
    if left_out:
        named = [f"{run} ({visible(why)})" for run, why in left_out.items()]
        word = paint("left out:", "yellow", on=use_color(sys.stderr))
        echo(f"{word} {name_some(named, _SHOWN, 'run')}", err=True)


def _redo(files: tuple[str, ...], to: str | None, options: dict[str, Any]) -> int:
    from assay.report.figure import redo_figure

    given = [name for name, value in options.items() if value and value != "screen"]
    if given or len(files) > 1:
        raise InputError(
            "`assay figure redo` takes one file: all else is in it.",
            fix=f"assay figure redo {shlex.quote(files[0])}",
        )
    has_same_values, is_same = redo_figure(Path(files[0]), Path(to) if to else None)
    shown = visible(os.fspath(to or files[0]))
    if not has_same_values:
        echo(f"written: {shown}, of values that have changed")
        return 1
    echo(f"written: {shown}, of the same values{' and to the same bytes' if is_same else ''}")
    return 0
