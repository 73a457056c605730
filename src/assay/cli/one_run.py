"""The argument RUN of commands that look at one run: without it the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from assay.cli.completion import complete_runs

LAST = "last"


def run_argument(metavar: str = "[RUN]") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the argument `run`, which is the last run where it is left out."""
    return click.argument("run", metavar=metavar, default=LAST, shell_complete=complete_runs)
