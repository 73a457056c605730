"""The recorder: one open run, and the folder that it fills."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import platform
import signal
import stat
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
from assay.core.directory import create_file, open_directory
from assay.core.errors import AssayError, InputError, LeaseError, RecordError
from assay.core.event_log import Ended, EndStatus, RunFact, Started, Warned, event_line
from assay.core.ids import is_plain_name, new_run_id
from assay.core.json_codec import sync_file, write_atomic, write_json
from assay.core.regular_file import read_bytes
from assay.core.run_file import Attempt, Best, Code, Kind, RunFile
from assay.core.secret import Secrets
from assay.core.signals import Obeyed, number_of
from assay.record import logfile, readme
from assay.record.config_files import MAX_BYTES, write_config
from assay.record.deferred import DeferredRows
from assay.record.edits import append_line
from assay.record.environment import environment
from assay.record.recordable import check_text, numbers_of, recordable, whole_step
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

SYNC_S = leases.CHECK_S
RESERVE_NAME = ".reserve.tmp"
RESERVE_BYTES = 1 << 16
"""Room on the disk that is kept for the end of the run, which is written when the disk is full as well."""

Listener = Callable[[Mapping[str, float], int], object]


class RunRecorder:
    """Writes one run. Made by `start` or `resume`; over when `finish` was called.

    Config and environment are on disk before either of the two returns. A thread of its own says
    every ten seconds that the run is alive, and syncs the metrics about once a second.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunFile,
        lease: leases.Lease,
        form: logging.Formatter | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        """Use `start` or `resume`. `run` holds the attempt that begins as its newest; the lease is
        held already."""
        self.folder = folder
        self.secrets = secrets or Secrets.known(os.environ)
        self._first_secrets = self.secrets.values
        self.run = run
        self.id = run.id
        self.logger = logfile.logger_of(run.id)
        self._lease = lease
        self._lock = threading.RLock()
        self._over = ""
        self._stopping = False
        self._ended: Ended | None = None
        self._capture: Capture | None = None
        self._watcher: FolderWatcher | None = None
        self._listeners: tuple[Listener, ...] = ()
        self.lacks: tuple[str, ...] = ()
        """Sentences about what the record should have and lost."""

        with contextlib.suppress(OSError):
            self._reserve()
        self._home = open_directory(
            folder.path, follow=True
        )  # held: its number is given to no other folder
        self._folder_mode = stat.S_IMODE(self._home.mode)
        self._config_toml = (
            read_bytes(folder.config_toml, MAX_BYTES) if folder.config_toml.exists() else b""
        )
        self._later = DeferredRows(lambda values, step: self.log(values, step))
        self._chores: tuple[Callable[[], object], ...] = (self._later.flush_old,)
        self._at_end: tuple[Callable[[], object], ...] = ()
        self._wake = threading.Event()
        self._log_file = logfile.open_log(folder.log, run.id, form, clean=self.secrets.clean)
        try:
            self._metrics = MetricsWriter(
                folder.metrics,
                run.newest.number,
                on_problem=self._trouble,
                on_lost=self._lack,
                on_grown=self._wake.set,
            )
        except BaseException:
            self._home.close()
            logfile.close_log(self._log_file)
            raise
        # The writer's own method: a wrapper would cost a tenth of a log call.
        self.log = self._metrics.log  # type: ignore[method-assign]
        # What the end needs is loaded now. Not in the end itself: of a script that Ctrl-C ends,
        # Python would forget on
        # the way out that it was interrupted (making a data class does that), and report another
        # exit code.
        for name in ("assay.record.compaction", "assay.store.series"):
            import_module(name)
        self._thread = threading.Thread(target=self._beat, name=f"assay-{run.id}", daemon=True)
        self._pid = os.getpid()
        self._thread.start()

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
        keep_code: bool = True,
        keep_output: bool = False,
        secrets: Secrets | None = None,
        log_format: str = "",
        date_format: str = "",
    ) -> Self:
        """A new run in a new folder. `code_dirs` are folders outside of the project whose code
        belongs to it.

        With `keep_output` all that the process prints from now on is kept in `output.txt`, and
        shown as before. `secrets` are those that the caller knows; `config_toml` comes without
        them. `log_format` and `date_format` are for the lines of `log.txt`, as `logging.Formatter`
        takes them.
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
        attempt = _attempt(
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
            code, problem = (
                _code(project, code_dirs, folder.patch(), secrets) if keep_code else (Code(), "")
            )
            run = RunFile(
                id=run_id,
                kind=kind,
                tag=tag,
                parent=parent,
                created_ns=created_ns,
                project=str(project.root),
                config_path=config_path,
                attempts=(replace(attempt, code=code, environment=environment()),),
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
        keep_code: bool = True,
        keep_output: bool = False,
        secrets: Secrets | None = None,
        log_format: str = "",
        date_format: str = "",
        take_over: bool = False,
        is_trusted: bool = False,
    ) -> Self:
        """A further attempt of a run: the curve goes on from `from_step`, what lay behind it is
        kept as a branch.

        What is not given (None) stays as the newest attempt had it. LeaseError when somebody is
        writing this run. With `is_trusted` a record that was not made here is one of this user from
        now on.
        """
        secrets = secrets or Secrets.known(
            os.environ, sys.orig_argv if command is None else command
        )
        before = _read_run(folder)
        refuse_links(folder)
        form = logfile.formatter(before.tag or before.id, log_format, date_format)
        number = before.newest.number + 1 if before.attempts else 1
        try:
            lease = leases.acquire(folder.path, number, take_over=take_over)
        except OSError as error:
            raise refusal(error, folder.path, "The run cannot be resumed") from error
        try:
            before = _read_run(folder)  # again: now nobody else writes it
            number = before.newest.number + 1 if before.attempts else 1
            old = before.newest if before.attempts else None
            is_own = authorship.is_own(folder, before)  # as it was found: what follows changes it
            if config_toml is not None:
                write_config(
                    folder, config_toml, config_files or {}, attempt=number, secrets=secrets
                )
            is_at_home = is_own and not authorship.is_moved(folder, before)
            home = project
            if home is None:  # of a record that comes from elsewhere the path is data
                home = (
                    Project(Path(before.project))
                    if is_at_home and before.project
                    else find_project(folder.path)
                )
            code, problem = Code(), ""
            if keep_code and home is not None:
                code, problem = _code(home, code_dirs, folder.patch(number), secrets)
            attempt = _attempt(
                number,
                started_ns=time.time_ns(),
                config_hash=_else(config_hash, old.config_hash if old else ""),
                seedless_hash=_else(seedless_hash, old.seedless_hash if old else ""),
                launch=_else(launch, old.launch if old else {}),
                seeds=_else(seeds, old.seeds if old else {}),
                devices=devices,
                command=command,
                secrets=secrets,
            )
            attempt = replace(
                attempt,
                from_step=from_step,
                to_step=from_step,
                changed=tuple(changed),
                changed_code=_changed_code(home, old.code if old else Code(), code),
                code=code,
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
        except BaseException as error:
            leases.release(folder.path, lease)
            if isinstance(error, OSError):
                raise refusal(error, folder.path, "The run cannot be resumed") from error
            raise
        recorder._capture = _captured(folder.output, secrets) if keep_output else None
        recorder.rewind(from_step)
        recorder._begin(
            Started(attempt=number, step=from_step, checkpoint=checkpoint), home, problem
        )
        return recorder

    # ---------------------------------------------------------------------------------------- what happens meanwhile

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Points of several metrics at one step. When it returns, they survive the death of this
        process."""
        self._metrics.log(values, step)

    def tell(self, fact: RunFact) -> None:
        """Write a fact to `events.jsonl`. An end is remembered; `finish` does not say it again."""
        self._refuse_if_over()
        if isinstance(fact, Ended):
            self._ended = fact
        if isinstance(fact, Warned):
            self.logger.warning(fact.message)
        try:
            append_line(self.folder.events, event_line(self._without_secrets(fact), time.time_ns()))
        except OSError as error:
            self.logger.warning("An event could not be written (%s).", error.strerror or error)

    def log_later(self, values: Mapping[str, Any], step: int) -> None:
        """As `log`, for tensors on a device: they are fetched together, after 64 calls or a second,
        not waited for now.

        What was not fetched yet does not survive the death of this process.
        """
        self._refuse_if_over()
        self._later.add(values, step)

    def axis(self, name: str) -> None:
        """From now on the metric `name` is the x axis of those that are logged together with it."""
        self._refuse_if_over()
        check_text(name, "the name of an axis")
        metrics_file.check_name(name)
        self._metrics.axis(name)

    def listen(self, listener: Listener) -> None:
        """Call `listener(values, step)` after each `log`, in the thread that logs: it should do
        next to nothing."""
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
        """Call `work` about once a second in the background, and a last time before `at_end` when
        the run ends."""
        self._refuse_if_over()
        self._chores = (*self._chores, work)
        self._at_end = (*self._at_end, at_end)

    def rewind(self, step: int) -> None:
        """The run goes on from `step`: points logged at greater steps are no longer on the
        curve."""
        self._metrics.rewind(step)
        newest = self.run.newest
        if newest.from_step != step:
            self._update(
                replace(
                    self.run, attempts=(*self.run.attempts[:-1], replace(newest, from_step=step))
                )
            )

    def set_best(self, best: Best | None) -> None:
        """Let `run.json` say what is best so far."""
        self._update(replace(self.run, best=best))

    def set_exactness(self, exactness: str) -> None:
        """Let `run.json` say how exactly this attempt could be gone on with."""
        attempts = (*self.run.attempts[:-1], replace(self.run.newest, exactness=exactness))
        self._update(replace(self.run, attempts=attempts))

    def set_value(self, name: str, value: Any) -> None:
        """Let `run.json` hold one more value by name: a result that is no curve."""
        check_text(name, "the name of a value")
        plain = self.secrets.tree(recordable(value, name), name)
        with self._lock:
            self._update(replace(self.run, values={**self.run.values, name: plain}))

    def artifact(
        self, source: Any, name: str = "", *, kind: str = "", step: int | None = None
    ) -> str:
        """Keep a file (or bytes) by content and return its digest. The name is data: it need not be
        a file's.

        Of a folder all files are kept, as `name/file`; the digest is that of their names and
        digests. `kind` says how it may be shown (`Artifact`).
        """
        self._refuse_if_over()
        check_text(name, "the name of an artifact")
        whole = None if step is None else whole_step(step)
        if isinstance(source, bytes | bytearray | memoryview):
            if not name:
                raise InputError(
                    "Bytes need a name to be kept under.", fix='run.artifact(data, "plot.png")'
                )
            return self._keep(bytes(source), name, kind, whole)
        if not isinstance(source, str | os.PathLike):
            fix = "run.artifact(path) keeps a file or folder, run.artifact(data, name) bytes"
            raise InputError(f"A {type(source).__name__} is no artifact.", fix=fix)
        path = Path(os.fsdecode(source))
        name = name or path.resolve().name
        try:
            if not path.is_dir():
                return self._keep(path.read_bytes(), name, kind, whole)
            digest = hashlib.sha256()
            for file in sorted(each for each in path.rglob("*") if each.is_file()):
                inner = file.relative_to(path).as_posix()
                line = f"{self._keep(file.read_bytes(), f'{name}/{inner}', kind, whole)} {inner}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
            return digest.hexdigest()
        except (
            OSError,
            ValueError,
        ) as error:  # no such file, or no such name: a path holds no null
            reason = getattr(error, "strerror", "") or str(error)
            raise InputError(f"The artifact cannot be read: {reason}.", where=str(path)) from error

    def _keep(self, data: bytes, name: str, kind: str, step: int | None) -> str:
        from assay.store.artifacts import (
            keep_artifact,
        )  # few runs use it, and every script would pay

        with self._lock:
            return keep_artifact(
                self.folder, data, name, at_ns=time.time_ns(), kind=kind, step=step
            ).digest

    def watch(
        self,
        name: str,
        suffixes: Sequence[str] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> Path:
        """A folder whose files the record lists: what is created, changed and deleted in it until
        the run ends.

        It is a folder of the run's own, or the one given. With `suffixes` only files that end with
        one of them.
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
            from assay.record.watched_folders import (
                FolderWatcher,
            )  # as all below: few runs use it, and every script would pay

            self._watcher = FolderWatcher(self.folder.files, on_problem=self._trouble)
        try:
            self._watcher.add(name, place, suffixes)
        except OSError as error:
            raise refusal(error, place, "The folder cannot be watched") from error
        return place

    def keycode(self, thing: Any) -> None:
        """Keep the source of a function, class or module with the run; the same source is stored
        once in a project."""
        self._refuse_if_over()
        from assay.record.key_code import source_of
        from assay.store.code_trees import code_blobs

        name, source = source_of(thing, self.secrets)
        if not self.run.project:
            raise InputError("The run belongs to no project, so there is nowhere to keep code.")
        digest = code_blobs(Project(Path(self.run.project))).put(source)
        with self._lock:
            newest = self.run.newest
            code = replace(newest.code, keys={**newest.code.keys, name: digest})
            self._update(
                replace(self.run, attempts=(*self.run.attempts[:-1], replace(newest, code=code)))
            )

    # ------------------------------------------------------------------------------------------------------------ end

    def finish(
        self,
        status: EndStatus = "finished",
        reason: str = "",
        traceback: str = "",
        *,
        step: int | None = None,
    ) -> None:
        """End the attempt, compact the metrics, seal the record, give the lease back. The second
        time does nothing.

        `step` is where the attempt ended; not given, it is the last one that was logged.
        """
        with self._lock:
            if self._over or os.getpid() != self._pid:
                return
            self._stopping = True
            self._wake.set()
            if threading.current_thread() is not self._thread:
                self._thread.join(
                    timeout=10
                )  # before the lease is given back: a beat under way would take it again
            self._learn_secrets()
            self._finish(status, self.secrets.clean(" ".join(reason.split())), traceback, step)

    def _finish(self, status: EndStatus, reason: str, traceback: str, step: int | None) -> None:
        if not self._is_here():
            with contextlib.suppress(OSError):
                self._make_again()
        if not self.folder.path.is_dir():
            self._give_up("The folder of this run is gone.")
            self.lacks += ("all of it: its folder is gone",)
            return
        self._metrics.check()
        with contextlib.suppress(Exception):  # the device may be what has failed
            self._later.flush()
        self._do_chores()
        self._chores, self._at_end = self._at_end, ()
        self._do_chores()
        if self._watcher is not None:
            self._watcher.finish()
        self._metrics.close(durable=False)
        from assay.record.compaction import compact  # loaded already
        from assay.store.series import summaries

        compacted = compact(self.folder.metrics)
        if not compacted:
            with contextlib.suppress(OSError):
                sync_file(self.folder.metrics)
        try:
            found = summaries(self.folder.metrics)
        except (OSError, AssayError) as error:
            self.logger.warning("The metrics cannot be read back: %s", error)
            found = {}
        last = max((each.step for each in found.values()), default=self.run.newest.from_step)
        self._use_reserve()
        if self._ended is None:
            self.tell(
                Ended(
                    status=status,
                    step=last if step is None else step,
                    reason=reason,
                    traceback=traceback,
                )
            )
        ended = self._ended
        assert ended is not None
        newest = replace(
            self.run.newest,
            ended_ns=time.time_ns(),
            status=status,
            reason="; ".join(
                filter(None, [reason or self.secrets.clean(ended.reason), self.lacking])
            ),
            to_step=ended.step,
        )
        self.run = replace(
            self.run,
            status=status,
            sealed=compacted,
            attempts=(*self.run.attempts[:-1], newest),
            summaries=found,
        )
        try:
            run_file.write(self.folder.path, self.run)
            readme.refresh(self.folder.readme, self.run)
        except OSError as error:
            self.logger.warning(
                "The end of the run could not be written: %s", error.strerror or error
            )
        self._leave("The run has ended.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(*ending(error))

    # --------------------------------------------------------------------------------------------------------- inside

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

    def _update(self, run: RunFile) -> None:
        with self._lock:
            self._refuse_if_over()
            before, self.run = self.run, run
            try:
                write_json(self.folder.run_json, run, durable=False)
            except OSError as error:
                self.logger.warning("run.json could not be written (%s).", error.strerror or error)
            except BaseException:
                self.run = (
                    before  # what cannot be written now could not be written at the end either
                )
                raise

    def _trouble(self, message: str) -> None:
        """Something that the user should know and that stops nothing."""
        self.logger.warning(message)
        with contextlib.suppress(OSError):
            warned = self._without_secrets(Warned(message=message))
            append_line(self.folder.events, event_line(warned, time.time_ns()))

    def _reserve(self) -> None:
        """Take room on the disk for the end of the run."""
        descriptor = create_file(self.folder.path / RESERVE_NAME, exclusive=False)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            else:
                os.write(descriptor, bytes(RESERVE_BYTES))
        finally:
            os.close(descriptor)

    def _use_reserve(self) -> None:
        """Give the room back that was taken for the end."""
        with contextlib.suppress(OSError):
            (self.folder.path / RESERVE_NAME).unlink()

    def _lack(self, what: str) -> None:
        """Remember something that the record should have and lost, and that the user was told
        of."""
        self.lacks += (what,)

    @property
    def lacking(self) -> str:
        """Parts that the record should have and lost, in one line; empty when it is whole."""
        return f"not kept: {'; '.join(self.lacks)}" if self.lacks else ""

    def _is_here(self) -> bool:
        """Return whether the record is where it was begun. Another folder there was made by a
        checkpoint."""
        try:
            held = self._home.descriptor
            is_same = held is None or os.path.samestat(os.fstat(held), os.stat(self.folder.path))
            return is_same and os.path.lexists(self.folder.run_json)
        except OSError:
            return False

    def _make_again(self) -> None:
        """Make the folder of the run again, with all that is known of it. OSError when that cannot
        be done.

        Where the folder of runs is gone as well, as that of a test that has ended, it stays gone.
        """
        path = self.folder.path
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder of runs is gone", str(path.parent))
        with contextlib.suppress(FileExistsError):
            path.mkdir(self._folder_mode)
        with contextlib.suppress(FileNotFoundError):  # only where the folder was emptied but for it
            (path / leases.FILE_NAME).unlink()
        self._home.close()
        self._home = open_directory(path, follow=True)
        self._lease = leases.acquire(path, self.run.newest.number)
        write_atomic(self.folder.config_toml, self._config_toml, durable=False)
        readme.write_first(self.folder.readme, self.run, "")
        run_file.write(path, self.run)
        logfile.reopen(self._log_file)
        self._metrics.check()
        self._lack("what was in its folder before that was deleted or moved")
        self._trouble(
            "The folder of this run was deleted or moved while it ran, and was made again. Its curves are there; "
            "checkpoints, artifacts and events of before are not."
        )

    def _without_secrets(self, fact: Any) -> Any:
        values = {each.name: getattr(fact, each.name) for each in fields(fact)}
        return replace(
            fact,
            **{name: self.secrets.clean(it) for name, it in values.items() if isinstance(it, str)},
        )

    def _learn_secrets(self) -> None:
        """Look for variables that the program has set since, as those of a `.env` file."""
        self.secrets.add(Secrets.known(os.environ).values)
        if self._capture is not None:
            self._capture.replace(self.secrets.values)

    def _beat(self) -> None:
        now = time.monotonic()
        next_sync, next_beat = now + SYNC_S, now + leases.BEAT_S
        is_synced = False
        while True:
            self._wake.wait(max(0.0, next_sync - time.monotonic()))
            self._wake.clear()
            if self._stopping:
                return
            self._metrics.prepare()
            if time.monotonic() < next_sync:
                continue
            next_sync = time.monotonic() + SYNC_S
            self._learn_secrets()
            self._do_chores()
            with contextlib.suppress(OSError):  # no descriptor left: the next time may do
                if not self._is_here():
                    self._make_again()
                    continue
                self._metrics.check()
                self._metrics.sync()
                if not is_synced:
                    sync_file(self.folder.run_json)
                    is_synced = True
            try:
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + leases.BEAT_S
                    self._lease = leases.beat(self.folder.path, self._lease)
                else:
                    leases.check(self.folder.path, self._lease)
            except LeaseError as error:
                if not self._is_here():
                    continue  # nobody has taken the run over: somebody has deleted it
                self._give_up(str(error.what))
                return
            except OSError:
                continue  # a full disk or a network that is away: the next beat may get through

    def _do_chores(self) -> None:
        for work in self._chores:
            try:
                work()
            # a copy of what is recorded, or numbers of a device that is gone: not the run
            except Exception as error:
                self._chores = tuple(each for each in self._chores if each is not work)
                self._trouble(f"{type(error).__name__} in the background: {error}")

    def _give_up(self, why: str) -> None:
        """The run is somebody else's now, or nobody's: touch nothing of it any more."""
        self._metrics.abandon(why)
        self._leave(why)
        logging.getLogger(logfile.LOGGER).warning(
            "%s Nothing is recorded any more. (%s)", why, self.folder.path
        )

    def _leave(self, why: str) -> None:
        self._over = why
        self._stopping = True
        self._wake.set()
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
        """Take out of what is written already the secrets that became known later."""
        from assay.record.redaction import clean_file  # few programs set variables on their way

        for path in (self.folder.output, self.folder.log, self.folder.events):
            clean_file(path, self.secrets)

    def _refuse_if_over(self) -> None:
        if os.getpid() != self._pid:
            raise RecordError(
                "A process forked from the one that writes this run cannot write to it."
            )
        if self._over:
            raise RecordError(self._over, where=str(self.folder.path))


def ending(error: BaseException | None) -> tuple[EndStatus, str, str]:
    """Status, reason and traceback of a run that ended with `error`."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished", "", ""
    if isinstance(error, Obeyed):
        return "stopped", signal.Signals(number_of(error)).name, ""
    from assay.record.tracebacks import shortened

    shown = shortened(error)
    first_line = str(error).strip().split("\n", 1)[0]
    return (
        "failed",
        f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__,
        shown,
    )


def _attempt(
    number: int,
    *,
    started_ns: int,
    config_hash: str,
    seedless_hash: str,
    launch: Mapping[str, Any],
    seeds: Mapping[str, int],
    devices: Sequence[str],
    command: Sequence[str] | None,
    secrets: Secrets,
) -> Attempt:
    return Attempt(
        number=number,
        started_ns=started_ns,
        command=secrets.command(sys.orig_argv if command is None else command),
        cwd=_cwd(),
        host=platform.node(),
        pid=os.getpid(),
        config_hash=config_hash,
        seedless_hash=seedless_hash,
        launch=secrets.tree(launch),
        seeds=dict(seeds),
        devices=tuple(devices),
    )


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted under us
        return ""


def _captured(path: Path, secrets: Secrets) -> Capture | None:
    from assay.record.capture import capture  # only where output is kept: it needs another process

    return capture(path, secrets.values)


def _code(
    project: Project, folders: Sequence[Path], patch: Path, secrets: Secrets
) -> tuple[Code, str]:
    """The snapshot, and what went wrong with it: a run without its code is better than none.

    What was not committed goes into the file `patch`, too.
    """
    from assay.record.snapshot import STAT_CACHE, snapshot  # only where code is kept
    from assay.store.code_trees import code_blobs

    try:
        blobs = code_blobs(project)
        cache = project.code_dir / STAT_CACHE
        code = snapshot(
            project.root,
            blobs,
            folders=folders,
            skip=project.runs_dir,
            cache=cache,
            secrets=secrets,
        )
        if code.patch:
            write_atomic(patch, blobs.get(code.patch), durable=False)
        return code, ""
    except (OSError, AssayError) as error:
        return Code(), f"The code could not be kept: {error}"


def _changed_code(project: Project | None, before: Code, now: Code) -> tuple[str, ...]:
    """The files that are not the same in two snapshots; none when one of them is not here."""
    if project is None or before.snapshot == now.snapshot or not (before.snapshot and now.snapshot):
        return ()
    from assay.store.code_trees import code_blobs, read_tree  # only where a run goes on

    blobs = code_blobs(project)
    try:
        a, b = (read_tree(blobs, code.snapshot) for code in (before, now))
    except (KeyError, OSError, AssayError):
        return ()
    return tuple(sorted(path for path in a.keys() | b.keys() if a.get(path) != b.get(path)))


def _read_run(folder: RunFolder) -> RunFile:
    try:
        return run_file.read(folder.path)
    except FileNotFoundError:
        raise InputError("There is no run in this folder.", where=str(folder.path)) from None


def _else(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given


@contextlib.contextmanager
def _undone(folder: RunFolder) -> Iterator[None]:
    """Take a new folder away again when the run does not come to begin in it."""
    try:
        yield
    except BaseException as error:
        import shutil  # only where something went wrong

        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise refusal(error, folder.path, "The run cannot be recorded") from error
        raise
