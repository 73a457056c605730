"""Recorder of one open run: the public face of everything that is written into its folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from assay.core import lease as leases
from assay.core import metrics_file, run_file
from assay.core.errors import AssayError, InputError, LeaseError, RecordError
from assay.core.event_log import Ended, EndStatus, RunFact, Started, Warned, event_line
from assay.core.ids import is_plain_name, new_run_id
from assay.core.json_codec import sync_file, write_atomic, write_json
from assay.core.regular_file import read_bytes
from assay.core.run_file import Attempt, Best, Code, Kind, RunFile, Summary
from assay.core.secret import Secrets
from assay.record import logfile, readme
from assay.record.attempt import changed_files, keep_snapshot, new_attempt, read_run
from assay.record.background import BackgroundWork
from assay.record.config_files import MAX_BYTES, write_config
from assay.record.deferred import DeferredRows
from assay.record.edits import append_line
from assay.record.ending import ending
from assay.record.environment import environment
from assay.record.recordable import check_text, numbers_of, recordable, whole_step
from assay.record.recorder_thread import RecorderThread
from assay.record.redaction import clean_file
from assay.record.run_home import RunHome
from assay.record.writer import MetricsWriter
from assay.store import authorship
from assay.store.known_projects import remember
from assay.store.layout import (
    Project,
    RunFolder,
    create_run_folder,
    find_project,
    refusal,
    refuse_links,
)

if TYPE_CHECKING:
    from assay.record.capture import Capture
    from assay.record.watched_folders import FolderWatcher

Listener = Callable[[Mapping[str, float], int], object]


class RunRecorder:
    """Writer of one run, made by `start` or `resume` and over after `finish`.

    Config and environment are on disk before either of the two returns. A background thread renews
    the lease every ten seconds and syncs the metrics about once a second.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunFile,
        lease: leases.Lease,
        form: logging.Formatter | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        """Use `start` or `resume`; the newest attempt of `run` begins, and its lease is held."""
        self.folder = folder
        self.secrets = secrets or Secrets.known(os.environ)
        self.run = run
        self.id = run.id
        self.logger = logfile.logger_of(run.id)
        self.lacks: tuple[str, ...] = ()
        """Sentences about what the record should have and lost."""

        self._first_secrets = self.secrets.values
        self._lease = lease
        self._lock = threading.RLock()
        self._over = ""
        self._ended: Ended | None = None
        self._capture: Capture | None = None
        self._watcher: FolderWatcher | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._is_synced = False
        self._home = RunHome(folder)
        self._config_toml = b""
        if folder.config_toml.exists():
            self._config_toml = read_bytes(folder.config_toml, MAX_BYTES)
        # `self.log` is looked up at each call: a listener replaces it.
        self._deferred = DeferredRows(lambda values, step: self.log(values, step))
        self._background = BackgroundWork(self._deferred.flush_old, on_problem=self._trouble)
        self._worker = RecorderThread(
            f"assay-{run.id}",
            prepare=lambda: self._metrics.prepare(),
            sync=self._sync,
            renew=self._renew_lease,
        )
        self._log_file = logfile.open_log(folder.log, run.id, form, clean=self.secrets.clean)
        self._metrics = self._open_metrics()
        # The writer's own method: a wrapper would cost a tenth of a log call.
        self.log = self._metrics.log  # type: ignore[method-assign]
        # What `finish` needs is imported now. When Ctrl-C ends a script, a class made in `finish`
        # lets CPython 3.11 forget the interrupt and report another exit code.
        for name in ("assay.record.compaction", "assay.store.series"):
            import_module(name)
        self._worker.start()

    def _open_metrics(self) -> MetricsWriter:
        try:
            return MetricsWriter(
                self.folder.metrics,
                self.run.newest.number,
                on_problem=self._trouble,
                on_lost=self._lack,
                on_grown=self._worker.wake,
            )
        except BaseException:  # raised again: only the open files must not leak
            self._home.close()
            logfile.close_log(self._log_file)
            raise

    @classmethod
    def start(
        cls,
        project: Project,
        *,
        kind: Kind = "train",
        tag: str = "",
        desc: str = "",
        config_toml: str = "",
        config_files: Mapping[str, str] | None = None,
        config_path: str = "",
        parent: str = "",
        config_hash: str = "",
        seedless_hash: str = "",
        launch: Mapping[str, Any] | None = None,
        seeds: Mapping[str, int] | None = None,
        devices: Sequence[str] = (),
        command: Sequence[str] | None = None,
        code_dirs: Sequence[Path] = (),
        code: Code | None = None,
        keep_code: bool = True,
        keep_output: bool = False,
        secrets: Secrets | None = None,
        log_format: str = "",
        date_format: str = "",
    ) -> Self:
        """Start a new run in a new folder.

        `config_toml` comes without secrets, and `secrets` are those that the caller knows.
        `code_dirs` are folders outside of the project whose code belongs to it; `code` is a
        snapshot that was taken before, of which this process runs the files. With `keep_output`
        all that the process prints is kept in `output.txt` and still shown. `log_format` and
        `date_format` are those of `logging.Formatter`, for `log.txt`.
        """
        secrets = secrets or Secrets.known(
            os.environ, sys.orig_argv if command is None else command
        )
        tag, desc = secrets.clean(tag), secrets.clean(desc)
        created_ns = time.time_ns()
        run_id = new_run_id()
        form = logfile.formatter(tag or run_id, log_format, date_format)
        created = datetime.fromtimestamp(created_ns / 1e9)
        folder = create_run_folder(project, run_id=run_id, tag=tag, created=created)
        attempt = new_attempt(
            1,
            started_ns=created_ns,
            config_hash=config_hash,
            seedless_hash=seedless_hash,
            launch=launch or {},
            seeds=seeds or {},
            devices=devices,
            command=command,
            secrets=secrets,
        )
        with _undone(folder):
            lease = leases.acquire(folder.path, 1)
            write_config(folder, config_toml, config_files or {}, attempt=1, secrets=secrets)
            kept, problem = Code(), ""
            if keep_code:
                kept, problem = keep_snapshot(
                    project, code_dirs, folder.patch(), secrets, frozen=code
                )
            run = RunFile(
                id=run_id,
                kind=kind,
                tag=tag,
                parent=parent,
                created_ns=created_ns,
                project=str(project.root),
                config_path=config_path,
                attempts=(replace(attempt, code=kept, environment=environment()),),
            )
            run = authorship.signed(folder, run)
            readme.write_first(folder.readme, run, desc)
            run_file.write(folder.path, run, durable=False)  # the thread syncs it within a second
            recorder = cls(folder, run, lease, form, secrets)
        recorder._capture = _captured(folder.output, secrets) if keep_output else None
        recorder._begin(Started(attempt=1), project, problem)
        return recorder

    @classmethod
    def resume(
        cls,
        folder: RunFolder,
        *,
        from_step: int,
        project: Project | None = None,
        checkpoint: str = "",
        changed: Sequence[str] = (),
        config_toml: str | None = None,
        config_files: Mapping[str, str] | None = None,
        config_hash: str | None = None,
        seedless_hash: str | None = None,
        launch: Mapping[str, Any] | None = None,
        seeds: Mapping[str, int] | None = None,
        devices: Sequence[str] = (),
        command: Sequence[str] | None = None,
        code_dirs: Sequence[Path] = (),
        code: Code | None = None,
        keep_code: bool = True,
        keep_output: bool = False,
        secrets: Secrets | None = None,
        log_format: str = "",
        date_format: str = "",
        take_over: bool = False,
        is_trusted: bool = False,
    ) -> Self:
        """Begin a further attempt of a run at `from_step`; later points are kept as a branch.

        Arguments that are None stay as the newest attempt had them. With `is_trusted` a record that
        was not made here belongs to this user from now on. LeaseError when somebody writes the run.
        """
        secrets = secrets or Secrets.known(
            os.environ, sys.orig_argv if command is None else command
        )
        before = read_run(folder)
        refuse_links(folder)
        form = logfile.formatter(before.tag or before.id, log_format, date_format)
        lease = _acquire(folder, _next_number(before), take_over=take_over)
        with _released(folder, lease):
            before = read_run(folder)  # again: now nobody else writes it
            number = _next_number(before)
            old = before.newest if before.attempts else Attempt(number=0, started_ns=0)
            is_own = authorship.is_own(folder, before)  # as it was found: what follows changes it
            is_at_home = is_own and not authorship.is_moved(folder, before)
            if config_toml is not None:
                write_config(
                    folder, config_toml, config_files or {}, attempt=number, secrets=secrets
                )
            home = _home_of(folder, before, is_at_home) if project is None else project
            kept, problem = Code(), ""
            if keep_code and home is not None:
                kept, problem = keep_snapshot(
                    home, code_dirs, folder.patch(number), secrets, frozen=code
                )
            attempt = new_attempt(
                number,
                started_ns=time.time_ns(),
                config_hash=old.config_hash if config_hash is None else config_hash,
                seedless_hash=old.seedless_hash if seedless_hash is None else seedless_hash,
                launch=old.launch if launch is None else launch,
                seeds=old.seeds if seeds is None else seeds,
                devices=devices,
                command=command,
                secrets=secrets,
            )
            attempt = replace(
                attempt,
                from_step=from_step,
                to_step=from_step,
                changed=tuple(changed),
                changed_code=changed_files(home, old.code, kept),
                code=kept,
                environment=environment(),
            )
            run = replace(
                before, status="running", sealed=False, attempts=(*before.attempts, attempt)
            )
            if home is not None and not is_at_home:
                run = replace(run, project=str(home.root))
            if is_own or is_trusted:
                run = authorship.signed(folder, run)
            run_file.write(folder.path, run)
            recorder = cls(folder, run, lease, form, secrets)
        recorder._capture = _captured(folder.output, secrets) if keep_output else None
        recorder.rewind(from_step)
        started = Started(attempt=number, step=from_step, checkpoint=checkpoint)
        recorder._begin(started, home, problem)
        return recorder

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values of several metrics at one step; on return they survive kill -9."""
        self._metrics.log(values, step)

    def tell(self, fact: RunFact) -> None:
        """Append a fact to `events.jsonl`; `finish` does not repeat an `Ended` told before."""
        self._refuse_if_over()
        if isinstance(fact, Ended):
            self._ended = fact
        if isinstance(fact, Warned):
            self.logger.warning(fact.message)
        try:
            self._append_event(fact)
        except OSError as error:
            self.logger.warning("An event could not be written (%s).", error.strerror or error)

    def log_later(self, values: Mapping[str, Any], step: int) -> None:
        """Log tensors that lie on a device; they are fetched together, every 64 calls or second.

        Values that were not fetched yet do not survive the death of this process.
        """
        self._refuse_if_over()
        self._deferred.add(values, step)

    def axis(self, name: str) -> None:
        """Make metric `name` the x axis of the metrics that are logged together with it."""
        self._refuse_if_over()
        check_text(name, "the name of an axis")
        metrics_file.check_name(name)
        self._metrics.axis(name)

    def listen(self, listener: Listener) -> None:
        """Call `listener(values, step)` after each `log`, in the logging thread: be quick."""
        self._refuse_if_over()
        self._listeners = (*self._listeners, listener)
        listeners, log = self._listeners, self._metrics.log

        def tell_all(values: Mapping[str, float], step: int) -> None:
            numbers = numbers_of(values)  # a listener that keeps a live loss would keep its graph
            log(numbers, step)
            for each in listeners:
                each(numbers, step)

        self.log = tell_all  # type: ignore[method-assign]

    def each_second(
        self, work: Callable[[], object], *, at_end: Callable[[], object] = lambda: None
    ) -> None:
        """Call `work` about once a second in the background; at the end again, then `at_end`."""
        self._refuse_if_over()
        self._background.add(work, at_end)

    def rewind(self, step: int) -> None:
        """Continue the curves from `step`; points logged at greater steps leave them."""
        self._metrics.rewind(step)
        if self.run.newest.from_step != step:
            self._update_attempt(from_step=step)

    def set_best(self, best: Best | None) -> None:
        """Write the best checkpoint so far into `run.json`."""
        self._update(replace(self.run, best=best))

    def set_exactness(self, exactness: str) -> None:
        """Write into `run.json` how exactly this attempt can be resumed."""
        self._update_attempt(exactness=exactness)

    def set_value(self, name: str, value: Any) -> None:
        """Write a named result that is no curve into `run.json`."""
        check_text(name, "the name of a value")
        plain = self.secrets.tree(recordable(value, name), name)
        with self._lock:
            self._update(replace(self.run, values={**self.run.values, name: plain}))

    def artifact(
        self, source: Any, name: str = "", *, kind: str = "", step: int | None = None
    ) -> str:
        """Keep bytes, a file or a folder by content and return its digest.

        The name is data: no file needs to be called so. Files of a folder are named `name/file`.
        `kind` says how it may be shown (`Artifact`).
        """
        self._refuse_if_over()
        check_text(name, "the name of an artifact")
        whole = None if step is None else whole_step(step)
        # Imported here, as below: few runs use it, and every script would pay at its start.
        from assay.record.artifact_source import keep_source
        from assay.store.artifacts import keep_artifact

        def keep(data: bytes, part: str) -> str:
            with self._lock:
                kept = keep_artifact(
                    self.folder, data, part, at_ns=time.time_ns(), kind=kind, step=whole
                )
            return kept.digest

        return keep_source(source, name, keep)

    def watch(
        self,
        name: str,
        suffixes: Sequence[str] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Watch a folder, by default one of the run, and return it; files are listed until the end.

        Creations, changes and deletions are recorded, of all files or of those with one of the
        `suffixes`.
        """
        self._refuse_if_over()
        check_text(name, "the name of a watched folder")
        if not is_plain_name(name):
            raise InputError(
                f"A watched folder cannot be called {name!r}.",
                fix='Take a plain name: run.watch("log")',
            )
        if isinstance(suffixes, str):
            raise InputError("`suffixes` is a list.", fix=f"run.watch({name!r}, [{suffixes!r}])")
        place = self.folder.path / "files" / name if folder is None else Path(folder).absolute()
        if self._watcher is None:
            from assay.record.watched_folders import FolderWatcher

            self._watcher = FolderWatcher(self.folder.files, on_problem=self._trouble)
        try:
            self._watcher.add(name, place, suffixes)
        except OSError as error:
            raise refusal(error, place, "The folder cannot be watched") from error
        return place

    def keycode(self, thing: Any) -> None:
        """Keep the source of a function, class or module with the run, once for each project."""
        self._refuse_if_over()
        from assay.record.key_code import source_of
        from assay.store.code_trees import code_blobs

        name, source = source_of(thing, self.secrets)
        if not self.run.project:
            raise InputError("The run belongs to no project, so there is nowhere to keep code.")
        digest = code_blobs(Project(Path(self.run.project))).put(source)
        with self._lock:
            code = self.run.newest.code
            self._update_attempt(code=replace(code, keys={**code.keys, name: digest}))

    def finish(
        self,
        status: EndStatus = "finished",
        reason: str = "",
        traceback: str = "",
        *,
        step: int | None = None,
    ) -> None:
        """End the attempt, compact the metrics, seal the record and release the lease, once.

        `step` is where the attempt ended, by default the last one that was logged.
        """
        with self._lock:
            if self._over or os.getpid() != self._worker.pid:
                return
            self._worker.stop()
            self._worker.join()  # first: a beat under way would take the lease again
            self._learn_secrets()
            self._finish(status, self.secrets.clean(" ".join(reason.split())), traceback, step)

    def _finish(self, status: EndStatus, reason: str, traceback: str, step: int | None) -> None:
        if not self._home.is_intact():
            with contextlib.suppress(OSError):
                self._make_again()
        if not self.folder.path.is_dir():
            self._give_up("The folder of this run is gone.")
            self.lacks += ("all of it: its folder is gone",)
            return
        self._stop_logging()
        summaries, is_compacted = self._compact_metrics()
        last = max((each.step for each in summaries.values()), default=self.run.newest.from_step)
        self._home.release_reserve()
        if self._ended is None:
            at = last if step is None else step
            self.tell(Ended(status=status, step=at, reason=reason, traceback=traceback))
        ended = self._ended
        assert ended is not None
        reasons = (reason or self.secrets.clean(ended.reason), self.lacking)
        newest = replace(
            self.run.newest,
            ended_ns=time.time_ns(),
            status=status,
            reason="; ".join(filter(None, reasons)),
            to_step=ended.step,
        )
        self.run = replace(
            self.run,
            status=status,
            sealed=is_compacted,
            attempts=(*self.run.attempts[:-1], newest),
            summaries=summaries,
        )
        try:
            run_file.write(self.folder.path, self.run)
            readme.refresh(self.folder.readme, self.run)
        except OSError as error:
            reason = error.strerror or str(error)
            self.logger.warning("The end of the run could not be written: %s", reason)
        self._leave("The run has ended.")

    def _stop_logging(self) -> None:
        """Write all that is still waiting into the metrics, and close them."""
        self._metrics.check()
        try:
            self._deferred.flush()
        except Exception as error:
            # The device itself may be what failed, with an error of its library; what could not be
            # fetched is lost, and the end of the run has to be written all the same.
            self._trouble(f"The last deferred values are lost: {type(error).__name__}: {error}")
        self._background.finish()
        if self._watcher is not None:
            self._watcher.finish()
        self._metrics.close(durable=False)

    def _compact_metrics(self) -> tuple[Mapping[str, Summary], bool]:
        """Compact the closed metrics; return their summaries, and whether it was possible."""
        from assay.record.compaction import compact  # both were imported in `__init__`
        from assay.store.series import summaries

        is_compacted = compact(self.folder.metrics)
        if not is_compacted:
            with contextlib.suppress(OSError):  # the disk is full or gone; it was told before
                sync_file(self.folder.metrics)
        try:
            return summaries(self.folder.metrics), is_compacted
        except (OSError, AssayError) as error:
            self.logger.warning("The metrics cannot be read back: %s", error)
            return {}, is_compacted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(*ending(error))

    def _begin(self, fact: Started, project: Project | None, problem: str) -> None:
        self.tell(fact)
        if problem:
            self._trouble(problem)
        code = self.run.newest.code
        self.logger.debug(
            "attempt %d from step %d in %s", fact.attempt, fact.step, self.folder.path
        )
        self.logger.debug(
            "code %s: %d files, left out: %s", code.snapshot[:12], code.files, list(code.left_out)
        )
        if project is not None:
            try:
                remember(project.root)
            except OSError as error:
                self.logger.info(
                    "The list of known projects cannot be written: %s", error.strerror or error
                )

    @property
    def lacking(self) -> str:
        """Parts that the record should have and lost, in one line; empty when it is whole."""
        return f"not kept: {'; '.join(self.lacks)}" if self.lacks else ""

    def _lack(self, what: str) -> None:
        """Remember a loss that the user was told of."""
        self.lacks += (what,)

    def _update_attempt(self, **changes: Any) -> None:
        newest = replace(self.run.newest, **changes)
        self._update(replace(self.run, attempts=(*self.run.attempts[:-1], newest)))

    def _update(self, run: RunFile) -> None:
        with self._lock:
            self._refuse_if_over()
            before, self.run = self.run, run
            try:
                write_json(self.folder.run_json, run, durable=False)
            except OSError as error:
                self.logger.warning("run.json could not be written (%s).", error.strerror or error)
            except BaseException:
                # A value that JSON cannot hold now would keep the end from being written as well.
                self.run = before
                raise

    def _trouble(self, message: str) -> None:
        """Warn of something that the user should know and that stops nothing."""
        self.logger.warning(message)
        with contextlib.suppress(OSError):
            self._append_event(Warned(message=message))

    def _append_event(self, fact: RunFact) -> None:
        values = {each.name: getattr(fact, each.name) for each in fields(fact)}
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        cleaned = {name: self.secrets.clean(text) for name, text in texts.items()}
        fact = replace(fact, **cleaned)  # type: ignore[arg-type]  # fields of texts are texts
        append_line(self.folder.events, event_line(fact, time.time_ns()))

    def _make_again(self) -> None:
        """Make the deleted folder of the run again, with all that is known of it, or OSError."""
        path = self.folder.path
        self._home.recreate()
        self._lease = leases.acquire(path, self.run.newest.number)
        write_atomic(self.folder.config_toml, self._config_toml, durable=False)
        readme.write_first(self.folder.readme, self.run, "")
        run_file.write(path, self.run)
        logfile.reopen(self._log_file)
        self._metrics.check()
        self._lack("what was in its folder before that was deleted or moved")
        self._trouble(
            "The folder of this run was deleted or moved while it ran, and was made again. "
            "Its curves are there; checkpoints, artifacts and events of before are not."
        )

    def _learn_secrets(self) -> None:
        """Look for variables that the program has set since, as those of a `.env` file."""
        self.secrets.add(Secrets.known(os.environ).values)
        if self._capture is not None:
            self._capture.replace(self.secrets.values)

    def _sync(self) -> bool:
        """Sync the record; return False when its folder had to be made again."""
        self._learn_secrets()
        self._background.run()
        with contextlib.suppress(OSError):  # no descriptor is left: the next second may have one
            if not self._home.is_intact():
                self._make_again()
                return False
            self._metrics.check()
            self._metrics.sync()
            if not self._is_synced:
                sync_file(self.folder.run_json)
                self._is_synced = True
        return True

    def _renew_lease(self, is_due: bool) -> bool:
        """Write a beat if it is due, else check the lease; return False when the run is lost."""
        try:
            if is_due:
                self._lease = leases.beat(self.folder.path, self._lease)
            else:
                leases.check(self.folder.path, self._lease)
        except LeaseError as error:
            # In a deleted folder nobody has taken the run over: it is made again at the next sync.
            if self._home.is_intact():
                self._give_up(str(error.what))
                return False
        except OSError:
            pass  # a full disk or an absent network: the next beat may get through
        return True

    def _give_up(self, why: str) -> None:
        """Let go of a run that another process owns now, or nobody, without touching it."""
        self._metrics.abandon(why)
        self._leave(why)
        logging.getLogger(logfile.LOGGER).warning(
            "%s Nothing is recorded any more. (%s)", why, self.folder.path
        )

    def _leave(self, why: str) -> None:
        self._over = why
        self._worker.stop()
        with contextlib.suppress(OSError):
            leases.release(self.folder.path, self._lease)
        self._home.close()
        logfile.close_log(self._log_file)
        if self._capture is not None:
            self._capture.stop()
        if self.secrets.values != self._first_secrets:
            with contextlib.suppress(OSError):
                self._clean_again()

    def _clean_again(self) -> None:
        """Remove secrets that became known later from what is written already."""
        for path in (self.folder.output, self.folder.log, self.folder.events):
            clean_file(path, self.secrets)

    def _refuse_if_over(self) -> None:
        if os.getpid() != self._worker.pid:
            raise RecordError(
                "A process forked from the one that writes this run cannot write to it."
            )
        if self._over:
            raise RecordError(self._over, where=str(self.folder.path))


def _next_number(run: RunFile) -> int:
    return run.newest.number + 1 if run.attempts else 1


def _home_of(folder: RunFolder, run: RunFile, is_at_home: bool) -> Project | None:
    """Return the project of a run; the path in a record from elsewhere is not trusted."""
    if is_at_home and run.project:
        return Project(Path(run.project))
    return find_project(folder.path)


def _captured(path: Path, secrets: Secrets) -> Capture | None:
    from assay.record.capture import capture  # only where output is kept: it needs a process

    return capture(path, secrets.values)


def _acquire(folder: RunFolder, number: int, *, take_over: bool) -> leases.Lease:
    try:
        return leases.acquire(folder.path, number, take_over=take_over)
    except OSError as error:
        raise refusal(error, folder.path, "The run cannot be resumed") from error


@contextlib.contextmanager
def _released(folder: RunFolder, lease: leases.Lease) -> Iterator[None]:
    """Release the lease when an attempt does not come to begin, whatever the reason."""
    try:
        yield
    except BaseException as error:
        leases.release(folder.path, lease)
        if isinstance(error, OSError):
            raise refusal(error, folder.path, "The run cannot be resumed") from error
        raise


@contextlib.contextmanager
def _undone(folder: RunFolder) -> Iterator[None]:
    """Remove a new folder when its run does not come to begin, whatever the reason."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise refusal(error, folder.path, "The run cannot be recorded") from error
        raise
