"""`assay.run`: configs in this OS process, or each in one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any

from assay.compose.launch_settings import Launch, RunResult
from assay.compose.run_many import run as run_in_process
from assay.config.loading import Config
from assay.core.errors import InputError
from assay.jobs.isolated_runs import IsolatedRuns


@wraps(run_in_process)
def run(*configs: Any, **settings: Any) -> list[RunResult]:
    return run_in_process(*configs, train_apart=train_apart, **settings)


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
    return IsolatedRuns(edit_test=edit_test, **settings).train(points)
