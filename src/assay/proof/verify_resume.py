"""Test of exact resume: one run is killed and resumed, another is not, and both are compared.

Everything happens in a temporary project: the user's gets no run, no snapshot and no line in its
index.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.compose.checks import ensure_sound
from assay.compose.launch import Launch
from assay.compose.resume_verdict import keep_resume_verdict
from assay.config import dump, from_plain, plain
from assay.config.loading import Config
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError
from assay.core.facts import Evaluated, Started
from assay.formats import manifest, run_file
from assay.formats.event_log import read_events
from assay.formats.manifest import pointed_name
from assay.formats.project import RUNS_DIR_VARIABLE
from assay.formats.verdict import Cause, Difference
from assay.proof.cause import cause_of
from assay.proof.differences import (
    CLOCKED,
    CONTENT,
    ORDER,
    Comparison,
    compare_checkpoints,
    compare_traces,
    curve_difference,
    first_in_records,
    first_in_traces,
)
from assay.proof.scratch_project import last_lines
from assay.query.run import RunView
from assay.store.known_projects import forget
from assay.store.layout import Project, RunFolder, make_project, scan_runs
from assay.store.series import read_series

_LOOK_S = 0.01


CHECK_STEPS = 20
"""Steps of `assay check --resume`, unless it is told otherwise."""

_WITNESS = "ResumeWitness"
_WITNESSED = f"{_WITNESS}: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCheck:
    """Outcome of a comparison.

    `left_at` are the steps that were completed when the run was killed or stopped, `resumed_from`
    those of the checkpoints. `difference` is the first one of the traces and curves, and `cause`
    its cause. `kept` is the folder with both runs when they differ, else None: it is gone.
    """

    steps: int
    left_at: tuple[int, ...]
    compared: tuple[Comparison, ...]
    difference: Difference | None = None
    cause: Cause | None = None
    resumed_from: tuple[int, ...] = ()
    kept: Path | None = None

    @property
    def verdict(self) -> str:
        """Return "equal" with the steps that were tried, or the first difference."""
        tried = ", ".join(map(str, sorted({*self.resumed_from} or {0})))
        if self.equal:
            return f"equal (resumed from step {tried} of {self.steps})"
        # What is not kept is the reason for all else.
        first = next(each for each in reversed(self.compared) if each.differences)
        return f"not equal: {first.name}: {first.differences[0]}"

    @property
    def untried(self) -> int:
        """Return from how many steps nothing was resumed."""
        return self.steps - len({*self.resumed_from})

    @property
    def equal(self) -> bool:
        return not any(each.differences for each in self.compared)

    @property
    def first_step(self) -> int | None:
        """First step that differs; None where none does, and where only the end differs."""
        return self.difference.step if self.difference is not None else None

    @property
    def blames_resume(self) -> bool:
        """Return True if the runs were equal until one was resumed.

        Else two undisturbed runs would differ, too.
        """
        return (
            self.first_step is None
            or not self.resumed_from
            or self.first_step > self.resumed_from[0]
        )


def verify_resume(
    config: Config,
    launch: Launch | None = None,
    *,
    kills: int = 3,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> ResumeCheck:
    """Train a config twice, once with `kills` times kill -9, and compare both ends.

    The kills cover the first epoch, the end of one, an evaluation and the last third of the run, as
    far as there are so many; the period of its checkpoints is drawn, unless an override of the
    config says how often. InputError for a config whose end is decided by a clock, or that is over
    too soon; AssayError for a run that fails by itself.
    """

    def leave(trial: _Trial, whole: RunFolder, steps: int) -> tuple[RunFolder, list[int]]:
        draw = random.Random(seed)
        targets = sorted(_draw_kills(whole, steps, kills, draw))
        saving = []
        if not _is_overridden(config, "checkpoint.every="):
            period = draw.randint(1, max(1, steps // (2 * (kills + 1))))
            saving = [f"checkpoint.every={period} steps"]
        return _kill_and_resume(trial, targets, draw, saving, tell)

    return _compare_runs(config, launch or Launch(), leave, tell)


def check_resume(
    config: Config,
    launch: Launch | None = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> ResumeCheck:
    """Train a config some steps, once left in the middle and resumed by a fresh OS process.

    Errors as of `verify_resume`, with which it shares the experiment.
    """
    launch = launch or Launch()
    launch = replace(launch, max_steps=launch.max_steps or CHECK_STEPS)

    def leave(trial: _Trial, whole: RunFolder, steps: int) -> tuple[RunFolder, list[int]]:
        with trial.start("killed", [], attempt=1, stop_at=steps // 2) as child:
            child.wait()
        folder = trial.folder_of("killed")
        if run_file.read(folder.path).newest.to_step != steps // 2:
            raise _failure(trial, "killed", child.returncode)
        return trial.run("killed", [], attempt=2), [steps // 2]

    return _compare_runs(config, launch, leave, tell)


Leave = Callable[["_Trial", RunFolder, int], tuple[RunFolder, list[int]]]
"""Trains the run that is left and resumed; returns its folder and the steps at which it was left"""


def _compare_runs(
    config: Config, launch: Launch, leave: Leave, tell: Callable[[str], None]
) -> ResumeCheck:
    """Train an undisturbed run, and one that `leave` leaves, in a temporary folder; compare them.

    What was found is kept for the next start of the same config.
    """
    config = ensure_sound(config)
    folder = Path(tempfile.mkdtemp(prefix="assay-verify-"))
    is_kept = False
    try:
        trial = _Trial(config, launch, folder)
        begun = time.monotonic()
        whole = trial.run("whole", [])
        steps = run_file.read(whole.path).newest.to_step
        if steps < 2:
            raise InputError(f"The run is over after {steps} step: nothing can be interrupted.")
        tell(f"uninterrupted: {steps} steps, {time.monotonic() - begun:.0f} s")
        left, left_at = leave(trial, whole, steps)
        if not left_at:
            raise InputError(
                "The run is over too soon to be killed.", fix="train longer: train.epochs=..."
            )
        compared = compare_finished_runs(whole, left)
        changing = _find_changing(compared, trial, whole)
        clocked = (*CLOCKED, *(name for name in changing if ": " not in name))
        found = first_in_records(RunView(whole.path), RunView(left.path), clocked=clocked)
        check = ResumeCheck(
            steps=steps,
            left_at=tuple(left_at),
            compared=_blame_code(compared, changing),
            difference=found.difference,
            cause=cause_of(found, {}),
            resumed_from=tuple(each.from_step for each in run_file.read(left.path).attempts[1:]),
            kept=folder,
        )
        is_kept = not check.equal
        keep_resume_verdict(config, launch, check.verdict)
        return check if is_kept else replace(check, kept=None)
    finally:
        with contextlib.suppress(OSError):
            forget([folder])
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _find_changing(
    compared: tuple[Comparison, ...], trial: _Trial, whole: RunFolder
) -> frozenset[str]:
    """Return what differs between two undisturbed runs as well, by name: times, for example.

    The second one is made where it can decide something. Of runs whose weights differ by themselves
    it is only plain attributes of the user's code.
    """
    differing = {each.name for each in compared if each.differences}
    if not differing - {"weights"} or ("weights" in differing and not _find_witnessed(compared)):
        return frozenset()
    again = compare_finished_runs(whole, trial.run("again", []))
    if next(each for each in again if each.name == "weights").differences:
        return frozenset(_find_witnessed(again))
    return frozenset(_subject(text) for each in again for text in each.differences)


def _blame_code(
    compared: tuple[Comparison, ...], changing: frozenset[str]
) -> tuple[Comparison, ...]:
    """Name the plain attributes that differ apart from the state of a run, without the changing."""
    out = []
    for each in compared:
        left = [text for text in each.differences if _subject(text) not in changing]
        rest = tuple(text for text in left if not text.startswith(_WITNESSED))
        out.append(replace(each, differences=rest))
    unkept = tuple(
        f"{name.removeprefix(_WITNESSED)} is not kept: list it in `keeps` of its class, or give it"
        " state_dict and load_state_dict"
        for name in _find_witnessed(compared)
        if name not in changing
    )
    return (*out, Comparison(name="your code", differences=unkept))


def _find_witnessed(compared: tuple[Comparison, ...]) -> list[str]:
    texts = [text for each in compared for text in each.differences]
    return [text for text in texts if text.startswith(_WITNESSED)]


def _subject(difference: str) -> str:
    """Return what differs: a part of a checkpoint, or a curve without its step."""
    return difference if ": " in difference else difference.partition(" ")[0]


def _draw_kills(whole: RunFolder, steps: int, kills: int, draw: random.Random) -> list[int]:
    """Draw steps after which a run is killed: one in each phase of it, as far as `kills` reach."""
    events = [timed.fact for timed in read_events(whole.events)]
    evaluated = [fact.step for fact in events if isinstance(fact, Evaluated)]
    evaluated = [step for step in evaluated if 0 < step < steps]
    epochs = max(1, manifest.read(_final_checkpoint(whole)).epoch)
    ends = [round(steps / epochs * number) for number in range(1, epochs)]
    last = steps - 1
    phases = [
        [*range(max(1, 2 * steps // 3), last + 1)],
        [*range(1, max(2, min(last, round(steps / epochs))))],
        ends,
        evaluated,
    ]
    drawn = [draw.choice(phase) for phase in phases if phase][:kills]
    return drawn + [draw.randint(1, last) for _ in range(kills - len(drawn))]


def _is_overridden(config: Config, key: str) -> bool:
    """Return True if an override of the command line begins with a key."""
    return any(each.lstrip("+").startswith(key) for each in config.overrides)


def _kill_and_resume(
    trial: _Trial,
    targets: Sequence[int],
    draw: random.Random,
    saving: Sequence[str],
    tell: Callable[[str], None],
) -> tuple[RunFolder, list[int]]:
    """Kill a run after each of the target steps, then let it end."""
    killed_at: list[int] = []
    for attempt, target in enumerate(targets, 1):
        with trial.start("killed", saving, attempt=attempt) as child:
            step = _wait_for(trial, child, attempt, target)
            if step is not None:
                # The kill comes anywhere in the next step, not only after one.
                time.sleep(draw.random() * trial.pace_s)
                child.kill()
        if child.wait() == 0:
            tell(f"kill {attempt} of {len(targets)}: it had ended before")
            return trial.folder_of("killed"), killed_at
        if step is None:
            raise _failure(trial, "killed", child.returncode)
        folder = trial.folder_of("killed")
        step = _last_step(folder)
        begun = run_file.read(folder.path).newest.from_step
        tell(f"kill {attempt} of {len(targets)}: at step {step}, begun at {begun}")
        killed_at.append(step)
        # The kill came when there was nothing left to do.
        if run_file.read(folder.path).status == "finished":
            return folder, killed_at
    return trial.run("killed", [], attempt=len(targets) + 1), killed_at


def _wait_for(
    trial: _Trial, child: subprocess.Popen[bytes], attempt: int, target: int
) -> int | None:
    """Wait until an attempt has made `target` steps; return its step, None if it ends before."""
    first: tuple[float, int] | None = None
    while child.poll() is None:
        time.sleep(_LOOK_S)
        with contextlib.suppress(OSError, AssayError):  # what is not there yet
            folder = trial.folder_of("killed")
            begun = [
                timed.fact
                for timed in read_events(folder.events)
                if isinstance(timed.fact, Started)
            ]
            if len(begun) < attempt:
                continue
            step = _last_step(folder)
            if step > begun[-1].step:
                now = time.monotonic()
                first = first or (now, step)
                if step > first[1]:
                    trial.pace_s = (now - first[0]) / (step - first[1])
                if step >= target:
                    return step
    return None


def _last_step(folder: RunFolder) -> int:
    """Return the last step of the curve, 0 before the first."""
    curves = read_series(folder.metrics, names=[CONTENT])
    return int(curves[CONTENT].steps[-1]) if CONTENT in curves else 0


class _Trial:
    """A temporary project with the config in it as it is trained, and the processes that do it."""

    def __init__(self, config: Config, launch: Launch, folder: Path) -> None:
        self.folder = folder
        self.pace_s = 0.0
        settings = config.settings.local_file
        project: Project = make_project(folder)
        if settings is not None and settings.exists():
            shutil.copyfile(settings, project.settings)
        self._source = config
        _config_of_both(config, 0)  # which refuses what cannot be compared
        self._user_dirs = [str(path.resolve()) for path in config.user_dirs if path.is_dir()]
        self._options = ["--quiet"]
        if launch.device is not None:
            self._options += ["--device", launch.device]
        if launch.max_steps is not None:
            self._options += ["--max-steps", str(launch.max_steps)]

    def run(self, name: str, overrides: Sequence[str], *, attempt: int = 1) -> RunFolder:
        """Run without kills to the end; AssayError when it fails by itself."""
        with self.start(name, overrides, attempt=attempt) as child:
            child.wait()
        if child.returncode != 0:
            raise _failure(self, name, child.returncode)
        return self.folder_of(name)

    @contextlib.contextmanager
    def start(
        self, name: str, overrides: Sequence[str], *, attempt: int, stop_at: int = 0
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start an attempt: the first trains the config, the others resume its run."""
        if attempt == 1:
            dirs = [word for path in self._user_dirs for word in ("--user-dir", path)]
            path = self.folder / f"{name}.toml"
            path.write_text(_config_of_both(self._source, stop_at), encoding="utf-8")
            arguments = ["run", str(path), *dirs]
        else:
            arguments = ["resume", str(self.folder_of(name).path)]
        with open(self._output_of(name), "wb") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "assay", *arguments, *self._options, *overrides],
                env={**os.environ, RUNS_DIR_VARIABLE: str(self.folder / name), "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                yield child
            except BaseException:
                child.kill()
                raise
            finally:
                child.wait()

    def folder_of(self, name: str) -> RunFolder:
        """Return the folder of the only run of that name."""
        for entry in scan_runs(self.folder / name):
            return RunFolder(Path(entry.path))
        raise AssayError("The run has not begun.")

    def last_lines(self, name: str) -> str:
        """Return the last lines that the newest process of that name printed."""
        return last_lines(self._output_of(name))

    def _output_of(self, name: str) -> Path:
        return self.folder / f"{name}.txt"


def _config_of_both(config: Config, stop_at: int) -> str:
    """Return the config of both runs as TOML: with checkpoints, digests of batches and traces."""
    values = plain(config.root)
    if "time" in values.get("train", {}):
        raise InputError(
            "A run that a clock ends is never twice the same.",
            fix="+train.steps=1000 train.time=@delete",
        )
    plugins = values.get("plugins", [])
    witnesses: dict[str, Any] = {
        "batch_digest": {"type": "assay.engine.BatchDigest"},
        "witness": {"type": f"assay.engine.callbacks.witness.{_WITNESS}", "stop_at": stop_at},
    }
    if isinstance(plugins, dict):
        values["plugins"] = {**plugins, **witnesses}
    else:
        values["plugins"] = [*plugins, *witnesses.values()]
    saving: dict[str, Any] = {**values.get("checkpoint", {}), "enabled": True}
    if not _is_overridden(config, "checkpoint.every=") or saving.get("every") == "never":
        saving["every"] = "1 epoch"
    values["checkpoint"] = saving
    if not _is_overridden(config, "trace."):
        values["trace"] = {"enabled": True, "every": "1 step", "level": "full"}
    return dump(from_plain(values, Origin(source="<verify-resume>")))  # type: ignore[arg-type]


def _failure(trial: _Trial, name: str, code: int) -> AssayError:
    which = "uninterrupted" if name == "whole" else "resumed"
    kind = InputError if code == InputError.exit_code else AssayError
    return kind(f"The {which} run failed, and said:\n{trial.last_lines(name)}")


def compare_finished_runs(whole: RunFolder, killed: RunFolder) -> tuple[Comparison, ...]:
    """Compare final checkpoints by part, every curve, the order of samples and traces."""
    parts = compare_checkpoints(_final_checkpoint(whole), _final_checkpoint(killed))
    out = [Comparison(name=name, differences=tuple(found)) for name, found in parts.items()]
    out += _compare_metrics(whole, killed)
    alignment = first_in_traces(RunView(whole.path), RunView(killed.path))
    out.append(compare_traces(alignment))
    return tuple(out)


def _final_checkpoint(folder: RunFolder) -> Path:
    return folder.checkpoints / pointed_name(folder.checkpoints, "final")


def _compare_metrics(whole: RunFolder, killed: RunFolder) -> list[Comparison]:
    """Compare every curve but those of the clock, and the order of samples."""
    a = read_series(whole.metrics)
    b = read_series(killed.metrics)
    names = [name for name in dict.fromkeys([*a, *b]) if not name.startswith(CLOCKED)]
    curves = {name: curve_difference(a.get(name), b.get(name)) for name in names}
    witnesses = [curves.pop(name, None) for name in (ORDER, CONTENT)]
    changed = [f"{name} {where.how}" for name, where in curves.items() if where is not None]
    parted = dict.fromkeys(where.how for where in witnesses if where is not None)
    return [
        Comparison(name="metrics", differences=tuple(changed)),
        Comparison(name="sample order", differences=tuple(parted)),
    ]


def runs_of(kept: Path) -> tuple[RunView, RunView]:
    """Return both runs in a kept folder: the uninterrupted one, and the killed one."""
    whole, killed = (next(scan_runs(kept / name)) for name in ("whole", "killed"))
    return RunView(Path(whole.path)), RunView(Path(killed.path))
