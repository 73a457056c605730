"""`assay diff`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

import click

from assay.cli.completion import complete_runs
from assay.cli.one_run import LAST
from assay.cli.terminal import echo, echo_json, paint, use_color
from assay.core.errors import InputError
from assay.core.formatting import age, number
from assay.core.terminal import elide, visible
from assay.formats.run_file import Summary
from assay.query.diff import (
    PARTS,
    ChangedKey,
    FileChanged,
    MetricChanged,
    Part,
    RunDiff,
    diff,
    previous_run,
)
from assay.query.find import find_run
from assay.query.run import RunView

_ABSENT = "(not there)"
_HOW = {"added": "only right", "removed": "only left", "changed": "changed", "mode": "other mode"}


@click.command(
    name="diff",
    help="Compare two runs. Without B: A with the run of its tag before it; without both: the last"
    " two runs. Exits with 1 when something differs, with 0 when nothing does.",
)
@click.argument("left", metavar="[A]", required=False, shell_complete=complete_runs)
@click.argument("right", metavar="[B]", required=False, shell_complete=complete_runs)
@click.option("--config", is_flag=True, help="Compare their configs.")
@click.option(
    "--metrics", is_flag=True, help="Compare their metrics, those of speed, time and memory too."
)
@click.option(
    "--env",
    "environment",
    is_flag=True,
    help="Compare their environments: versions, machine, variables.",
)
@click.option("--code", is_flag=True, help="Compare their code.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    left: str | None,
    right: str | None,
    config: bool,
    metrics: bool,
    environment: bool,
    code: bool,
    as_json: bool,
) -> int:
    asked = {"config": config, "metrics": metrics, "environment": environment, "code": code}
    parts: tuple[Part, ...] = tuple(part for part in PARTS if asked[part]) or PARTS
    found = diff(*_two(left, right), parts)
    if as_json:
        echo_json(found.to_json())
    else:
        echo("\n".join(_lines(found, use_color(sys.stdout))))
    return 0 if found.is_equal else 1


def _two(left: str | None, right: str | None) -> tuple[RunView, RunView]:
    if left is None:
        return _last_two()
    run = find_run(left)
    if right is not None:
        return run, find_run(right)
    before = previous_run(run)
    if before is None:
        raise InputError(
            f"There is no run of the tag `{run.tag}` before {run.id}.",
            fix="name the other one: assay diff A B",
        )
    return before, run


def _last_two() -> tuple[RunView, RunView]:
    run = find_run(LAST)
    try:
        return find_run("last-1"), run
    except InputError:
        raise InputError(
            f"{run.id} is the only run: there is nothing to compare it with.",
            fix="train another: `assay run CONFIG`",
        ) from None


def _lines(found: RunDiff, color: bool) -> Iterator[str]:
    for side, run in (("left ", found.left), ("right", found.right)):
        yield f"{paint(side, 'bold', on=color)}  {_name_of(run)}"
    if found.config:
        yield from _head("Config", color)
        yield from _changes(found.config, color)
    if found.metrics:
        yield from _head("Metrics", color)
        yield from _metrics(found.metrics)
    if found.environment:
        yield from _head("Environment", color)
        yield from _changes(found.environment, color)
    if found.code:
        yield from _head("Code", color)
        yield from _code(found.code, color)
    if found.code_missing:
        yield from ("", found.code_missing)
    same = [
        part
        for part in found.parts
        if not getattr(found, part) and not (part == "code" and found.code_missing)
    ]
    if same:
        yield from ("", f"No difference in {_and(same)}.")


def _name_of(run: RunView) -> str:
    return (
        f"{run.id}  {visible(run.tag) or '-'}  {run.status} "
        f" {age(run.file.created_ns, time.time_ns())}"
    )


def _head(title: str, color: bool) -> tuple[str, str]:
    return "", paint(title, "bold", on=color)


def _changes(changes: Sequence[ChangedKey], color: bool) -> Iterator[str]:
    """`key  left -> right`; on lines of their own where that is too long."""
    width = min(32, max(len(visible(change.key)) for change in changes))
    for change in changes:
        key = visible(change.key)
        left = _side(change.left)
        right = _side(change.right)
        line = f"  {key:<{width}}  {left} -> {right}"
        if len(line) <= 80:
            red = paint(left, "red", on=color)
            green = paint(right, "green", on=color)
            yield f"  {key:<{width}}  {red} -> {green}"
        else:
            yield f"  {key}"
            yield paint(f"    - {left}", "red", on=color)
            yield paint(f"    + {right}", "green", on=color)


def _side(text: str | None) -> str:
    return _ABSENT if text is None else visible(text) or '""'


def _metrics(changes: Sequence[MetricChanged]) -> Iterator[str]:
    rows = []
    for change in changes:
        first = True
        for what in ("last", "min", "max"):
            left = _number(change.left, what)
            right = _number(change.right, what)
            if first or left != right:
                rows.append(
                    (visible(change.name) if first else "", what, left, right, _delta(change, what))
                )
            first = False
    width = min(30, max(len(name) for name, *_ in rows))
    yield f"  {'':<{width}}        {'left':>12}  {'right':>12}  {'difference':>12}"
    for name, what, left, right, delta in rows:
        numbers = f"{left:>12}  {right:>12}  {delta:>12}"
        yield f"  {elide(name, width):<{width}}  {what:<4}  {numbers}".rstrip()


def _number(summary: Summary | None, what: str) -> str:
    return "-" if summary is None else number(getattr(summary, what))


def _delta(change: MetricChanged, what: str) -> str:
    if change.left is None or change.right is None:
        return ""
    delta = getattr(change.right, what) - getattr(change.left, what)
    return f"{delta:+.4g}" if delta == delta and delta else ""


def _code(files: Sequence[FileChanged], color: bool) -> Iterator[str]:
    for file in files:
        yield f"  {_HOW[file.how]:<10}  {visible(file.path)}"
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for file in files:
        if file.diff:
            yield ""
        for line in file.diff.removesuffix("\n").split("\n") if file.diff else ():
            style = "bold" if line.startswith(("+++ ", "--- ")) else styles.get(line[:1], "")
            yield paint(visible(line), style, on=color)


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
