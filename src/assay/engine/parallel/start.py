"""Several processes of one run, started and watched by torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set for the launcher: else a second attempt finds addresses of the processes of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that did not end by itself as it should."""

    rank: int
    pid: int
    how: str


def start(arguments: Sequence[str], count: int, *, folder: Path, max_restarts: int = 0) -> list[Death]:
    """Run `python ARGUMENTS` in `count` processes and return when all have ended; who died, the first one first.

    All are ended when one dies, and started again up to `max_restarts` times; then it is about the last of these times.
    What ranks other than 0 print goes to files under `folder`.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    elsewhere = {rank: Std.ALL for rank in range(1, count)}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        max_restarts=max_restarts,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.1,
        run_id=folder.name,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=elsewhere),
    )
    # What torch would log about the end of a process is told by who called this.
    logger = logging.getLogger("torch.distributed.elastic")
    level, before = logger.level, os.environ.get(STORE_VARIABLE)
    logger.setLevel(logging.CRITICAL)
    os.environ[STORE_VARIABLE] = "1"
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        return [Death(rank=rank, pid=each.pid, how=_how(each.exitcode)) for rank, each in failures]
    except SignalException:
        return []  # it was sent on to all of them, and they have ended
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ[STORE_VARIABLE]
        else:
            os.environ[STORE_VARIABLE] = before
    return []


def output_of(folder: Path, rank: int) -> str:
    """What a process printed to `folder`."""
    files = sorted(folder.glob(f"*/attempt_*/{rank}/std*.log"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
