"""One run, to look at: everything its folder tells, read when it is asked for."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config.references import outside_used
from assay.config.sources import toml
from assay.config.tree import Table, plain
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError, RecordError, choose
from assay.core.formatting import duration, number
from assay.core.ids import id_of_folder
from assay.core.regular_file import read_bytes
from assay.core.secrets.names import is_redacted
from assay.formats import lease as leases
from assay.formats import manifest as manifests
from assay.formats import run_file
from assay.formats.event_log import Edit, Timed, labels_of, read_edits, read_events
from assay.formats.json_codec import dataclass_from, parse_numbers
from assay.formats.manifest import Checkpoint
from assay.formats.run_file import (
    IMPORTED,
    UNSAVED,
    Attempt,
    Best,
    Code,
    Kind,
    RunFile,
    Status,
    Summary,
)
from assay.formats.verdict import Verdict
from assay.query.drawing import CurveDrawing, html_line, middles
from assay.query.status import RunState, seconds_of, state_of, stop_run
from assay.store.artifacts import Artifact, artifacts
from assay.store.best_damage import best_damage
from assay.store.cells import ChangedSetting
from assay.store.changed_settings import changed_settings
from assay.store.config_items import config_items
from assay.store.layout import RunFolder, run_in
from assay.store.read_record import read_defaults, read_description

if TYPE_CHECKING:
    from assay.query.verification import ReadRecord, VerifiedPart
    from assay.store.series import Series

_MOST_TEXT_BYTES = 16 << 20
_MOST_LOSSES = 8  # more lines in one drawing cannot be told apart
_SPARK_POINTS = 60

EPOCH = "epoch"
"""The metric that says, from some steps on, in which epoch the run is (from 0)."""


class RunView:
    """A run folder as it was when each part was first looked at; make a new one to look again."""

    def __init__(self, folder: Path | RunFolder) -> None:
        """InputError when there is no run in `folder`.

        Of a run whose `run.json` cannot be read, `error` says why: what lies beside that file can
        be looked at, and what stands in it raises RecordError.
        """
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        name = self.path.name
        self._file, self.error = run_in(self.folder)
        if self.error == run_file.MISSING and id_of_folder(name) is None:
            raise InputError("There is no run in this folder.", where=str(self.path))
        self.id = self._file.id if self._file is not None else id_of_folder(name) or name
        self.kind: Kind = self._file.kind if self._file is not None else "train"

    def __repr__(self) -> str:
        results = [] if self.best is None else [f"{self.best.metric} {self.best.value:.4g}"]
        words = [self.id, self.tag, self.status, f"step {self.last_step}", *results]
        return f"<RunView {', '.join(filter(None, words))}>"

    def _repr_html_(self) -> str:
        facts = [self.id, self.status_text, f"step {self.last_step:,}", duration(self.duration_s)]
        if self.best is not None:
            facts.append(f"best {self.best.metric} {number(self.best.value)}")
        files = (self.folder.readme, self.folder.config_toml, self.folder.log)
        found = self.summaries
        losses = [name for name in found if "loss" in name]
        curve = max(losses or found, key=lambda name: found[name].count, default="")
        values: Sequence[float] = ()
        with contextlib.suppress(AssayError):  # `damages` tells
            values = middles(self.metric(curve), _SPARK_POINTS) if curve else ()
        return html_line(self.tag or self.id, facts, files, curve=curve, values=values)

    def plot(self, *names: str) -> CurveDrawing:
        """Return a drawing of metrics, which a notebook shows; without names of all losses.

        InputError for a metric that the run does not have, and where there is no loss to draw.
        """
        chosen = names or self._losses[:_MOST_LOSSES]
        if not chosen:
            raise InputError(f"The run {self.id} has no loss to draw.", fix="name the metrics")
        return CurveDrawing.of_series(self.id, {name: self.metric(name) for name in chosen})

    def stop(self) -> None:
        """Ask the OS process that writes the run to stop; a training saves a checkpoint first.

        Nothing happens to a run that has ended. InputError for one of this process, of a job, or of
        another machine or user.
        """
        stop_run(self.path, run_id=self.id, job=self.file.job)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def file(self) -> RunFile:
        """Content of `run.json`. RecordError when it cannot be read."""
        if self._file is None:
            fix = (
                f"`assay show {self.id}` tells what is left of it, `assay rm {self.id}` takes it "
                "away"
            )
            raise RecordError(
                f"The run {self.id} is damaged: {self.error}", where=str(self.path), fix=fix
            )
        return self._file

    @cached_property
    def damages(self) -> tuple[str, ...]:
        """Damages of the record, one sentence each; none for a run that is as it was written."""
        from assay.query.verification import find_damages

        return tuple(part.why for part in find_damages(self._read_record()))

    def verify(self) -> list[VerifiedPart]:
        """Read the whole record, and compare all that has a checksum with it."""
        from assay.query.verification import verify_record

        return verify_record(self._read_record())

    def _read_record(self) -> ReadRecord:
        from assay.query.verification import ReadRecord  # reads curves: a tenth of the start

        return ReadRecord(
            folder=self.folder,
            file=self._file,
            error=self.error,
            status=self.status,
            config_text=self.config_text,
            summaries=self.summaries,
        )

    # --------------------------------------------------------------------------- what was asked for

    @cached_property
    def config_text(self) -> str:
        """`config.toml` as it was saved for the newest attempt, "" when the run has none."""
        return _text(self.folder.config_toml)

    @property
    def has_config_to_train(self) -> bool:
        """False for a run that a script recorded, and for an imported one."""
        launch = self.file.attempts[0].launch if self.file.attempts else {}
        return "user_dirs" in launch and bool(self.config_text)

    @property
    def saved_config(self) -> Path:
        """Path of the newest attempt's config, to train or test from; RecordError when damaged."""
        assert self.file is not None  # what raises
        return self.folder.config_toml

    @cached_property
    def config(self) -> dict[str, Any]:
        """Saved config as dictionaries, secrets as references; ConfigError when it is damaged."""
        found: dict[str, Any] = plain(self.config_tree)
        return found

    @cached_property
    def config_tree(self) -> Table:
        """Saved config with the place of each value; ConfigError when it is damaged."""
        if not self.kept_outside:
            return self._config_as_saved
        from assay.config.resolver import with_recorded_values  # the rules of secrets

        return with_recorded_values(self._config_as_saved, self.kept_outside)

    @cached_property
    def _config_as_saved(self) -> Table:
        source = str(self.folder.config_toml)
        return (
            toml.read_toml(self.config_text, source)
            if self.config_text
            else Table({}, Origin(source=source))
        )

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Values by dotted key that the run took where its config has none, its seed among them."""
        return read_defaults(self.folder, self._file) if self._file is not None else {}

    @cached_property
    def changed_settings(self) -> Mapping[str, ChangedSetting]:
        """Settings by dotted key that a resume changed, with the step from which each held."""
        if self._file is None or len(self._file.attempts) < 2:
            return {}
        try:
            config = {item.name: item.value for item in config_items(self.config_text)}
        except (ValueError, RecursionError):  # `damages` tells
            return {}
        return changed_settings(self.folder, self._file, config)

    @property
    def kept_outside(self) -> Mapping[str, Any]:
        """Values from outside that the newest attempt kept beside its config, by `env:X`."""
        kept = self._file.newest.launch.get("outside") if self._file and self._file.attempts else {}
        return kept if isinstance(kept, Mapping) else {}

    @cached_property
    def outside(self) -> Mapping[str, Any]:
        """Values from outside that the config does not hold: what its program read, and secrets.

        Secrets are digests. Older records kept all values here that their config names.
        """
        names = outside_used(self._config_as_saved)
        kept = self.kept_outside.items()
        return {key: value for key, value in kept if is_redacted(value) or key not in names}

    @cached_property
    def desc(self) -> str:
        """Description by the user in `README.md`, between the title and the generated block."""
        return read_description(_text(self.folder.readme))

    @property
    def created(self) -> datetime:
        """When it began."""
        return datetime.fromtimestamp(self.file.created_ns / 1e9).astimezone()

    @property
    def code(self) -> Code:
        """The code of the newest attempt."""
        return self.file.newest.code if self._file is not None and self.file.attempts else Code()

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the newest attempt."""
        return self.file.newest.environment if self._file is not None and self.file.attempts else {}

    # -------------------------------------------------------------------------------- what happened

    @cached_property
    def state(self) -> RunState:
        if self._file is None:
            return RunState("damaged")
        return state_of(self.path, self._file.status, leases.read(self.path))

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def status_text(self) -> str:
        """Status in words, with its time where it is unknown, and with the reason."""
        if self.error:
            return f"damaged: {self.error.removesuffix('.')}"
        if self.status == "unknown":
            heard = self.state.heard_ns
            since = (
                f"{datetime.fromtimestamp(heard / 1e9).astimezone():%Y-%m-%d %H:%M}"
                if heard
                else "its start"
            )
            host = self.file.newest.host if self.file.attempts else ""
            return f"unknown since {since}" + (f" (it runs on {host})" if host else "")
        reason = self.reason
        is_telling = self.status in ("failed", "stopped") or (
            self.status == "finished" and reason.startswith(UNSAVED)
        )
        return f"{self.status}: {reason}" if is_telling and reason else self.status

    @property
    def reason(self) -> str:
        """Reason of the end: a limit, an early stop, a signal, an error; "" while it is open."""
        attempts = self._file.attempts if self._file is not None else ()
        return attempts[-1].reason if attempts else ""

    @property
    def duration_s(self) -> float:
        """Seconds that it ran; for an open run, until now."""
        attempts = self._file.attempts if self._file is not None else ()
        return sum(self.seconds_of(attempt) for attempt in attempts)

    def seconds_of(self, attempt: Attempt) -> float:
        """Return the seconds that an attempt ran; an open one until now, a killed one until it."""
        if attempt.ended_ns is None and attempt == self.file.newest:
            return seconds_of(attempt.started_ns, self.state, time.time_ns())
        return attempt.duration_s

    @cached_property
    def events(self) -> list[Timed]:
        try:
            return list(read_events(self.folder.events))
        except OSError:  # `damages` tells
            return []

    @property
    def log_text(self) -> str:
        """`log.txt` as it is now."""
        return _text(self.folder.log)

    @cached_property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Files that were kept, in the order in which they came."""
        try:
            return artifacts(self.folder)
        except RecordError:  # `damages` tells
            return ()

    # ----------------------------------------------------------------------------------- its curves

    @cached_property
    def summaries(self) -> Mapping[str, Summary]:
        """Each metric in a few numbers."""
        from assay.store.summaries import summaries

        try:
            return summaries(self.folder.metrics)
        except RecordError:  # `damages` tells
            return {}

    @property
    def last_step(self) -> int:
        """Last step that has a point, or at which an attempt ended."""
        steps = [each.step for each in self.summaries.values()]
        attempts = self._file.attempts if self._file is not None else ()
        return max([*steps, *(attempt.to_step for attempt in attempts[-1:])], default=0)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that have points."""
        return list(self.summaries)

    @property
    def _losses(self) -> list[str]:
        return [name for name in self.metrics if "loss" in name]

    def metric(self, name: str) -> Series:
        """Return one curve as numpy arrays; InputError for no such name, RecordError if lost."""
        from assay.store.series import read_contents, series_of

        contents = read_contents(self.folder.metrics)
        found = series_of(contents.blocks, names=[name])
        if name not in found and contents.is_lost(name):
            raise RecordError(
                f"The curve of `{name}` is lost: {' '.join(self.damages)}", where=str(self.path)
            )
        if name not in found:
            fix = choose(name, self.metrics, "it has")
            raise InputError(
                f"The run {self.id} has no metric `{name}`.", where=str(self.path), fix=fix
            )
        return found[name]

    def history(self, *names: str) -> dict[tuple[int, int], dict[str, float]]:
        """Return values of metrics (of all without names) by (epoch, step), both from 0.

        The epoch is the newest value of the metric `epoch` at or before the step, 0 where there is
        none.
        """
        from assay.store.series import read_series

        curves = (
            {name: self.metric(name) for name in names}
            if names
            else read_series(self.folder.metrics)
        )
        curves.pop(EPOCH, None)
        epochs = read_series(self.folder.metrics, names=[EPOCH]).get(EPOCH)
        found: dict[tuple[int, int], dict[str, float]] = {}
        for name, curve in curves.items():
            for step, epoch, value in zip(
                curve.steps, epochs_at(epochs, curve.steps), curve.values, strict=True
            ):
                found.setdefault((epoch, int(step)), {})[name] = float(value)
        return dict(sorted(found.items()))

    @property
    def best(self) -> Best | None:
        """The best value by the run's own criterion, when its config names one.

        None where the run's own numbers say otherwise (`best_damage`).
        """
        return self._file.best if self._file is not None and not self.best_damage else None

    @cached_property
    def best_damage(self) -> str:
        """Why what is held for the best cannot be it, "" where nothing says so."""
        if self._file is None:
            return ""
        has_ended = self._file.status != "running"
        return best_damage(self.folder, self._file, self.summaries if has_ended else {})

    # ------------------------------------------------------------------------------ its checkpoints

    @cached_property
    def all_checkpoints(self) -> list[Checkpoint]:
        """Everything in the folder of checkpoints, usable or not, by step."""
        return manifests.checkpoints(self.folder.checkpoints)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, newest last."""
        return [each for each in self.all_checkpoints if not each.why]

    @property
    def incomplete_checkpoints(self) -> list[Checkpoint]:
        """Checkpoints that cannot be used, each with the reason."""
        return [each for each in self.all_checkpoints if each.why]

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The complete checkpoint that the run holds for its best, None when there is none.

        None also for one that cannot be it (`best_damage`).
        """
        if self.best_damage:
            return None
        name = manifests.pointed_name(self.folder.checkpoints, "best")
        name = name or (self.best.checkpoint if self.best is not None else "")
        return next((each for each in self.checkpoints if each.name == name), None)

    # ----------------------------------------------------------------------- what was said about it

    @cached_property
    def edits(self) -> list[Edit]:
        try:
            return list(read_edits(self.folder.edits))
        except OSError:  # `damages` tells
            return []

    @property
    def tag(self) -> str:
        """The title: the one it was last given."""
        given = [
            edit.new for edit in self.edits if edit.what == "tag" and isinstance(edit.new, str)
        ]
        return given[-1] if given else self._file.tag if self._file is not None else ""

    @property
    def notes(self) -> list[Edit]:
        return [edit for edit in self.edits if edit.what == "note"]

    @property
    def verdicts(self) -> list[Verdict]:
        """Results of its comparisons, the oldest first."""
        found = []
        for edit in self.edits:
            if edit.what == "verdict":
                with contextlib.suppress(RecordError):  # of an assay that knows more
                    found.append(dataclass_from(Verdict, edit.new))
        return found

    @property
    def labels(self) -> list[str]:
        """Labels that it has now, in the order in which they came."""
        return labels_of(self.edits)

    @property
    def origin(self) -> dict[str, str]:
        """Source of an imported run: `from` is the tracker, `path`, mostly `id`; else empty."""
        values = self._file.values if self._file is not None else {}
        return {
            key[len(IMPORTED) :]: str(values[key]) for key in values if key.startswith(IMPORTED)
        }

    @property
    def values(self) -> dict[str, Any]:
        """Results that are no curves, with later corrections."""
        written = self._file.values if self._file is not None else {}
        corrected = {edit.key: edit.new for edit in self.edits if edit.what == "value"}
        return parse_numbers({**written, **corrected})


def epochs_at(epochs: Series | None, steps: Iterable[int]) -> list[int]:
    """The epoch of each step, from 0: that of the newest point at or before it."""
    if epochs is None or not len(epochs):
        return [0 for _ in steps]
    known = sorted(zip(epochs.steps.tolist(), epochs.values.tolist(), strict=True))
    places = (bisect_right(known, int(step), key=lambda point: point[0]) for step in steps)
    return [int(known[place - 1][1]) if place else 0 for place in places]


def _text(path: Path) -> str:
    """A text file that people may have touched; "" when it is not there."""
    try:
        return read_bytes(path, _MOST_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
