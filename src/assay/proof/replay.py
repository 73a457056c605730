"""Replay: a recorded run is trained again, and compared with its record bit for bit.

It happens in a project of its own and in a process of its own: the record gets a verdict, and
nothing else changes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from assay.compose.launch import Launch, ProcessTask
from assay.compose.ranks import processes
from assay.compose.run_scope import check_device
from assay.compose.trust import Trust, home_of, permit, refuse_redacted
from assay.config import dump, open_config
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.core.errors import AssayError, InputError
from assay.formats import run_file
from assay.formats.run_file import Attempt
from assay.formats.verdict import Verdict
from assay.proof.cause import changed_outside, decisive_changes
from assay.proof.compare_runs import compare_runs
from assay.proof.differences import Comparison, first_in_records
from assay.proof.scratch_project import find_only_run, make_scratch_project, train_in_scratch
from assay.proof.step_range import StepRange, config_of, step_range
from assay.query.find import checkpoint_of, find
from assay.query.run import RunView
from assay.record.edits import keep_verdict
from assay.record.environment import environment
from assay.store.known_projects import forget
from assay.store.layout import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Verdict of a replay, with a line for each thing that was compared.

    `kept` is the folder of that run when the two differ, else None: it is gone.
    """

    verdict: Verdict
    compared: tuple[Comparison, ...]
    kept: Path | None = None


def replay(
    address: str,
    *,
    steps: str = "",
    force: bool = False,
    trust: Trust = False,
    tell: Callable[[str], None] = lambda line: None,
) -> ReplayResult:
    """Train RUN again, or from RUN@CKPT on, and compare its curves and checkpoints.

    `steps` is A:B, where A has a checkpoint or is 0: only the steps after A up to B. InputError for
    what cannot be done again, and why; `force` tries it in another environment than that of then,
    and where the record is damaged. For a run that was not made here `trust` has to allow its code
    and its config.
    """
    view, name = find(address)
    _refuse_damaged(view, force=force)
    span = step_range(view, name, steps)
    permit_again(view, span, use="replay it", trust=trust)
    changed = _changed_inputs(view, span)
    if changed and not force:
        _refuse_changed(view, changed)
    folder = Path(tempfile.mkdtemp(prefix="assay-replay-")).resolve()
    is_kept = False
    try:
        begun = time.monotonic()
        again = train_again(view, span, folder)
        tell(f"replayed: {span.text}, {time.monotonic() - begun:.0f} s")
        # A process that has computed knows more of its environment.
        then, now = span.attempts[-1], again.file.newest
        changed |= decisive_changes(then.environment, now.environment) | changed_outside(then, now)

        def repeats(step: int) -> bool | None:
            return _repeats(view, again, span, folder / "twice", step, tell)

        verdict, compared = compare_runs(view, again, span, changed, repeats=repeats, force=force)
        is_kept = not verdict.equal
        keep_verdict(view.folder, verdict, tell)
        kept = again.path if is_kept else None
        return ReplayResult(verdict=verdict, compared=compared, kept=kept)
    finally:
        with contextlib.suppress(OSError):
            forget([folder / "project", folder / "twice" / "project"])
        shutil.rmtree(folder / "twice", ignore_errors=True)
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _repeats(
    view: RunView,
    again: RunView,
    span: StepRange,
    folder: Path,
    step: int,
    tell: Callable[[str], None],
) -> bool | None:
    """Train up to a step that differs once more; return True if it has the bits of `again`.

    None from a checkpoint on, which may lack a state of the run: then both lack it.
    """
    if span.checkpoint or step < 1:
        return None
    folder.mkdir()
    short = replace(span, last=min(step, span.last), whole=span.whole and step >= span.last)
    try:
        twice = train_again(view, short, folder)
    except AssayError as error:
        tell(f"not replayed a second time: {error.what}")
        return None
    return first_in_records(again, twice).difference is None


def _refuse_damaged(view: RunView, *, force: bool) -> None:
    if view.error or (view.damages and not force):
        raise InputError(
            f"The record of {view.id} is damaged. {' '.join(view.damages)}",
            where=str(view.path),
            fix="" if view.error else "--force compares what can still be read",
        )


def _refuse_changed(view: RunView, changed: Mapping[str, tuple[str, str]]) -> NoReturn:
    first, (was, now) = next(iter(changed.items()))
    others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    before = was or "not set"
    after = now or "not set"
    raise InputError(
        f"{view.id} cannot be replayed here: {first} was {before} and is {after}{others}.",
        where=str(view.path),
        fix="replay it where it was made; --force tries it all the same",
    )


def permit_again(view: RunView, span: StepRange, *, use: str, trust: Trust) -> None:
    """Raise InputError for a run that may not run here, or that lacks its secrets.

    Call it before `train_again`.
    """
    for attempt in span.attempts:
        saved = _config_of(view, attempt)
        code = f"the {attempt.code.files} files that were kept with it"
        permit(view, saved.root, use=use, code=code, trust=trust, attempt=attempt)
    refuse_redacted(saved, view.id)


def train_again(
    view: RunView, span: StepRange, folder: Path, *, traced_from: int | None = None
) -> RunView:
    """Train steps of a run again in an OS process, in a project in `folder`.

    With `traced_from` every step from there on is traced with all its operations. InputError with
    what the process said when it fails, and for code that is not here.
    """
    attempt = span.attempts[-1]
    scratch = make_scratch_project(view, attempt, folder / "project")
    threads = attempt.environment.get("torch", {}).get("threads")
    # Beside the code, where its project is found.
    file = _write_config(view, attempt, folder / "project" / f"replay-{view.id}.toml")
    config = replace(
        open_config(file, [f"threads={threads}"] if threads is not None else []),
        user_dirs=scratch.user_dirs,
        settings=Settings(scratch.project.root),
    )
    launch = replace(_launch(view, span), traced_from=traced_from)
    if span.checkpoint:
        begun = _make_stopped_run(view, span, scratch.project.root, scratch.user_dirs)
        task = ProcessTask.of("replay", config, launch)
        task = replace(task, resumed=str(begun), checkpoint=span.checkpoint)
    else:
        task = ProcessTask.of("replay", config, launch, parent=view.id)
    task = replace(task, tells="end")
    output = train_in_scratch(task, folder, cwd=scratch.cwd, variables=scratch.environment)
    again = find_only_run(scratch.project.runs_dir)
    if output is not None:
        raise InputError(
            f"The replay failed, where the run did not, and said:\n{output}", where=str(view.path)
        )
    assert again is not None
    return again


def _config_of(view: RunView, attempt: Attempt) -> Config:
    outside = attempt.launch.get("outside", {})
    return open_config(config_of(view, attempt), outside=outside)


def _write_config(view: RunView, attempt: Attempt, path: Path) -> Path:
    """Write the config of an attempt with the values that it had."""
    text = dump(_config_of(view, attempt).root, with_origins=True)
    path.write_text(text, encoding="utf-8")
    return path


def _launch(view: RunView, span: StepRange) -> Launch:
    attempt = span.attempts[-1]
    origin = view.file.attempts[0].launch.get("from", "")
    device = attempt.devices[0] if attempt.devices else None
    count = processes(attempt)
    return Launch(
        device=device.partition(":")[0] if device is not None and count else device,
        desc=f"A replay of {view.id}.",
        quiet=True,
        max_steps=attempt.launch.get("max_steps"),
        nproc=count,
        weights_from=_weights(view, origin) if origin and not span.checkpoint else "",
        stop_at=None if span.whole else span.last,
        is_interrupted=span.is_interrupted,
    )


def _weights(view: RunView, origin: str) -> str:
    """Return the path of the run's initial weights; InputError when they are gone."""
    path: Path | None = None
    if "@" in view.file.parent:
        with contextlib.suppress(AssayError):
            parent, name = find(view.file.parent, home_of(view))
            path = checkpoint_of(parent, name).path
    else:
        path = Path(view.file.attempts[0].cwd) / Path(origin).expanduser()
    if path is None or not path.exists():
        raise InputError(
            f"The weights that {view.id} began with are gone: {origin}.", where=str(view.path)
        )
    return str(path)


def _make_stopped_run(
    view: RunView, span: StepRange, project: Path, user_dirs: Sequence[Path]
) -> Path:
    """Make a run that stopped at the checkpoint, to be resumed; return its folder."""
    source = next(each for each in view.checkpoints if each.name == span.checkpoint)
    folder = RunFolder(project / "runs" / view.path.resolve().name)
    shutil.copytree(source.path, folder.checkpoints / source.name, copy_function=_link_or_copy)
    attempt = replace(
        span.attempts[-1],
        number=1,
        from_step=0,
        to_step=span.first,
        status="stopped",
        launch={**span.attempts[-1].launch, "user_dirs": [str(path) for path in user_dirs]},
    )
    file = replace(
        view.file,
        project=str(project),
        status="stopped",
        sealed=False,
        attempts=(attempt,),
        best=None,
    )
    _write_config(view, span.attempts[-1], folder.config_toml)
    run_file.write(folder.path, file)
    return folder.path


def _link_or_copy(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


def _changed_inputs(view: RunView, span: StepRange) -> dict[str, tuple[str, str]]:
    """Return inputs that can change bits and are different here, with both values."""
    changes: dict[str, tuple[str, str]] = {}
    for attempt in span.attempts:
        for device in attempt.devices:
            if not _is_here(device):
                changes.setdefault("device", (device, "not here"))
        changes = {**decisive_changes(attempt.environment, environment()), **changes}
        torch_then = attempt.environment.get("torch", {})
        threads = torch_then.get("threads", 1)
        if threads > (os.cpu_count() or 1):  # libraries use no more than there are
            changes.setdefault("threads", (str(threads), f"at most {os.cpu_count()}"))
    return changes


def _is_here(device: str) -> bool:
    try:
        check_device(device)
    except InputError:
        return False
    return True
