"""`assay replay`."""

from __future__ import annotations

import shlex
import sys

import click

from assay.cli.one_run import run_argument
from assay.cli.permission import permission, trust_option
from assay.cli.terminal import echo, paint, use_color, width
from assay.core.terminal import fold
from assay.formats.verdict import Verdict


@click.command(
    name="replay",
    help="Train a recorded run again, from its code and config of then, and compare the bits:"
    " curves, weights, optimizer, state, the order of the samples and the traces. It names the"
    " first step, phase and module that differ. With RUN@CKPT from that checkpoint on. Ends with 0"
    " for equal, 1 for not equal, 2 for what cannot be done again.",
)
@run_argument("[RUN[@CKPT]]")
@click.option(
    "--steps",
    metavar="A:B",
    default="",
    help="Only after A, which is 0 or has a checkpoint, up to B.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Even with another torch, device or number of threads than then, or a damaged record.",
)
@trust_option
def command(run: str, steps: str, force: bool, trust: bool) -> int:
    from assay.proof import replay
    from assay.proof.differences import format_comparisons

    done = replay(
        run,
        steps=steps,
        force=force,
        trust=permission(trust),
        tell=lambda line: echo(line, err=True),
    )
    verdict = done.verdict
    color = use_color(sys.stdout)
    for line in format_comparisons(done.compared):
        for part in fold(line, width(sys.stdout)):
            echo(part)
    span = f"steps {verdict.first_step} to {verdict.last_step}"
    if verdict.equal:
        echo(f"{paint('equal', 'green bold', on=color)}: {span}")
        _print_note(verdict)
        return 0
    first = verdict.difference
    assert first is not None
    values = f" ({first.left} and {first.right})" if first.left else ""
    echo(
        f"{paint('not equal', 'red bold', on=color)}: first at step {first.step},"
        f" {first.place}{values}"
    )
    if verdict.cause is not None:
        echo(f"cause: {verdict.cause}")
    _print_note(verdict)
    for name, (was, now) in verdict.changed_inputs.items():
        echo(f"not as it was: {name}  {was} -> {now}")
    if done.kept is not None:
        echo(f"both are kept: assay diff {verdict.runs[0]} {shlex.quote(str(done.kept))}", err=True)
    return 1


def _print_note(verdict: Verdict) -> None:
    for part in fold(verdict.note, width(sys.stdout)) if verdict.note else ():
        echo(part)
