"""`assay events`."""

from __future__ import annotations

import click

from assay.cli.one_config import one_config, read_config
from assay.cli.terminal import echo
from assay.core.events import When


@click.command(
    name="events",
    help="List the callbacks of a config's run in the order of their calls.",
)
@one_config
def command(arguments: tuple[str, ...], variant: str | None, trust: bool) -> int:
    config = read_config("events", arguments, variant, trust=trust)
    from assay.compose import listeners

    found = listeners(config)
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
