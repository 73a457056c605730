"""`assay diverge`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from assay.cli.completion import complete_runs
from assay.cli.permission import permission, trust_option
from assay.cli.terminal import echo, echo_json, paint, use_color, width
from assay.core.terminal import fold
from assay.formats.json_codec import to_plain
from assay.formats.verdict import Verdict


@click.command(
    name="diverge",
    help="Name the first step, phase, module and operation in which two recorded runs differ,"
    " from their traces and curves. Where these are too coarse the suspicious steps of both are"
    " trained again, from their code and config of then. Exit code 0 for equal, 1 for different,"
    " 2 for runs that do not compare.",
)
@click.argument("left", metavar="A", shell_complete=complete_runs)
@click.argument("right", metavar="B", shell_complete=complete_runs)
@click.option("--no-rerun", is_flag=True, help="Compare the records alone: train nothing again.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(left: str, right: str, no_rerun: bool, trust: bool, as_json: bool) -> int:
    from assay.proof import diverge

    done = diverge(
        left,
        right,
        reruns=not no_rerun,
        trust=permission(trust),
        tell=lambda line: echo(line, err=True),
    )
    verdict = done.verdict
    if as_json:
        echo_json({**to_plain(verdict), "notes": list(done.notes)})
        return 0 if verdict.equal else 1
    for line in _lines(verdict, done.notes, color=use_color(sys.stdout)):
        for part in fold(line, width(sys.stdout)):
            echo(part)
    return 0 if verdict.equal else 1


def _lines(verdict: Verdict, notes: tuple[str, ...], *, color: bool) -> Iterator[str]:
    """Yield the verdict as text: where the runs part, how, why, and what differs between them."""
    first = verdict.difference
    steps = f"steps {verdict.first_step} to {verdict.last_step}"
    if first is None:
        yield (
            f"{paint('equal', 'green bold', on=color)}: {steps}, {verdict.compared:,} values"
            " compared"
        )
    else:
        yield (
            f"{paint('different', 'red bold', on=color)}: first at step {first.step}, {first.place}"
        )
        yield f"  {verdict.runs[0]}  {first.left}"
        yield f"  {verdict.runs[1]}  {first.right}"
        yield f"cause: {verdict.cause}"
    for name, (was, now) in verdict.changed_inputs.items():
        yield f"differs: {name}  {f'{was} -> {now}' if was else now}"
    if first is not None and not verdict.changed_inputs:
        yield "differs: nothing in code, config and environment"
    yield from notes
