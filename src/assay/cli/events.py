"""`assay events`."""

from __future__ import annotations

import click

from assay.cli.launch import given
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.events import When


@click.command(
    name="events",
    help="List the callbacks of a config's run in the order of their calls.",
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
            f"{handler.event:<16}  {_words(handler.when):<12}  {handler.priority:>8} "
            f" {handler.name}"
        )
    return 0


def _words(when: When) -> str:
    """Describe the period of a handler, or name the condition that decides each time anew."""
    return str(when) if type(when).__str__ is not object.__str__ else f"as {type(when).__name__}"
