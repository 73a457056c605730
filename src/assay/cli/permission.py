"""`--trust`: what a person is asked before a record that was not made here runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from assay.cli.terminal import echo, width
from assay.core.terminal import fold

if TYPE_CHECKING:
    from assay.compose.trust import Foreign, Trust


def trust_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--trust` to a command that runs what a record says."""
    text = "Even if the run was not made here: what its config says runs on this machine, as you."
    return click.option("--trust", is_flag=True, help=text)(command)


def permission(trust: bool) -> Trust:
    """Return whether a foreign record may run: by the option, else by whom sits at the terminal."""
    if trust:
        return True
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else False


def say(line: str) -> None:
    """Tell where the code comes from."""
    for part in fold(line, width(sys.stderr)):
        echo(part, err=True)


def _ask(foreign: Foreign) -> bool:
    for line in foreign.lines():
        say(line)
    return click.confirm("Run it?", default=False, err=True)
