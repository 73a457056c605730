"""`assay graph`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from assay.cli.launch import given
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
        click.echo(json.dumps([asdict(stage) for stage in stages], indent=1))
        return 0
    width, kind = (max(len(getattr(stage, key)) for stage in stages) for key in ("name", "kind"))
    for stage in stages:
        click.echo(f"{stage.name:<{width}}  {stage.kind:<{kind}}  {stage.gives}")
    return 0
