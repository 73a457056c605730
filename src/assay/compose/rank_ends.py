"""Ends of the ranks of a run: what each tells, and what the launcher makes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch_settings import RunResult
from assay.compose.other_process import report_of
from assay.compose.run_record import secrets_of
from assay.config.loading import Config
from assay.core.directory import make_directory, open_directory
from assay.core.errors import AssayError, PeerError, RankError
from assay.core.signals import Obeyed, obeyed
from assay.core.task_report import TaskReport
from assay.query.find import find
from assay.record.ending import ending
from assay.store.layout import RunFolder

if TYPE_CHECKING:
    from assay.engine.parallel.rank_exit import RankExit
    from assay.engine.parallel.rank_folder import RankFolder


def read_result(
    folder: Path, local_count: int, config: Config, deaths: Sequence[RankExit], signal: int
) -> RunResult:
    """Return the result of the run from the reports of its ranks, and keep their output."""
    from assay.engine.parallel.rank_folder import newest_ranks, read_text

    newest = newest_ranks(folder)
    reports = newest.reports()
    first = reports.get(0, TaskReport())
    place = first.record_dir or read_text(folder / "folder")
    record = Path(place) if place else None
    least = min(newest.ranks(), default=0)
    if record is not None and not first.run:
        # Rank 0 is gone without a word, or on another machine.
        view = find(str(record))[0]
        step = max((each.step or 0 for each in view.checkpoints), default=0)
        first = replace(first, run=view.id, step=step)
    if record is not None:
        _keep_output(folder, RunFolder(record), least, local_count, config)
    if least and reports:  # rank 0 of another machine reports there
        first = replace(reports[min(reports)], run=first.run, step=first.step)
    return RunResult(
        record_dir=record,
        config=config,
        value=first.value,
        id=first.run,
        step=first.step,
        reason=first.end_reason,
        is_first=least == 0,
        **outcome_of(newest, first, deaths, signal),
    )


def _keep_output(
    folder: Path, record: RunFolder, least: int, local_count: int, config: Config
) -> None:
    """Append the output of every rank but the machine's first to its file in the record."""
    from assay.engine.parallel.rank_exit import read_output

    for local in range(1, local_count):
        kept = record.ranks / f"{least + local}.txt"
        make_directory(kept.parent)
        with open_directory(kept.parent) as ranks:
            descriptor = ranks.open(kept.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(secrets_of(config).clean(read_output(folder, local)))


def outcome_of(
    ranks: RankFolder, first: TaskReport, deaths: Sequence[RankExit], number: int
) -> dict[str, Any]:
    """Return the end of the run as arguments of a RunResult.

    `first` is the report of rank 0; `number` is the signal of the launcher, 0 for none.

    A run that came to its own end is finished, whatever signal came late; after a signal nothing
    else is a failure, but a rank that hung is told.
    """
    number = number or (0 if ranks.error() else ranks.signal())
    if first.status == "finished" and not ranks.error():
        return {
            "status": "finished",
            "signal": number,
            "note": first.note,
            "exit_code": first.exit_code,
        }
    if number:
        order = ranks.ordered()
        hung = RankError(order.cause) if order is not None else None
        return {"status": "stopped", "exception": hung, "exit_code": 128 + number, "signal": number}
    cause = _first_cause(ranks.reports(), ranks.error(), deaths)
    if cause is not None:
        # Rank 0 may have obeyed the SIGTERM by which torch ends the ranks that are left.
        code = first.exit_code if first.status == "failed" else 1
        return {"status": "failed", "exception": cause, "exit_code": code or 1}
    if not first.status:
        return {"status": "failed", "exit_code": 1}
    return {"status": first.status, "exit_code": first.exit_code}


def _first_cause(
    reports: Mapping[int, TaskReport], own: str, deaths: Sequence[RankExit]
) -> AssayError | None:
    """Return the first error of a rank; those that follow from it are left out."""
    if own:
        return RankError(own)
    silent = [death for death in deaths if death.rank not in reports]
    if silent:
        death = silent[0]
        return RankError(f"Rank {death.rank} (pid {death.pid}) {death.how}.")
    following = [report.error for report in reports.values() if report.error]
    return RankError(following[0]) if following else None


def rank_report(result: RunResult, rank: int) -> TaskReport:
    """Return the report of a rank: its error as it is printed for a person."""
    report = report_of(result)
    if report.status != "failed" or result.exception is None:
        return replace(report, error="")
    return replace(report, error=_rank_error(result.exception, rank))


def _rank_error(error: BaseException, rank: int) -> str:
    """Return the error of a rank as text: the error first, then its traceback."""
    where = f"On rank {rank}: " if rank else ""
    if isinstance(error, AssayError):
        return where + "\n  ".join([str(error), *getattr(error, "__notes__", ())])
    head = f"{type(error).__name__}: {error}"
    before, _, after = ending(error)[2].rpartition(f"\n{head}")
    return f"{where}{head}\n{before}{after}".rstrip()


def cause_of(error: BaseException, ranks: RankFolder | None) -> BaseException:
    """Return the error of another rank if `error` only says that it ended; else `error`."""
    if ranks is None:
        return error
    from assay.engine.parallel.rank_folder import SECONDS_TO_OBEY, SECONDS_TO_TELL

    if isinstance(error, Obeyed) and not ranks.heard():
        # Torch's launcher ends with SIGTERM the ranks that are left when one has failed.
        cause = ranks.ended_by(patience_s=SECONDS_TO_TELL)
        return RankError(cause) if cause else error
    if not isinstance(error, PeerError):
        return error
    if ranks.ordered() is not None:
        # The other rank obeyed an order. The thread that obeys it here ends the record with its
        # cause, and then this process.
        time.sleep(SECONDS_TO_OBEY)
    until = time.monotonic() + SECONDS_TO_TELL
    while time.monotonic() < until:
        if cause := ranks.error():
            return RankError(cause)
        if number := ranks.signal():
            return obeyed(number)
        time.sleep(0.02)
    return RankError(cause) if (cause := ranks.ended_by()) else error


def is_ending(ranks: RankFolder | None) -> bool:
    """Return True if another rank of this run has failed or is gone."""
    return ranks is not None and bool(ranks.ended_by())
