"""Watcher of a project's runs from outside of their OS processes, which may die at any moment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from assay.config.settings import Settings
from assay.core.directory import PRIVATE, create_file, make_directory
from assay.core.regular_file import open_regular
from assay.core.stacks import request_stacks
from assay.formats import lease as leases
from assay.formats.lease import process_start
from assay.jobs.notify import Notifier
from assay.query.catalog import Catalog
from assay.query.inbox import Inbox, Message
from assay.store.layout import Project, RunFolder

if sys.platform != "win32":
    import fcntl

LOG_NAME = "watch.log"
LOCK_NAME = "watch.lock"
REQUESTS_NAME = "watched"
EVERY_S = 2.0
_REQUEST_S = 0.1
SLACK_NS = 5 * 10**9
"""The end of a run is written a moment before its message can be read."""


@dataclass(frozen=True, slots=True)
class Look:
    """Result of one look at a project: new messages, notices that could not be sent, live runs."""

    messages: tuple[Message, ...] = ()
    problems: tuple[str, ...] = ()
    live: int = 0


class Watcher:
    """Watcher that reads the records of one project, and sends new messages by its rules.

    It reads files and process states only: the runs need not answer, nor know of it. Messages are
    those since `since_ns`, by default a few seconds ago.
    """

    def __init__(self, project: Project, notifier: Notifier, *, since_ns: int = 0) -> None:
        self._catalog = Catalog(project)
        self._inbox = Inbox(self._catalog)
        self._notifier = notifier
        self._since_ns = since_ns or time.time_ns() - SLACK_NS
        self._known: set[str] = set()
        self._stacks: dict[str, str] = {}

    def look(self, *, now_ns: int = 0) -> Look:
        """Look at all runs once; each message is new once."""
        self._catalog.synchronize()
        messages = self._inbox.messages(since_ns=self._since_ns, now_ns=now_ns)
        messages = [self._with_stacks(each) for each in messages if each.at_ns > self._since_ns]
        fresh = [each for each in messages if each.id not in self._known]
        self._known.update(each.id for each in fresh)
        problems = self._notifier.deliver(messages, now_ns=now_ns)
        live = sum(row.status == "running" for row in self._catalog.open_rows())
        return Look(tuple(reversed(fresh)), tuple(problems), live)

    @property
    def is_sending(self) -> bool:
        """True while a notice that could not be sent waits for another try."""
        return self._notifier.is_waiting

    def close(self) -> None:
        self._catalog.close()

    def _with_stacks(self, message: Message) -> Message:
        """Return a message about a hang with the stacks of all threads, asked for once."""
        if message.kind != "stalled":
            return message
        if message.id not in self._stacks:
            row = self._catalog.rows([message.run]).get(message.run)
            lease = leases.read(row.path) if row is not None else None
            is_here = lease is not None and lease.place == leases.this_place()
            if row is not None and lease is not None and is_here:
                self._stacks[message.id] = request_stacks(lease.pid, RunFolder(row.path).stacks)
        return replace(message, detail=self._stacks.get(message.id, "") or message.detail)


def notifier_of(project: Project) -> Notifier:
    """Return the notifier of a project's rules; ConfigError for wrong ones."""
    rules = Settings(project.root).notify_rules
    return Notifier(rules, project=str(project.root), folder=project.assay_dir)


def watch(
    project: Project,
    *,
    every_s: float = EVERY_S,
    until_idle: bool = False,
    since_ns: int = 0,
) -> Iterator[Look]:
    """Yield a look at the project every `every_s` seconds.

    With `until_idle` it ends when no run lives, all OS processes that asked for a watcher have
    ended, and everything is sent.
    """
    watcher = Watcher(project, notifier_of(project), since_ns=since_ns)
    requests = WatchRequests(project)
    try:
        while True:
            is_wanted = requests.are_open()
            look = watcher.look()
            yield look
            if until_idle and not is_wanted and not look.live and not watcher.is_sending:
                return
            time.sleep(every_s)
    finally:
        watcher.close()


class WatchRequests:
    """Requests of OS processes to be watched until they end, as files that a watcher takes.

    A watcher that ends leaves the files that it has not taken to the next one.
    """

    def __init__(self, project: Project) -> None:
        self._folder = project.assay_dir / REQUESTS_NAME
        self._taken: dict[int, str] = {}

    def add(self, pid: int) -> Path:
        """Ask for a watcher until the OS process `pid` ends; return the file."""
        make_directory(self._folder, PRIVATE)
        path = self._folder / str(pid)
        path.unlink(missing_ok=True)  # of an earlier process of this pid
        with open(create_file(path), "w", encoding="ascii") as file:
            file.write(process_start(pid) or "")
        return path

    def are_open(self) -> bool:
        """Take all requests; return True while an OS process of one lives."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name.isdigit():
                self._taken[int(path.name)] = process_start(int(path.name)) or ""
            path.unlink(missing_ok=True)
        self._taken = {
            pid: start
            for pid, start in self._taken.items()
            if start and start == process_start(pid)
        }
        return bool(self._taken)


@contextlib.contextmanager
def only_watcher(project: Project, *, request: Path | None = None) -> Iterator[bool]:
    """Hold the right to watch a project; yield False when another OS process has it.

    With a `request` it waits until that one has taken it, or has ended. The operating system frees
    the right when its holder ends, however that may be.
    """
    if sys.platform == "win32":
        yield True
        return
    with open(_open_to_append(project.assay_dir / LOCK_NAME), "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if request is None or not request.exists():
                    yield False
                    return
                time.sleep(_REQUEST_S)
        yield True


def start_watcher(project: Project) -> bool:
    """Start a watcher beside this OS process, if the project has rules; return whether it did.

    It outlives this process, and ends when no run lives. One that is at work already takes over
    from it. ConfigError for wrong rules.
    """
    if not Settings(project.root).notify_rules:
        return False
    command = [sys.executable, "-m", "assay", "inbox", "--until-idle", "--pid", str(os.getpid())]
    with open(_open_to_append(project.assay_dir / LOG_NAME), "ab") as log:
        subprocess.Popen(
            command,
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return True


def _open_to_append(path: Path) -> int:
    """Open a file of the project to append to it, and make it if it is not there."""
    with contextlib.suppress(FileExistsError):
        return create_file(path)
    return open_regular(path, os.O_WRONLY | os.O_APPEND)
