"""`assay graph`."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.one_config import one_config, read_config
from assay.cli.rehearsal import rehearse_one
from assay.cli.terminal import echo, echo_json


@click.command(
    name="graph",
    help="Show how one batch flows through a training step: dtypes and shapes at each stage.",
)
@one_config
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(arguments: tuple[str, ...], variant: str | None, trust: bool, as_json: bool) -> int:
    report, code = rehearse_one(read_config("graph", arguments, variant, trust=trust))
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
