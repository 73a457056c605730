"""`assay events`."""

from __future__ import annotations

import click

from assay.cli.launch import given
from assay.core.errors import InputError


@click.command(name="events", help="Who listens to what while a config runs, in the order in which they are called.")
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    from assay.config import open_config

    files, overrides = given(arguments)
    if len(files) != 1:
        raise InputError("`assay events` looks at one config.", fix="assay events digits.toml")
    from assay.compose import listeners

    for handler in listeners(open_config(files[0], overrides)):
        click.echo(f"{handler.event:<16} {handler.when!s:<12} {handler.priority:>4}  {handler.name}")
    return 0
