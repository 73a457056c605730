"""Symbol table of alchemy: the members that it names otherwise than a run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.build import SymbolTable as OwnSymbolTable
from assay.build import current


class TrainSched:
    """Counters of training by alchemy's names; everything else is that of the state.

    `cur_epoch` and `cur_step` count from 0, and at the end of an epoch or a step they still name
    the one that ends.
    """

    def __init__(self, state: Any, *, ends_epoch: bool = False, ends_step: bool = False) -> None:
        self._state = state
        self._ended = (int(ends_epoch), int(ends_epoch or ends_step))

    @property
    def cur_epoch(self) -> int:
        return int(self._state.epoch) - self._ended[0]

    @property
    def cur_step(self) -> int:
        return int(self._state.step) - self._ended[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class AlchemySymbols(OwnSymbolTable):
    """Symbol table with `task`, `train_sched`, `debug`, `no_file` and `checkpt_dir` of alchemy."""

    __slots__ = ()

    @property
    def task(self) -> Any:
        """Task of the config; the process where there is none."""
        found = self.try_get("task")
        return self._member("process") if found is None else found

    @property
    def train_sched(self) -> TrainSched:
        ending = self.try_get("alchemy_ending", "")
        return TrainSched(
            self._member("state"), ends_epoch=ending == "epoch", ends_step=ending == "step"
        )

    @property
    def debug(self) -> bool:
        """Return True for a run that was launched with `--debug`."""
        return bool(self.try_get("debug", False))

    @property
    def no_file(self) -> bool:
        """Return True for a run that keeps no record."""
        return self.try_get("record_dir") is None

    @property
    def checkpt_dir(self) -> Path | None:
        """Folder of the checkpoints; None without a record."""
        found = self.try_get("record_dir")
        return None if found is None else Path(found) / "checkpt"


def sym_tbl() -> AlchemySymbols:
    """Return the symbol table of the run that is open here."""
    return AlchemySymbols(current())
