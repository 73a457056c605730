"""`assay.run`: configs in this OS process, or each in one of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypedDict, Unpack, overload

from assay.compose.launch_settings import Launch, RunResult
from assay.compose.run_many import ConfigLike
from assay.compose.run_many import run as run_in_process
from assay.compose.testing import Edit
from assay.config.loading import Config
from assay.core.errors import InputError
from assay.core.terminal import for_terminal
from assay.jobs.isolated_runs import IsolatedRuns


class RunSettings(TypedDict, total=False):
    """Types of the settings of `assay.run`, whose defaults are those of `assay.compose.run`."""

    overrides: Mapping[str, Any] | Sequence[str]
    seed: int | None
    tag: str | None
    max_steps: int | None
    variant: str | Sequence[str]
    sweep: bool
    device: str | int | Sequence[str | int] | None
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    desc: str
    debug: bool
    no_file: bool
    then_test: bool
    edit_test: Edit | str | None
    check: bool
    isolate: bool | None
    stop_at_first: bool
    per_device: int
    trust: bool


# `| Any`: one file may be a sweep, whose result is a list; few callers should have to ask.
@overload
def run(configs: ConfigLike, **settings: Unpack[RunSettings]) -> RunResult | Any: ...
@overload
def run(
    configs: list[Any] | tuple[ConfigLike, ...], **settings: Unpack[RunSettings]
) -> list[RunResult]: ...
@wraps(run_in_process)
def run(configs: Any, **settings: Any) -> Any:
    return run_in_process(configs, train_apart=train_apart, **settings)


def train_apart(
    points: Iterable[tuple[Config, Launch]], *, edit_test: Any = None, **settings: Any
) -> Iterator[RunResult]:
    """Train configs in OS processes of their own; yield results in the order of the configs.

    InputError for a function as `edit_test`: only the name of one crosses to another OS process.
    """
    if edit_test is not None and not isinstance(edit_test, str):
        raise InputError(
            "A run in an OS process of its own cannot be given a function.",
            fix='name it: edit_test="module.function"',
        )
    shown: dict[str, Any] = {"show": _show, **settings}
    return IsolatedRuns(edit_test=edit_test, **shown).train(points)


def _show(text: str) -> None:
    """Write what a run prints where Python's `sys.stderr` goes: in a notebook, below the cell."""
    if text:
        sys.stderr.write(for_terminal(text, color=False))
        sys.stderr.flush()
