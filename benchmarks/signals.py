"""Two hundred double signals, on one rank and on two: does the record tell the run's true end?

Each trial is one run that hears SIGINT or SIGTERM twice. The first comes at any moment from the
start of the process to some time after its end, the second between a millisecond and two seconds
later. With two ranks each of them goes to the launcher or to one of the ranks. What is left must be
true: `finished` only with the final checkpoint of the last step, `stopped` with the exit code of a
signal, never a run that seems to be running, was killed or has failed; and no process.

The processes are forked from this one, which has imported all that they need. Torch's launcher
starts the ranks.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from figures import Figure, machine, options, show
from soak import CONFIG, NET, POINTS, USED

from assay.cli.main import TASK_COMMAND
from assay.cli.main import main as assay
from assay.formats.manifest import pointed_name
from assay.query.run import RunView
from assay.store.layout import RUNS_DIR_VARIABLE, make_project, scan_runs
from assay.store.series import read_series

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOO_LONG_S = 60.0
LEAVE_S = 10.0
EARLY = 0.15
"""Of the first signals, those that are timed from the start of the process and not from the first step."""


def main(argv: Sequence[str] | None = None) -> int:
    """Signal runs twice and look what they left; 1 when anything is not true."""
    given = options("whether a run that is signalled twice says truly how it ended", argv)
    trials = {1: 2, 2: 1} if given.quick else {1: 200, 2: 200}
    for name in USED:
        importlib.import_module(name)
    gc.freeze()  # what is shared with the forked processes stays shared
    figures, is_true = [], True
    with tempfile.TemporaryDirectory(prefix="assay-signals-") as folder:
        make_project(Path(folder))
        texts = {
            "soak.toml": CONFIG.replace("accumulate = 2", ""),
            "net.py": NET,
            "points.py": POINTS,
        }
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
        for ranks, count in trials.items():
            counted = signalled(Path(folder), ranks, count, random.Random(ranks))
            wrong = counted.pop("wrong", 0)
            is_true = is_true and not wrong
            figures += [
                Figure(name=f"signals.{ranks}.{end}", value=counted[end])
                for end in ("unrecorded", "stopped", "finished")
            ]
            figures.append(Figure(name=f"signals.{ranks}.wrong", value=wrong, at_most=0))
    show("signals", figures, machine(), as_json=given.as_json)
    return int(not is_true)


def signalled(folder: Path, ranks: int, count: int, draw: random.Random) -> Counter[str]:
    """Runs that are signalled twice; how many ended how."""
    whole = Trial(folder, f"whole-{ranks}", ranks)
    begun = time.monotonic()
    whole.start()
    whole.wait_for_first_step()
    start_s = time.monotonic() - begun
    whole.wait()
    whole_s = time.monotonic() - begun - start_s
    steps = whole.view().file.newest.to_step
    print(
        f"{ranks}: {steps} steps, begun after {start_s:.1f} s, {whole_s:.1f} s long",
        file=sys.stderr,
        flush=True,
    )
    counted: Counter[str] = Counter()
    for number in range(count):
        is_early = draw.random() < EARLY
        plan = Plan(
            first_s=draw.random() * (start_s if is_early else 1.2 * whole_s),
            from_first_step=not is_early,
            second_s=10 ** draw.uniform(-3, 0.3),
            signals=(draw.choice(SIGNALS), draw.choice(SIGNALS)),
            targets=(draw.randrange(ranks + 1), draw.randrange(ranks + 1)) if ranks > 1 else (0, 0),
        )
        trial = Trial(folder, f"{ranks}-{number}", ranks)
        end, wrong = trial.signalled(plan, steps)
        counted[end] += 1
        counted["wrong"] += bool(wrong)
        told = f"trial {number + 1} of {count}, {plan}: {end}{f' WRONG: {wrong}' if wrong else ''}"
        if wrong or (number + 1) % 20 == 0:
            print(told, file=sys.stderr, flush=True)
        if wrong:
            print(trial.said.read_text(errors="replace"), file=sys.stderr, flush=True)
    return counted


@dataclass(frozen=True)
class Plan:
    """Times, kinds and targets of the two signals.

    The first comes `first_s` after the start or the first step, the second `second_s` after the
    first. Target 0 is the process that was started, others are ranks.
    """

    first_s: float
    from_first_step: bool
    second_s: float
    signals: tuple[signal.Signals, signal.Signals]
    targets: tuple[int, int]


class Trial:
    """One run, in a folder of runs of its own."""

    def __init__(self, folder: Path, name: str, ranks: int) -> None:
        self.folder, self.name, self.ranks = folder, name, ranks
        self.runs = folder / name
        self.said = folder / f"{name}.txt"
        self.pid = 0
        self.code: int | None = None

    def start(self) -> None:
        """Fork a process that is like `assay run` in the folder of the config."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            with open(self.said, "wb") as said, open(os.devnull, "rb") as nothing:
                for stream, number in ((nothing, 0), (said, 1), (said, 2)):
                    os.dup2(stream.fileno(), number)
            os.chdir(self.folder)
            os.environ.update(
                {
                    RUNS_DIR_VARIABLE: str(self.runs),
                    "XDG_DATA_HOME": str(self.folder),
                    "NO_COLOR": "1",
                }
            )
            arguments = ["run", "soak.toml", "--device", "cpu", "--nproc", str(self.ranks)]
            sys.argv = ["assay", *arguments]
            code = assay(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        except KeyboardInterrupt:  # as Python ends a program that lets it pass
            code = 128 + signal.SIGINT
        finally:
            os._exit(code)

    def signalled(self, plan: Plan, steps: int) -> tuple[str, str]:
        """Signal the run as planned; how it ended, and what is not true of it."""
        self.start()
        if plan.from_first_step:
            self.wait_for_first_step()
        self.wait(plan.first_s)
        self.send(plan.signals[0], plan.targets[0])
        self.wait(plan.second_s)
        self.send(plan.signals[1], plan.targets[1])
        self.wait()
        return self.judged(steps)

    def send(self, number: int, target: int) -> None:
        """Signal the process, or a rank if it is there."""
        pids = [self.pid, *self.rank_pids()]
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(pids[target if target < len(pids) else 0], number)

    def wait(self, seconds: float | None = None) -> None:
        """Until the process ends, or for so long."""
        until = time.monotonic() + (TOO_LONG_S if seconds is None else seconds)
        while self.code is None and time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            time.sleep(0.001)

    def wait_for_first_step(self) -> None:
        """Until the curve has a point, or the process ends."""
        while self.code is None and not any(len(each) for each in self.curves()):
            self.wait(0.005)

    def curves(self) -> list[object]:
        with suppress(Exception):  # what is not there yet
            return list(read_series(self.view().folder.metrics).values())
        return []

    def view(self) -> RunView:
        (entry,) = scan_runs(self.runs)
        return RunView(Path(entry.path))

    def judged(self, steps: int) -> tuple[str, str]:
        """How the run ended; and what is not true, "" for nothing."""
        if self.code is None:
            for process in self.left():
                process.kill()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return "hung", f"it had not ended after {TOO_LONG_S:.0f} s"
        if wrong := self.lingering():
            return "lingered", wrong
        if not self.runs.is_dir() or not list(scan_runs(self.runs)):
            return "unrecorded", "exit code 0 without a record" if self.code == 0 else ""
        view = self.view()
        final = pointed_name(view.folder.checkpoints, "final")
        match view.status:
            case "finished":
                is_true = bool(final) and view.file.newest.to_step == steps
                return (
                    "finished",
                    "" if is_true else f"final {final!r}, step {view.file.newest.to_step}",
                )
            case "stopped":
                codes = [
                    sign * each
                    for number in SIGNALS
                    for sign, each in ((1, 128 + number), (-1, number))
                ]
                return "stopped", "" if self.code in codes else f"exit code {self.code}"
            case status:
                return status, f"{view.status_text}, exit code {self.code}"

    def lingering(self) -> str:
        """What runs on after the end."""
        until = time.monotonic() + LEAVE_S
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        lines = []
        for each in left:
            with suppress(psutil.Error):
                lines.append(" ".join(each.cmdline())[:100])
                each.kill()
        return "; ".join(lines)

    def left(self) -> list[psutil.Process]:
        """Processes of this run but for the first."""
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.pid != self.pid and each.environ().get(RUNS_DIR_VARIABLE) == str(self.runs):
                    found.append(each)
        return found

    def rank_pids(self) -> list[int]:
        """The ranks that are there, by number."""
        found = {}
        for each in self.left() if self.ranks > 1 else ():
            with suppress(psutil.Error, KeyError):
                if TASK_COMMAND in each.cmdline():
                    found[int(each.environ()["RANK"])] = each.pid
        return [found[rank] for rank in sorted(found)]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
