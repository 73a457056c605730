"""`assay graph`."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.launch import given
from assay.cli.rehearsal import rehearse_one
from assay.cli.terminal import echo, echo_json


@click.command(
    name="graph",
    help="Show how one batch flows through a training step: dtypes and shapes at each stage.",
)
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(arguments: tuple[str, ...], as_json: bool) -> int:
    report, code = rehearse_one("graph", *given(arguments))
    stages = report.stages
    if as_json:
        echo_json([asdict(stage) for stage in stages])
        return code
    width, kind = (
        max((len(getattr(stage, key)) for stage in stages), default=0) for key in ("name", "kind")
    )
    for stage in stages:
        echo(f"{stage.name:<{width}}  {stage.kind:<{kind}}  {stage.gives}")
    return code
