"""Calls in copies of this OS process: what they load, cache and count stays there.

Until data are loaded here, such a copy is in the state of an OS process that resumes a run.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from assay.core import signals
from assay.core.parent_death import end_with, main_pid

LIMIT_S = 60.0
"""Seconds that a call may take. A lock that another thread held at the fork is never released."""


class CopyError(Exception):
    """A copy of this OS process could not be made, or did not return a value; says why."""


def call_in_copies(*functions: Callable[[], Any], limit_s: float | None = LIMIT_S) -> list[Any]:
    """Call each function in a copy of its own, all at the same time; return their values.

    The values are pickled. CopyError where no copy can be made, for a function that raises or whose
    process dies, and for one that is still busy after `limit_s`.
    """
    try:
        context: Any = multiprocessing.get_context("fork")
    except ValueError:
        raise CopyError("this system cannot copy an OS process") from None
    with _start_copies(context, functions) as connections:
        return [_receive(connection, limit_s) for connection in connections]


@contextmanager
def _start_copies(
    context: Any, functions: Sequence[Callable[[], Any]]
) -> Iterator[list[Connection]]:
    """Start a copy for each function; kill what is left of them at the end."""
    parent = main_pid()
    processes, connections = [], []
    try:
        for function in functions:
            mine, theirs = context.Pipe(duplex=False)
            connections.append(mine)
            process = context.Process(
                target=_answer, args=(function, theirs, parent), name="assay-trial"
            )
            with warnings.catch_warnings():
                # Python 3.12 warns of threads, which are not in the copy and which it does not use.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            processes.append(process)
        yield connections
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for connection in connections:
            connection.close()


def _receive(connection: Connection, limit_s: float | None) -> Any:
    if not connection.poll(limit_s):
        raise CopyError(f"its first samples were not loaded within {limit_s:.0f} s")
    try:
        value, error = pickle.loads(connection.recv_bytes())
    except EOFError:
        raise CopyError("an OS process that loaded its first samples died") from None
    if error:
        raise CopyError(f"it could not be loaded in a copy of this OS process: {error}")
    return value


def _answer(function: Callable[[], Any], connection: Connection, parent: int) -> None:
    """Send what `function` returns, or the error that it raises; print nothing."""
    if parent:
        end_with(parent)
    signals.ignore()
    sys.stdout = sys.stderr = silence = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(silence.fileno(), 1)
    os.dup2(silence.fileno(), 2)
    torch.set_num_threads(1)  # the threads of OpenMP are not in a forked copy
    try:
        answer = pickle.dumps((function(), ""))
    except Exception as error:  # of the user's data: the first batch raises it again
        answer = pickle.dumps((None, f"{type(error).__name__}: {error}"))
    connection.send_bytes(answer)
