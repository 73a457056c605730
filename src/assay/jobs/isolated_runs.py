"""`assay.run`: configs in this OS process, or each in one of its own, several at once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, TypedDict, Unpack, overload

from assay.compose.launch import Launch, RunResult
from assay.compose.run_many import ConfigLike
from assay.compose.run_many import run as run_in_process
from assay.compose.testing import Edit
from assay.config.loading import Config
from assay.core.errors import InputError
from assay.core.signals import Signals, answering
from assay.core.terminal import for_terminal
from assay.jobs.isolated_process import IsolatedLauncher, IsolatedProcess
from assay.jobs.job_folder import LogReader

_ROUND_S = 1.0
_SHOW_S = 0.2


@dataclass(slots=True)
class IsolatedRuns:
    """Trainer of configs in OS processes: as many at once as devices are free.

    `edit_test` names a function that changes the config of the test. `stop_at_first`: after a
    failure no further config is started; those that run go on. `per_device`: how many share a
    device, 0 for one. `show` gets what the runs print, of one run after another in the order of the
    configs. `tells_ends`: a run prints how it ended, too. `waits`: for devices that others hold.
    """

    then_test: bool = False
    edit_test: str | None = None
    stop_at_first: bool = False
    per_device: int = 0
    show: Callable[[str], object] = lambda text: None
    tells_ends: bool = False
    waits: bool = True
    _children: dict[int, IsolatedProcess] = field(default_factory=dict)
    _ended: dict[int, RunResult] = field(default_factory=dict)
    _signal: int = 0
    _is_stopping: bool = False
    _has_told_waiting: bool = False

    def train(self, points: Iterable[tuple[Config, Launch]]) -> Iterator[RunResult]:
        """Yield results in the order of the configs, whichever ends first.

        After a signal, also to one of the runs alone, and after a failure with `stop_at_first`,
        there are fewer results.
        InputError for devices that are not there, or that others hold unless it `waits`.
        """
        waiting = list(enumerate(points))[::-1]
        launcher = IsolatedLauncher(per_device=self.per_device, tells_ends=self.tells_ends)
        for _, (_, launch) in waiting:
            launcher.check_devices(launch)
        yielded = 0
        with launcher, answering(partial(self._hear, launcher)):
            log = LogReader(launcher.job_folder("0").log)
            while waiting or self._children:
                self._collect(launcher)
                if self._is_stopping:
                    waiting.clear()
                while self._start_next(waiting, launcher):
                    pass
                while yielded in self._ended:
                    self.show(log.read(is_last=True))
                    yield self._ended[yielded]
                    yielded += 1
                    log = LogReader(launcher.job_folder(str(yielded)).log)
                self._wait(log, launcher)

    def _wait(self, log: LogReader, launcher: IsolatedLauncher) -> None:
        """Show what a run prints until a run ends, a signal comes, or a device may be free."""
        until = time.monotonic() + _ROUND_S
        while (self._children or not self._is_stopping) and time.monotonic() < until:
            self.show(log.read())
            if launcher.await_end(_SHOW_S):
                return

    def _start_next(
        self, waiting: list[tuple[int, tuple[Config, Launch]]], launcher: IsolatedLauncher
    ) -> bool:
        """Start the next config, if a device is free; return True if it was started."""
        if not waiting or self._is_stopping:
            return False
        number, (config, launch) = waiting[-1]
        how: dict[str, Any] = {"then_test": self.then_test, "edit_test": self.edit_test}
        child = launcher.start(str(number), config, launch, **how)
        if child is None:
            self._tell_waiting(launcher)
            return False
        waiting.pop()
        self._children[number] = child
        return True

    def _tell_waiting(self, launcher: IsolatedLauncher) -> None:
        """Say once who has the devices, when nothing of this launcher runs; InputError instead."""
        if self._children:
            return
        if not self.waits:
            raise InputError("No device is free.", where=launcher.describe_holders())
        if not self._has_told_waiting:
            self._has_told_waiting = True
            self.show(f"{launcher.describe_holders()}\n")

    def _collect(self, launcher: IsolatedLauncher) -> None:
        """Turn OS processes that have ended into results, and free their devices."""
        if self._signal:
            launcher.ask_all_to_end()  # one may have begun while the signal came
        for number, child in list(self._children.items()):
            if not child.has_ended():
                continue
            result = self._ended[number] = launcher.end(child, self._signal)
            del self._children[number]
            if result.status == "stopped" or (self.stop_at_first and result.status != "finished"):
                self._is_stopping = True

    def _hear(self, launcher: IsolatedLauncher, signals: Signals, number: int) -> None:
        """Ask all runs to stop and save; a second signal kills them."""
        self._signal, self._is_stopping = number, True
        launcher.ask_all_to_end(at_once=len(signals.heard) > 1)


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
