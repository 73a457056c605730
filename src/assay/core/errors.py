"""Errors raised on purpose: each says what is wrong, where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import ClassVar

from assay.core.diagnostics import Problem, render

_LISTED = 10
"""Names that a message lists."""


class AssayError(Exception):
    """Base of every error raised on purpose.

    `what` is one sentence in the user's words, `where` the place they would look at, `fix` what to
    do next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        lines = [what, f"  at:  {where}" if where else "", f"  fix: {fix}" if fix else ""]
        super().__init__("\n".join(line for line in lines if line))
        self.what = what
        self.where = where
        self.fix = fix


class InputError(AssayError):
    """Mistake in the user's input; nothing was started and nothing is lost."""

    exit_code = 2


class ConflictError(InputError):
    """Edited data was changed by somebody else meanwhile."""


class ConfigError(InputError):
    """Config with mistakes; carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(render(problems, color=False))
        self.problems = tuple(problems)


class ArgumentError(InputError):
    """Mistake inside an argument. `inside` is the path from the argument on: ("rules", 0, "match").

    Raised by an object that a config builds; reported at its place in the config.
    """

    def __init__(self, what: str, *, inside: Sequence[str | int], fix: str = "") -> None:
        super().__init__(f"{what}.", where=".".join(map(str, inside)), fix=fix)
        self.said = what
        self.inside = tuple(inside)


class MissingExtraError(InputError):
    """Optional dependency that a feature needs and that is not installed."""

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra `{extra}`.", fix=f"pip install 'assay[{extra}]'"
        )
        self.extra = extra


class RecordError(AssayError):
    """Run folder that cannot be written or read."""


class CheckpointError(AssayError):
    """Checkpoint that cannot be written or read."""


class MissingCheckpointError(CheckpointError, InputError):
    """Name of a checkpoint that a run does not have."""


class UnfitCheckpointError(CheckpointError, InputError):
    """Checkpoint of another model, optimizer or process than those that are to take it."""


class PeerError(AssayError):
    """Loss of another process of this run, which ended or does not answer."""


class RankError(AssayError):
    """Failure of a process of the run, which raised, hung, or was killed."""


class LeaseError(InputError):
    """Record whose lease another OS process holds."""


MAX_WORD = 100
"""Characters of a mistyped word; comparing longer ones takes the product of their lengths."""

_comparisons_left: ContextVar[list[int] | None] = ContextVar("comparisons_left", default=None)


@contextlib.contextmanager
def few_suggestions(comparisons: int = 20_000) -> Iterator[None]:
    """Limit the pairs of words that code in this block compares; past it, suggest nothing.

    Nobody reads the last of ten thousand mistakes, but each would be compared with every name.
    """
    if _comparisons_left.get() is not None:  # around this there is a bound already
        yield
        return
    token = _comparisons_left.set([comparisons])
    try:
        yield
    finally:
        _comparisons_left.reset(token)


def can_suggest(comparisons: int = 0) -> bool:
    """Count comparisons towards `few_suggestions`; return whether any were left before."""
    left = _comparisons_left.get()
    if left is None:
        return True
    had_some = left[0] > 0
    left[0] -= comparisons
    return had_some


def nearest(word: str, choices: Iterable[str], n: int = 1, *, cutoff: float = 0.6) -> list[str]:
    """Return the up to `n` choices most like `word`, best first; a `cutoff` of 1 means equal.

    >>> nearest("trian", ["train", "tag", "data"])
    ['train']
    >>> nearest("zzz", ["train"])
    []
    """
    if len(word) > MAX_WORD or not can_suggest():
        return []
    by_lower = {choice.lower(): choice for choice in choices if len(choice) <= MAX_WORD}
    can_suggest(len(by_lower))
    import difflib  # only where something is wrong

    return [
        by_lower[near]
        for near in difflib.get_close_matches(word.lower(), by_lower, n=n, cutoff=cutoff)
    ]


def did_you_mean(word: str, choices: Iterable[str], n: int = 1, *, cutoff: float = 0.6) -> str:
    """Return `did you mean `x`?` with up to `n` names, or "" when nothing is near.

    >>> did_you_mean("optimiser", ["optimizer", "model"])
    'did you mean `optimizer`?'
    >>> did_you_mean("resnet10", ["resnet18", "resnet101", "vgg"], 3)
    'did you mean `resnet101` or `resnet18`?'
    """
    return suggestion(nearest(word, choices, n, cutoff=cutoff))


def choose(word: str, choices: Iterable[str], there: str = "there are", *, n: int = 1) -> str:
    """Return the fix for a `word` that is not among `choices`.

    That is the nearest choices, else the first ten, else "".

    >>> choose("trian", ["train", "valid"]), choose("x", ["train", "valid"], "it has")
    ('did you mean `train`?', 'it has train, valid')
    """
    known = list(dict.fromkeys(choices))
    listed = (
        f"{there} {', '.join(known[:_LISTED])}{', ...' if known[_LISTED:] else ''}" if known else ""
    )
    return did_you_mean(word, known, n) or listed


def suggestion(names: Sequence[str]) -> str:
    """Return the question that offers `names`, or "" without any.

    >>> suggestion(["a", "b", "c"])
    'did you mean `a`, `b` or `c`?'
    """
    quoted = [f"`{name}`" for name in names]
    listed = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)
    return f"did you mean {listed}?" if names else ""
