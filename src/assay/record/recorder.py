"""Recorder of one open run: the public face of everything that is written into its folder."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import AssayError, InputError, LeaseError, RecordError
from assay.core.facts import (
    Ended,
    EndStatus,
    Evaluated,
    RunFact,
    Started,
    Warned,
    check_metric_name,
)
from assay.core.ports import MediaKeeper
from assay.core.regular_file import read_bytes
from assay.core.secrets.replacement import Secrets
from assay.formats import lease as leases
from assay.formats import run_file
from assay.formats.event_log import event_line, read_events
from assay.formats.json_codec import sync_file, write_atomic, write_json
from assay.formats.run_file import Best, RunFile
from assay.record import logfile, readme
from assay.record.capture import Capture, begin_capture
from assay.record.config_files import MAX_BYTES
from assay.record.deferred import DeferredRows
from assay.record.edits import append_line
from assay.record.ending import ending
from assay.record.key_code import source_of
from assay.record.recordable import NO_STEP, check_text, numbers_of, recordable, whole_step
from assay.record.recorder_thread import BackgroundWork, RecorderThread
from assay.record.redaction import clean_run
from assay.record.run_home import RunHome
from assay.record.writer import MetricsWriter
from assay.store.code_trees import code_blobs
from assay.store.known_projects import remember
from assay.store.layout import Project, RunFolder, refusal

if TYPE_CHECKING:
    from assay.record.watched_folders import FolderWatcher

_TEXTS = ("text", "table")
"""Kinds of artifacts that are texts made here; files are kept as they are."""

_MOST_REPORTED = 1000
"""Sentences about values that cannot be recorded: a step in a name makes a new one each time."""

Listener = Callable[[Mapping[str, float], int], object]


class RunRecorder(MediaKeeper):
    """Writer of one run, made by `start_run` or `start_attempt` and over after `finish`.

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
        """Use `start_run` or `start_attempt`; the newest attempt begins, and its lease is held."""
        self.folder = folder
        self.secrets = secrets or Secrets.among(os.environ)
        self.run = run
        self.id = run.id
        self.logger = logfile.logger_of(run.id)
        self.lacks: tuple[str, ...] = ()
        """Sentences about what the record should have and lost."""

        self._first_secrets = self.secrets.values
        self._lock = threading.RLock()
        self._over = ""
        self._ended: Ended | None = None
        self._capture: Capture | None = None
        self._watcher: FolderWatcher | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._is_synced = False
        self._reported: set[str] = set()
        self._home = RunHome(folder, lease)
        self._config_toml = _read_config(folder)
        # `self.log` is looked up at each call: a listener replaces it.
        self._deferred = DeferredRows(lambda values, step: self.log(values, step), self.report)
        self._background = BackgroundWork(self._deferred.flush_old, on_problem=self._trouble)
        self._worker = self._new_worker()
        self._log_file = logfile.open_log(folder.log, run.id, form, clean=self.secrets.clean)
        self._metrics = self._open_metrics()
        # The writer's own method: a wrapper would cost a tenth of a log call.
        self.log = self._metrics.log  # type: ignore[method-assign]
        self._worker.start()

    def _new_worker(self) -> RecorderThread:
        return RecorderThread(
            f"assay-{self.id}",
            sync=self._sync,
            renew=self._renew_lease,
        )

    def _open_metrics(self) -> MetricsWriter:
        try:
            return MetricsWriter(
                self.folder.metrics,
                self.run.newest.number,
                on_problem=self._trouble,
                on_lost=self._lack,
                on_refused=self.report,
                clean_names=self.secrets.names,
            )
        except BaseException:  # raised again: only the open files must not leak
            self._home.close()
            logfile.close_log(self._log_file)
            raise

    def begin(
        self, fact: Started, project: Project | None, problem: str, *, keep_output: bool
    ) -> None:
        """Tell that the attempt began, with the `problem` of its code; capture its output."""
        if keep_output:
            self._capture = begin_capture(self.folder.output, self.secrets.values)
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

    def log(self, values: Mapping[str, float], step: int = NO_STEP) -> None:
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
        check_metric_name(name)
        self._metrics.axis(name)

    def listen(self, listener: Listener) -> None:
        """Call `listener(values, step)` after each `log`, in the logging thread: be quick."""
        self._refuse_if_over()
        self._listeners = (*self._listeners, listener)
        listeners, log = self._listeners, self._metrics.log

        def tell_all(values: Mapping[str, float], step: int = NO_STEP) -> None:
            numbers = numbers_of(
                values, self.report
            )  # a listener that keeps a live loss would keep its graph
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
        """Continue the curves from `step`; points logged at greater steps leave them.

        So do those of an evaluation that was made because the run was stopped at this step.
        """
        facts = (each.fact for each in read_events(self.folder.events))
        stopped = {
            name
            for fact in facts
            if isinstance(fact, Evaluated) and fact.at_stop and fact.step == step
            for name in fact.metrics
        }
        self._metrics.rewind(step, stopped=sorted(stopped))
        if self.run.newest.from_step != step:
            self._update_attempt(from_step=step)

    def set_best(self, best: Best | None) -> None:
        """Write the best checkpoint so far into `run.json`."""
        self._update(replace(self.run, best=best))

    def set_exactness(self, exactness: str, resume: str = "") -> None:
        """Write into `run.json` how exactly data and run of this attempt can be resumed."""
        self._update_attempt(exactness=exactness, resume=resume)

    def set_inputs(self, inputs: Mapping[str, Mapping[str, str]]) -> None:
        """Write into `run.json` what this attempt reads besides its code and config.

        Nothing is written while another thread writes: whoever ends the run waits for this one, and
        calls it again.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            environment = {**self.run.newest.environment, "inputs": self.secrets.tree(inputs)}
            self._update_attempt(environment=environment)
        finally:
            self._lock.release()

    def set_value(self, name: str, value: Any) -> None:
        """Write a named result that is no curve into `run.json`."""
        check_text(name, "the name of a value")
        try:
            plain = self.secrets.tree(recordable(value, name), name)
        except InputError as error:
            self.report(error)
            return
        name = self.secrets.clean(name)
        with self._lock:
            self._update(replace(self.run, values={**self.run.values, name: plain}))

    def artifact(
        self, source: Any, name: str = "", *, kind: str = "", step: int | None = None
    ) -> str:
        """Keep bytes, a file or a folder by content and return its digest.

        The name is data: no file needs to be called so. Files of a folder are named `name/file`.
        `kind` says how it may be shown (`Artifact`). Of texts and tables the secrets are replaced.
        """
        self._refuse_if_over()
        check_text(name, "the name of an artifact")
        name = self.secrets.clean(name)
        whole = None if step is None else whole_step(step)
        # Imported here, as below: few runs use it, and every script would pay at its start.
        from assay.record.artifact_source import keep_source
        from assay.store.artifacts import keep_artifact

        def keep(data: bytes, part: str) -> str:
            if kind in _TEXTS:
                text = data.decode("utf-8", "surrogateescape")
                data = self.secrets.clean(text).encode("utf-8", "surrogateescape")
            with self._lock:
                kept = keep_artifact(
                    self.folder, data, part, at_ns=time.time_ns(), kind=kind, step=whole
                )
            return kept.digest

        return keep_source(source, name, keep)

    def keep(self, kind: str, name: str, value: Any, step: int | None, **options: Any) -> str:
        """Keep a value of one of the kinds of `MediaKeeper`, and return its digest.

        A value that cannot be kept is reported, and has none: "".
        """
        from assay.record import media

        shown_as = "image" if kind == "images" else kind
        try:
            data = value if kind == "video" else media.encode(kind, value, **options)
            return self.artifact(data, name, kind=shown_as, step=step)
        except InputError as error:
            self.report(error)
        except RecordError:  # the run is over
            raise
        except Exception as error:  # a foreign value may raise anything when it is read
            what = f"The {kind} {name!r} cannot be kept: {type(error).__name__}: {error}."
            self.report(InputError(what))
        return ""

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
        """End the attempt, seal the record and release the lease, once.

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
        self._stop_capture()
        self._home.release_reserve()
        if self._ended is None:
            last = self._metrics.last_step
            at = step if step is not None else self.run.newest.from_step if last is None else last
            self.tell(Ended(status=status, step=at, reason=reason, traceback=traceback))
        ended = self._ended
        assert ended is not None
        reason = "; ".join(filter(None, (reason or self.secrets.clean(ended.reason), self.lacking)))
        newest = replace(
            self.run.newest,
            ended_ns=time.time_ns(),
            seconds=self._home.ran_ns / 1e9,
            status=status,
            reason=reason,
            to_step=ended.step,
        )
        self.run = replace(
            self.run,
            status=status,
            sealed=True,
            attempts=(*self.run.attempts[:-1], newest),
        )
        self._write_end()
        self._leave("The run has ended.")
        if self.secrets.values != self._first_secrets:
            with contextlib.suppress(OSError, AssayError):
                self.run = clean_run(self.folder, self.run, self.secrets)

    def _write_end(self) -> None:
        try:
            run_file.write(self.folder.path, self.run)
            readme.refresh(self.folder.readme, self.run)
        except OSError as error:
            reason = error.strerror or str(error)
            self.logger.warning("The end of the run could not be written: %s", reason)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(*ending(error))

    @property
    def lacking(self) -> str:
        """Parts that the record should have and lost, in one line; empty when it is whole."""
        return f"not kept: {'; '.join(self.lacks)}" if self.lacks else ""

    def _lack(self, what: str) -> None:
        """Remember a loss that the user was told of."""
        self.lacks += (what,)

    def _update_attempt(self, **changes: Any) -> None:
        with self._lock:  # the background thread has something to say of the attempt, too
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

    def report(self, error: AssayError) -> None:
        """Warn of a value that cannot be recorded, once for each sentence; nothing is raised."""
        message = error.what if not error.fix else f"{error.what} ({error.fix})"
        if message not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(message)
            self._trouble(message)

    def _trouble(self, message: str) -> None:
        """Warn of something that the user should know and that stops nothing."""
        self.logger.warning(message)
        with contextlib.suppress(OSError):
            self._append_event(Warned(message=message))

    def _append_event(self, fact: RunFact) -> None:
        values = {each.name: getattr(fact, each.name) for each in fields(fact)}
        texts = {name: it for name, it in values.items() if isinstance(it, str | Mapping)}
        cleaned = {name: self.secrets.tree(it) for name, it in texts.items()}
        fact = replace(fact, **cleaned)
        append_line(self.folder.events, event_line(fact, time.time_ns()))

    def _make_again(self) -> None:
        """Make the deleted folder of the run again, with all that is known of it, or OSError."""
        self._home.recreate(self.run.newest.number)
        write_atomic(self.folder.config_toml, self._config_toml, durable=False)
        readme.write_first(self.folder.readme, self.run, "")
        run_file.write(self.folder.path, self.run)
        logfile.reopen(self._log_file)
        self._metrics.check()
        self._lack("what was in its folder before that was deleted or moved")
        self._trouble(
            "The folder of this run was deleted or moved while it ran, and was made again. "
            "Its curves are there; checkpoints, artifacts and events of before are not."
        )

    def _learn_secrets(self) -> None:
        """Look for variables that the program has set since, as those of a `.env` file."""
        self.secrets.add(Secrets.among(os.environ).values)
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
            self._metrics.check(at_once=False)
            self._metrics.sync()
            if not self._is_synced:
                sync_file(self.folder.run_json)
                self._is_synced = True
        return True

    def _renew_lease(self, is_due: bool) -> bool:
        """Write a beat if it is due, else check the lease; return False when the run is lost."""
        try:
            self._home.renew_lease(is_due=is_due)
        except LeaseError as error:
            self._give_up(str(error.what))
            return False
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
        self._home.close()
        logfile.close_log(self._log_file)
        self._stop_capture()

    def _stop_capture(self) -> None:
        if self._capture is not None:
            self._capture.stop()
            self.secrets.add(self._capture.find_secrets())

    def _refuse_if_over(self) -> None:
        if os.getpid() != self._worker.pid:
            raise RecordError(
                "A process forked from the one that writes this run cannot write to it."
            )
        if self._over:
            raise RecordError(self._over, where=str(self.folder.path))


def _read_config(folder: RunFolder) -> bytes:
    """Return the config of the run; b"" if it has none."""
    if not folder.config_toml.exists():
        return b""
    return read_bytes(folder.config_toml, MAX_BYTES)
