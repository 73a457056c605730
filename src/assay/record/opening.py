"""Opening of a run for writing: a new one, or a further attempt of one that is there."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from assay.core.facts import Changed, Started
from assay.core.ids import new_run_id
from assay.core.secrets.replacement import Secrets
from assay.formats import lease as leases
from assay.formats import run_file
from assay.formats.run_file import Attempt, Code, Kind, RunFile
from assay.record import logfile, readme
from assay.record.attempt import AttemptSpec, changed_files, keep_snapshot, new_attempt, read_run
from assay.record.config_files import write_config
from assay.record.recorder import RunRecorder
from assay.store import authorship
from assay.store.last_signs import heard_ns, open_seconds
from assay.store.layout import (
    Project,
    RunFolder,
    create_run_folder,
    find_project,
    refusal,
    refuse_links,
)


def start_run(
    project: Project,
    spec: AttemptSpec | None = None,
    *,
    kind: Kind = "train",
    tag: str = "",
    desc: str = "",
    parent: str = "",
    config_path: str = "",
) -> RunRecorder:
    """Start a new run in a new folder; its config and environment are on disk on return."""
    spec = spec or AttemptSpec()
    secrets = spec.known_secrets()
    tag = secrets.clean(tag)
    desc = secrets.clean(desc)
    created_ns = time.time_ns()
    run_id = new_run_id()
    form = logfile.formatter(tag or run_id, spec.log_format, spec.date_format)
    created = datetime.fromtimestamp(created_ns / 1e9)
    folder = create_run_folder(project, run_id=run_id, tag=tag, created=created)
    with _undo_on_error(folder):
        lease = leases.acquire(folder.path, 1)
        # The code first: what it says to be secret is none of the config's business either.
        attempt, problem = _attempt_with_code(folder, spec, project, 1, None, secrets)
        write_config(folder, spec.config_toml or "", spec.config_files, attempt=1, secrets=secrets)
        attempt = replace(attempt, config_digest=run_file.digest_of_config(folder.config_toml))
        run = RunFile(
            id=run_id,
            kind=kind,
            tag=tag,
            parent=parent,
            created_ns=created_ns,
            project=str(project.root),
            config_path=config_path,
            attempts=(replace(attempt, started_ns=created_ns),),
        )
        run = authorship.sign(folder, run)
        readme.write_first(folder.readme, run, desc)
        run_file.write(folder.path, run, durable=False)  # the thread syncs it within a second
        recorder = RunRecorder(folder, run, lease, form, secrets)
    recorder.begin(Started(attempt=1), project, problem, keep_output=spec.keep_output)
    return recorder


def start_attempt(
    folder: RunFolder,
    spec: AttemptSpec | None = None,
    *,
    from_step: int,
    project: Project | None = None,
    checkpoint: str = "",
    changed: Sequence[Changed] = (),
    take_over: bool = False,
    is_trusted: bool = False,
) -> RunRecorder:
    """Begin a further attempt of a run at `from_step`; later points are kept as a branch.

    `changed` are the settings that differ from those of the attempt before; they are told.

    With `is_trusted` the new attempt of a record that was not made here belongs to this user; those
    before it do not. LeaseError when somebody writes the run.
    """
    spec = spec or AttemptSpec()
    secrets = spec.known_secrets()
    before = read_run(folder)
    refuse_links(folder)
    form = logfile.formatter(before.tag or before.id, spec.log_format, spec.date_format)
    old_lease = leases.read(folder.path)
    lease = _acquire(folder, _next_number(before), take_over=take_over)
    with _release_on_error(folder, lease):
        before = _with_end(folder, read_run(folder), old_lease)  # now nobody else writes it
        number = _next_number(before)
        is_own = authorship.is_own(folder, before)  # as it was found: what follows changes it
        is_at_home = is_own and not authorship.is_moved(folder, before)
        own = authorship.own_attempts(folder, before)
        home = _home_of(folder, before, is_at_home) if project is None else project
        old = before.newest if before.attempts else None
        attempt, problem = _attempt_with_code(folder, spec, home, number, old, secrets)
        if spec.config_toml is not None:
            write_config(
                folder, spec.config_toml, spec.config_files, attempt=number, secrets=secrets
            )
        attempt = replace(
            attempt,
            from_step=from_step,
            to_step=from_step,
            changed=tuple(each.what for each in changed),
            config_digest=run_file.digest_of_config(folder.config_toml),
        )
        run = replace(before, status="running", sealed=False, attempts=(*before.attempts, attempt))
        if home is not None and not is_at_home:
            run = replace(run, project=str(home.root))
        if is_own or is_trusted:
            run = authorship.sign(folder, run, own)
        run_file.write(folder.path, run)
        recorder = RunRecorder(folder, run, lease, form, secrets)
    recorder.rewind(from_step)
    started = Started(attempt=number, step=from_step, checkpoint=checkpoint)
    recorder.begin(started, home, problem, keep_output=spec.keep_output)
    for each in changed:
        recorder.tell(each)
    return recorder


def _attempt_with_code(
    folder: RunFolder,
    spec: AttemptSpec,
    home: Project | None,
    number: int,
    old: Attempt | None,
    secrets: Secrets,
) -> tuple[Attempt, str]:
    """Keep the code of a project; return the attempt that runs it, and the problem with the code.

    `old` is the attempt before it.
    """
    code, problem = Code(), ""
    if home is not None:
        code, problem = keep_snapshot(home, spec, folder.patch(number), secrets)
    attempt = new_attempt(spec, number, code=code, secrets=secrets, before=old)
    if old is not None:
        attempt = replace(attempt, changed_code=changed_files(home, old.code, code))
    return attempt, problem


def _with_end(folder: RunFolder, run: RunFile, lease: leases.Lease | None) -> RunFile:
    """Return a run whose newest attempt has its duration, though it wrote none as it was killed."""
    if not run.attempts or run.newest.ended_ns is not None or run.newest.seconds is not None:
        return run
    own = lease if lease is not None and lease.attempt == run.newest.number else None
    until_ns = heard_ns(folder.path, own)
    seconds = open_seconds(own, run.newest.started_ns, until_ns)
    return replace(run, attempts=(*run.attempts[:-1], replace(run.newest, seconds=seconds)))


def _next_number(run: RunFile) -> int:
    return run.newest.number + 1 if run.attempts else 1


def _home_of(folder: RunFolder, run: RunFile, is_at_home: bool) -> Project | None:
    """Return the project of a run; the path in a record from elsewhere is not trusted."""
    if is_at_home and run.project:
        return Project(Path(run.project))
    return find_project(folder.path)


def _acquire(folder: RunFolder, number: int, *, take_over: bool) -> leases.Lease:
    try:
        return leases.acquire(folder.path, number, take_over=take_over)
    except OSError as error:
        raise refusal(error, folder.path, "The run cannot be resumed") from error


@contextlib.contextmanager
def _release_on_error(folder: RunFolder, lease: leases.Lease) -> Iterator[None]:
    """Release the lease when an attempt does not come to begin, whatever the reason."""
    try:
        yield
    except BaseException as error:
        leases.release(folder.path, lease)
        if isinstance(error, OSError):
            raise refusal(error, folder.path, "The run cannot be resumed") from error
        raise


@contextlib.contextmanager
def _undo_on_error(folder: RunFolder) -> Iterator[None]:
    """Remove a new folder when its run does not come to begin, whatever the reason."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise refusal(error, folder.path, "The run cannot be recorded") from error
        raise
