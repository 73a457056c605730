"""Folder in which the ranks of one machine tell how they are and how they ended, and are told to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from assay.core.errors import PeerError, RankError
from assay.core.processes import describe_exit
from assay.core.signals import Obeyed, exception_for
from assay.engine.parallel.watchdog import WatchedRank, offer_stack
from assay.formats.json_codec import dataclass_from, parse_json, write_json
from assay.formats.lease import process_start
from assay.formats.task_report import TaskReport, read_report, write_report

JOB_PREFIX = "assay-ranks-"
"""Beginning of the names by which torch's launcher knows the ranks started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """Unexpected end of a rank."""

    rank: int
    pid: int
    how: str


def output_files(folder: Path, rank: int) -> list[Path]:
    """Return the files in `folder` into which a rank of this machine prints."""
    return sorted(folder.glob(f"*/attempt_*/{rank}/std*.log"))


def describe_death(code: int) -> str:
    """Say how a rank ended that reported nothing, from its exit code; -N is signal N."""
    return describe_exit(code) + (", without a word" if code >= 0 else "")


_HEARD = "heard"
_ORDER = "order.json"
LOOK_S = 0.25
_TELLING_S = 0.02
SECONDS_TO_TELL = 1.0
"""Seconds that a report of another rank's end may take."""
OWN_END_S = 0.5
"""Seconds that the main thread of a rank has to end by itself, after an order."""
SECONDS_TO_OBEY = 10.0
"""Seconds that a rank may take to end by an order, its record included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOrder:
    """Order to all ranks to end at once.

    `cause` is printed for the person; `signal` is the one behind it, 0 for none.
    """

    cause: str
    signal: int = 0

    @property
    def reason(self) -> str:
        """Reason for the record, in one line."""
        first = self.cause.split("\n", 1)[0]
        return (
            f"{signal.Signals(self.signal).name}: {first}" if self.signal else f"RankError: {first}"
        )


class RankFolder:
    """Files through which the ranks of one machine report to their launcher.

    Each file is written atomically.

    A rank writes its process id when it begins, signs of life meanwhile, and a report when it has
    ended. Whoever watches writes that in the place of a rank that cannot. `launcher` is the folder
    of the process that started them, if that is assay.
    """

    def __init__(self, path: Path, *, launcher: Path | None = None) -> None:
        self.path = path
        self.launcher = launcher

    def begin(self, rank: int) -> None:
        """Register the calling OS process as this rank, and let others ask for its stack."""
        self.path.mkdir(exist_ok=True)
        self._report_file(rank).unlink(
            missing_ok=True
        )  # only one of several machines counts a restart
        offer_stack(self.stack(rank))
        (self.path / f"pid-{rank}").write_text(str(os.getpid()), encoding="utf-8")

    def beat(self, rank: int) -> Path:
        return self.path / f"beat-{rank}"

    def stack(self, rank: int) -> Path:
        return self.path / f"stack-{rank}"

    def ranks(self) -> dict[int, int]:
        """Process ids of the ranks that have begun; 0 for one that is just about to."""
        return {
            int(file.name.partition("-")[2]): int(read_if_there(file) or 0)
            for file in self.path.glob("pid-*")
        }

    def pids(self) -> dict[int, int]:
        """Process ids of the ranks that have begun and have not told how they ended."""
        return {
            rank: pid
            for rank, pid in self.ranks().items()
            if pid and not self._report_file(rank).exists()
        }

    def watched_ranks(self) -> list[WatchedRank]:
        """Return the same ranks, with the files of their signs of life."""
        return [
            WatchedRank(rank=rank, pid=pid, beat=self.beat(rank), stack=self.stack(rank))
            for rank, pid in self.pids().items()
        ]

    def report(self, rank: int, report: TaskReport) -> None:
        """Write how a rank has ended."""
        write_report(self._report_file(rank), replace(report, ended_s=time.monotonic()))

    def report_failure(self, rank: int, error: str) -> None:
        """Write that a rank failed, in its place: it cannot do so any more."""
        self.report(rank, TaskReport(status="failed", error=error))

    def report_death(self, rank: int, error: str) -> None:
        """Write the end of a rank that is gone without a word.

        One that was ordered to end after a signal was killed for not obeying: it has not failed.
        """
        order = self.given_order()
        if order is None or not order.signal:
            self.report_failure(rank, error)
        else:
            self.report(rank, TaskReport(status="stopped", signal=order.signal))

    def reports(self) -> dict[int, TaskReport]:
        """Return the reports of the ranks that have ended, by rank."""
        files = self.path.glob("ended-*.json")
        return {int(file.stem.partition("-")[2]): read_report(file) for file in files}

    def error(self) -> str:
        """Return the first error that did not follow from another rank's end, "" for none."""
        failed = [each for each in self.reports().values() if each.error and not each.follows]
        return min(failed, key=lambda each: each.ended_s).error if failed else ""

    def ended_by(self, *, patience_s: float = 0.0) -> str:
        """Return the cause that ended ranks: the first error, or a vanished rank; "" if none.

        A launcher reports how a rank died a moment after its death: `patience_s` waits for that.
        """
        until = time.monotonic() + patience_s
        while True:
            # Before the errors: a death that is told in between is found there.
            gone = {rank: pid for rank, pid in self.pids().items() if process_start(pid) is None}
            error = self.error()
            if error or not gone or time.monotonic() >= until:
                break
            time.sleep(_TELLING_S)
        return error or next(
            (f"Rank {rank} (pid {pid}) ended without a word." for rank, pid in gone.items()),
            "",
        )

    def signal(self) -> int:
        """Return the signal that ended the first of the ranks that a signal ended, 0 for none."""
        signalled = [each for each in self.reports().values() if each.signal]
        return min(signalled, key=lambda each: each.ended_s).signal if signalled else 0

    def first_departure(self) -> tuple[int, float] | None:
        """Return signal and time (monotonic) of the first rank that ended before its run did.

        The signal is 0 for a rank that failed; None while no rank has ended so.
        """
        early = [each for each in self.reports().values() if each.status != "finished"]
        if not early:
            return None
        first = min(early, key=lambda each: each.ended_s)
        return first.signal, first.ended_s

    def launcher_signal(self) -> int:
        """Return the first signal that the launcher heard, 0 without one."""
        return heard_signal(self.launcher) if self.launcher is not None else 0

    def order(self, order: EndOrder) -> None:
        """Order all ranks to end at once."""
        write_json(self.path / _ORDER, order, durable=False)

    def given_order(self) -> EndOrder | None:
        """Return the order that was given, None without one."""
        with suppress(FileNotFoundError):
            return dataclass_from(EndOrder, parse_json((self.path / _ORDER).read_bytes()))
        return None

    @contextmanager
    def under_orders(
        self, end: Callable[[EndOrder], object], hear: Callable[[int], object]
    ) -> Iterator[None]:
        """Call `end` in a thread of its own once an order was given, until the block is left.

        `hear` is called there with the first signal of the launcher: a main thread that waits in a
        collective hears of none.
        """
        is_over = threading.Event()

        def look() -> None:
            number = 0
            while not is_over.wait(LOOK_S):
                if not number and (number := self.launcher_signal()):
                    hear(number)
                order = self.given_order()
                if order is not None and not is_over.wait(OWN_END_S):
                    end(order)
                    return

        thread = threading.Thread(target=look, name="assay-orders", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _report_file(self, rank: int) -> Path:
        return self.path / f"ended-{rank}.json"


def pass_on_heard(launcher: Path, number: int) -> None:
    """Tell all ranks that `launcher` started that it heard a signal."""
    (launcher / _HEARD).write_text(str(number), encoding="utf-8")


def heard_signal(launcher: Path) -> int:
    """Return the first signal that a launcher heard, 0 without one."""
    return int(read_if_there(launcher / _HEARD) or 0)


class DeathReports:
    """Check of a launcher: reports how a rank has ended that said nothing, once it is gone.

    A thread waits for each rank, because torch's launcher, which waits too, tells only when all
    have ended.
    """

    def __init__(self, folder: Callable[[], RankFolder]) -> None:
        self.folder = folder
        self._known: set[int] = set()

    def __call__(self) -> None:
        folder = self.folder()
        for rank, pid in folder.pids().items():
            if pid not in self._known:
                self._known.add(pid)
                threading.Thread(target=_await_death, args=(folder, rank, pid), daemon=True).start()


def _await_death(folder: RankFolder, rank: int, pid: int) -> None:
    try:
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except (AttributeError, ChildProcessError):  # no such call on macOS; or torch was quicker
        return
    if end is None or rank not in folder.pids():
        return
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    with suppress(OSError):  # all are over, and the folder is gone
        folder.report_death(rank, f"Rank {rank} (pid {pid}) {describe_death(code)}.")


def error_behind(error: BaseException, ranks: RankFolder | None) -> BaseException:
    """Return the error of another rank if `error` only says that it ended; else `error`."""
    if ranks is None:
        return error
    if isinstance(error, Obeyed) and not ranks.launcher_signal():
        # Torch's launcher ends with SIGTERM the ranks that are left when one has failed.
        cause = ranks.ended_by(patience_s=SECONDS_TO_TELL)
        return RankError(cause) if cause else error
    if not isinstance(error, PeerError):
        return error
    if ranks.given_order() is not None:
        # The other rank obeyed an order. The thread that obeys it here ends the record with its
        # cause, and then this process.
        time.sleep(SECONDS_TO_OBEY)
    until = time.monotonic() + SECONDS_TO_TELL
    while time.monotonic() < until:
        if cause := ranks.error():
            return RankError(cause)
        if number := ranks.signal():
            return exception_for(number)
        time.sleep(0.02)
    return RankError(cause) if (cause := ranks.ended_by()) else error


def is_ending(ranks: RankFolder | None) -> bool:
    """Return True if another rank of this run has failed or is gone."""
    return ranks is not None and bool(ranks.ended_by())


def read_if_there(file: Path) -> str:
    """Read a file, "" where there is none."""
    return file.read_text(encoding="utf-8") if file.exists() else ""


def folder_of_attempt(folder: Path, number: int) -> RankFolder:
    """Return the folder of the ranks that were started together, for the time `number`."""
    return RankFolder(folder / f"ranks-{number}", launcher=folder)


def newest_ranks(folder: Path) -> RankFolder:
    """Return the folder of the ranks that were started last."""
    numbers = [int(each.name.partition("-")[2]) for each in folder.glob("ranks-*")]
    return folder_of_attempt(folder, max(numbers, default=0))
