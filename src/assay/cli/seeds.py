"""Seeds on the command line: how many, or which."""

from __future__ import annotations

import click

METAVAR = "N|SEED,.."
_MOST = 1000


def parse_seeds(text: str | int) -> int | tuple[int, ...]:
    """Return how many successive seeds are meant (`5`), or the seeds themselves (`1,2,3`)."""
    words = [word.strip() for word in str(text).split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
        raise click.BadParameter(f"`{text}` is neither a number nor seeds such as 1,2,3.")
    numbers = tuple(map(int, words))
    if len(set(numbers)) < len(numbers):
        raise click.BadParameter(f"`{text}` has a seed twice.")
    count = len(numbers) if len(numbers) > 1 else numbers[0]
    if not 1 <= count <= _MOST:
        own = "; --seed gives one of your own" if len(numbers) == 1 else ""
        raise click.BadParameter(f"{count} seeds are not 1 to {_MOST}{own}.")
    return numbers if len(numbers) > 1 else count
