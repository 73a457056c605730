"""Settings of one launch, and the result of the run that it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

from assay.config.loading import Config
from assay.core.devices import device_names
from assay.core.errors import InputError
from assay.core.event_log import EndStatus
from assay.core.json_codec import from_plain
from assay.core.run_file import Code
from assay.query.run import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings of one launch, from the command line; kept in `run.json`, never in the config.

    `nproc` processes on each of `nnodes` machines.

    `device`: one, or a list such as `cuda:0,1` that several runs take in turn; None: the
    accelerator if there is one. `stop_at`: the step at which the run is left although it is planned
    longer, as by a signal if `is_interrupted`. `traced_from`: the step from which every step is
    traced at the full level, whatever the config says. `sweep` is the id that the runs of one
    sweep share, `point` the number of this one among them, where the config does not say it, and
    `search` the settings of the search that they belong to. `code` is the snapshot that this
    process runs, where it is not that of the project as it is now.
    """

    device: str | None = None
    desc: str = ""
    debug: bool = False
    no_file: bool = False
    quiet: bool = False
    max_steps: int | None = None
    weights_from: str = ""
    nproc: int | None = None
    max_restarts: int = 0
    nnodes: int = 1
    node_rank: int | None = None
    rendezvous: str = ""
    ranks_folder: str = ""
    after: str = ""  # why this process was started again, which nobody typed
    stop_at: int | None = None
    is_interrupted: bool = False
    traced_from: int | None = None
    sweep: str = ""
    point: str = ""
    search: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    code: Mapping[str, Any] = field(default_factory=dict)

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices; InputError for text that names none."""
        return device_names(self.device) if self.device is not None else ()

    def frozen_code(self) -> Code | None:
        """Return the snapshot that this process runs; None for that of the project as it is now."""
        return from_plain(Code, dict(self.code)) if self.code else None

    def recorded(self) -> dict[str, Any]:
        always = {"device": self.device or "auto", "debug": self.debug, "no_file": self.no_file}
        unless_default = {
            "max_steps": self.max_steps,
            "from": self.weights_from or None,
            "nproc": self.nproc,
            "sweep": self.sweep or None,
            "point": self.point or None,
            "search": dict(self.search) or None,
            "nnodes": self.nnodes if self.nnodes > 1 else None,
            "max_restarts": self.max_restarts or None,
        }
        return {
            **always,
            **{key: value for key, value in unless_default.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult:
    """End of a run.

    `record_dir` is None with `no_file`; `exception` is the error of a run that failed; `value` has
    its metrics.

    "crashed" is the end of a run whose OS process died without a result. `test`: how the test that
    followed it ended, when one was asked for. `is_first`: not of the processes of a run that leave
    it to another one to record and to tell. `signal` was heard meanwhile, 0 for none: whoever has
    more to do ends, even if this run came to its own end. `note` is for the person: what could not
    be kept, what was tested. `reason` says why the run ended.
    """

    record_dir: Path | None
    config: Config | None
    status: EndStatus | Literal["crashed"]
    value: Mapping[str, float] = field(default_factory=dict)
    exception: BaseException | None = None
    exit_code: int = 0
    id: str = ""
    step: int = 0
    test: RunResult | None = None
    is_first: bool = True
    signal: int = 0
    note: str = ""
    reason: str = ""

    @property
    def run(self) -> RunView:
        """The record of the run. InputError for one that left none."""
        if self.record_dir is None:
            raise InputError("This run left no record.", fix="leave out no_file=True")
        return RunView(self.record_dir)

    def __repr__(self) -> str:
        values = [f"{name} {value:.4g}" for name, value in self.value.items()]
        error = "" if self.exception is None else str(self.exception).strip().split("\n")[0]
        words = [self.id, self.status, f"step {self.step}", *values, error]
        return f"<RunResult {', '.join(filter(None, words))}>"

    def _repr_html_(self) -> str:
        return (
            self.run._repr_html_()
            if self.record_dir is not None
            else f"<pre>{escape(repr(self))}</pre>"
        )
