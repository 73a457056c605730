"""Options of the commands that put jobs in line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from assay.core.errors import InputError
from assay.core.job import FAILURES, TRANSIENT

_OPTIONS = (
    click.option("--priority", type=int, help="In the queue: higher ones start earlier."),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        metavar="N",
        help="In the queue: try up to N times; a run that has a checkpoint resumes from it.",
    ),
    click.option(
        "--retry",
        metavar="CLASSES",
        help="Failures after which it is tried again, from "
        + ", ".join(FAILURES)
        + f"; left out: {', '.join(TRANSIENT)}.",
    ),
    click.option(
        "--time-limit", metavar="HOURS", type=float, help="In the queue: stop it after these hours."
    ),
    click.option(
        "--hang-limit",
        metavar="MINUTES",
        type=click.FloatRange(min=0),
        help="In the queue: end it when it has stood still for so long; left out: only tell.",
    ),
    click.option(
        "--no-rehearse", is_flag=True, help="In the queue: check the config, but try no step of it."
    ),
)
NAMES = ("priority", "attempts", "retry", "time_limit", "hang_limit", "no_rehearse")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the place of jobs in line, and their attempts and limits."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def job_fields(
    *,
    priority: int | None,
    attempts: int | None,
    retry: str | None,
    time_limit: float | None,
    hang_limit: float | None,
    no_rehearse: bool,
) -> dict[str, Any]:
    """Return the arguments of `submit_configs` that the options give.

    InputError for a class that no failure has.
    """
    words = [word.strip() for word in (retry or "").split(",")]
    classes = tuple(filter(None, words)) if retry is not None else TRANSIENT
    for word in classes:
        if word not in FAILURES:
            raise InputError(
                f"`--retry` knows no failure `{word}`.", fix=f"it is one of {', '.join(FAILURES)}"
            )
    return {
        "is_rehearsed": not no_rehearse,
        "priority": priority or 0,
        "max_attempts": attempts or 1,
        "retry": classes,
        "time_limit_s": time_limit * 3600 if time_limit is not None else None,
        "hang_limit_s": hang_limit * 60 if hang_limit is not None else None,
    }
