"""`assay graph`."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.launch import given
from assay.cli.terminal import echo, echo_json
from assay.core.errors import InputError


@click.command(name="graph", help="How one batch goes through a training step: types and shapes at each stage.")
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(arguments: tuple[str, ...], as_json: bool) -> int:
    from assay.config import open_config

    files, overrides = given(arguments)
    if len(files) != 1:
        raise InputError("`assay graph` looks at one config.", fix="assay graph digits.toml")
    from assay.compose.flow import flow

    stages = flow(open_config(files[0], overrides)).stages
    if as_json:
        echo_json([asdict(stage) for stage in stages])
        return 0
    width, kind = (max(len(getattr(stage, key)) for stage in stages) for key in ("name", "kind"))
    for stage in stages:
        echo(f"{stage.name:<{width}}  {stage.kind:<{kind}}  {stage.gives}")
    return 0
