"""`assay events`."""

from __future__ import annotations

import click

from assay.cli.launch import given
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.events import When


@click.command(
    name="events",
    help="Who listens to what while a config runs, in the order in which they are called.",
)
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    from assay.config import open_config

    files, overrides = given(arguments)
    if len(files) != 1:
        raise InputError("`assay events` looks at one config.", fix="assay events digits.toml")
    from assay.compose import listeners

    found = listeners(open_config(files[0], overrides))
    echo(f"{'event':<16}  {'when':<12}  {'priority':>8}  handler")
    for handler in found:
        echo(
            f"{handler.event:<16}  {_words(handler.when):<12}  {handler.priority:>8}  {handler.name}"
        )
    return 0


def _words(when: When) -> str:
    """When it is called; of something that decides each time anew its name."""
    return str(when) if type(when).__str__ is not object.__str__ else f"as {type(when).__name__}"
