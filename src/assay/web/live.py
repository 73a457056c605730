"""Live changes of a project: one thread that watches, one stream of events for each page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from assay.core.errors import AssayError
from assay.core.ids import id_of_folder
from assay.core.regular_file import file_size
from assay.query.job_queue import QueueChanges
from assay.query.run_row import RunRow
from assay.store.refresh_index import Synchronized
from assay.web.answers import BusyError
from assay.web.site import Home

LOOK_S = 0.2
"""Seconds between two looks at open runs. From a log call to the page it takes at most this and the
page's own time."""
IDLE_S = 0.5
"""Seconds between two looks while no run is open."""
INDEX_S = 1.0
ALL_S = 5.0
BEAT_S = 15.0
MAX_STREAMS = 64

_LOG = logging.getLogger("assay.web")


@dataclass(eq=False, slots=True)
class EventStream:
    """The events of one open page; `loop` is the one that its request runs in."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=lambda: asyncio.Queue(256))

    def send(self, event: dict[str, Any] | None) -> None:
        """Send an event from any thread; a page that does not read is cut off, and reconnects."""
        self.loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: dict[str, Any] | None) -> None:
        if self.events.full():
            while not self.events.empty():
                self.events.get_nowait()
            event = None
        self.events.put_nowait(event)


class Watch:
    """Watches one project as long as somebody listens, and tells what has changed.

    An event has the `version` of the list of runs, `rows` (how many log calls of each open run
    there are by now), `files` (how long the log and the output of each open run are), `changed` and
    `gone` runs by id, `queue` when jobs of this machine have changed, and `jobs` (how long the
    output of each running job is).
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._streams: set[EventStream] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_joined = False

    def open(self, loop: asyncio.AbstractEventLoop) -> EventStream:
        """Begin a stream. BusyError when there are enough."""
        stream = EventStream(loop)
        with self._lock:
            if len(self._streams) >= MAX_STREAMS:
                raise BusyError(
                    f"At most {MAX_STREAMS} pages are open at once.", fix="close one, then reload"
                )
            self._streams.add(stream)
            self._has_joined = True
            stream.send({"opened": True, "version": self._home.catalog.version})
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._watch, name="assay-watch", daemon=True)
                self._thread.start()
        return stream

    def drop(self, stream: EventStream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def announce(self, found: Synchronized, **facts: Any) -> None:
        """Tell every page about changes made through this server.

        `facts` concern other things than runs.
        """
        event: dict[str, Any] = dict(facts)
        if found:
            self._tell(event, found)
        if event:
            with self._lock:
                streams = list(self._streams)
            for stream in streams:
                stream.send(event)

    def close(self) -> None:
        """End every stream and the thread."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
            thread = self._thread
        self._wake.set()
        for stream in streams:
            stream.send(None)
        if thread is not None:
            thread.join(2.0)

    def _watch(self) -> None:
        looked = _Looked()
        with contextlib.closing(QueueChanges()) as queue:
            while self._is_wanted():
                self._look(looked, queue)

    def _is_wanted(self) -> bool:
        """Return whether a page listens; the thread ends otherwise."""
        with self._lock:
            if self._streams and not self._is_closed:
                return True
            self._thread = None
            return False

    def _look(self, looked: _Looked, queue: QueueChanges) -> None:
        """Tell every page what has changed, and wait until the next look is due."""
        begun = time.thread_time()
        event: dict[str, Any] = {}
        self._greet(looked)
        # After an error the next look may succeed: a folder was away for a moment.
        try:
            event |= self._event(looked)
        except (AssayError, OSError) as error:
            _LOG.warning("cannot look at %s: %s", self._home.project.root, error)
        try:
            event |= _of_queue(queue)
        except (AssayError, OSError) as error:
            _LOG.warning("cannot look at the queue: %s", error)
        if event:
            with self._lock:
                streams = list(self._streams)
            for stream in streams:
                stream.send(event)
        # Looking never takes more than a tenth of a core, however many runs are open.
        every = LOOK_S if looked.open else IDLE_S
        self._wake.wait(max(every, 9 * (time.thread_time() - begun)))

    def _greet(self, looked: _Looked) -> None:
        """Tell all that is known again, for a page that has just come.

        It may have asked before the last events, and opened its stream after them.
        """
        with self._lock:
            has_joined, self._has_joined = self._has_joined, False
        if has_joined:
            looked.version = -1
            looked.rows.clear()
            looked.files.clear()

    def _event(self, looked: _Looked) -> dict[str, Any]:
        home, now = self._home, time.monotonic()
        event: dict[str, Any] = {}
        home.ready()
        if home.is_reading:
            return self._progress(looked, now)
        if looked.stamp == -1:
            looked.stamp, looked.all_at = home.first_stamp_ns, home.first_look_at
            looked.open = {row.written.folder: row for row in home.catalog.open_rows()}
        stamp = home.read_stamp_ns()
        if stamp != looked.stamp or now - looked.all_at > looked.all_every:
            begun = time.thread_time()
            found = home.catalog.synchronize()
            # With very many runs a look at all of them is not cheap: at most 0.2 % of a core.
            looked.all_every = max(ALL_S, 500 * (time.thread_time() - begun))
            looked.stamp, looked.all_at = stamp, now
            if found:
                self._tell(event, found)
            looked.open = {row.written.folder: row for row in home.catalog.open_rows()}
        if looked.version != home.catalog.version:
            # Read by somebody else of this server: the first look of a request, or a change by way
            # of a page.
            event["version"] = home.catalog.version
        looked.version = home.catalog.version
        rows, files = {}, {}
        for row in looked.open.values():
            folder = home.folder(row.written.folder)
            home.curves.tail(folder).update()
            count = home.curves.revision(folder)
            sizes = (file_size(folder.log), file_size(folder.output), file_size(folder.events))
            if looked.rows.get(row.id) != count:
                rows[row.id] = looked.rows[row.id] = count
            if looked.files.get(row.id) != sizes:
                files[row.id] = looked.files[row.id] = sizes
        if rows:
            event["rows"] = rows
        if files:
            event["files"] = files
        is_late = now - looked.index_at > INDEX_S
        if is_late and looked.open:
            looked.index_at = now
            found = home.catalog.synchronize(list(looked.open))
            if found:
                self._tell(event, found)
                looked.open = {row.written.folder: row for row in home.catalog.open_rows()}
            event |= self._statuses(looked)
        return event

    def _progress(self, looked: _Looked, now: float) -> dict[str, Any]:
        """Tell now and then that the index in the making holds more runs.

        To look at the folders here as well would wait until all of them are read.
        """
        if looked.version == self._home.catalog.version or now - looked.all_at < INDEX_S:
            return {}
        looked.version, looked.all_at = self._home.catalog.version, now
        return {"version": looked.version}

    def _statuses(self, looked: _Looked) -> dict[str, Any]:
        """Return the changed statuses of open runs, such as one whose process was killed."""
        found = {row.id: row.status for row in looked.open.values()}
        fresh = {
            run_id: status
            for run_id, status in found.items()
            if looked.statuses.get(run_id) != status
        }
        looked.statuses = found
        return {"statuses": fresh} if fresh else {}

    def _tell(self, event: dict[str, Any], found: Synchronized) -> None:
        event["version"] = self._home.catalog.version
        event["changed"] = [*event.get("changed", []), *map(id_of_folder, found.changed)]
        event["gone"] = [*event.get("gone", []), *map(id_of_folder, found.gone)]


def _of_queue(queue: QueueChanges) -> dict[str, Any]:
    has_changed, logs = queue.look()
    return ({"queue": True} if has_changed else {}) | ({"jobs": logs} if logs else {})


@dataclass(slots=True)
class _Looked:
    """Findings of the last look."""

    stamp: int = -1
    version: int = -1
    all_at: float = 0.0
    all_every: float = ALL_S
    index_at: float = 0.0
    open: dict[str, RunRow] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)


async def server_sent(watch: Watch, stream: EventStream) -> AsyncIterator[bytes]:
    """Yield the events of a stream as server-sent events, and a comment now and then.

    The comment makes a dead connection noticed.
    """
    try:
        yield b"retry: 1000\n\n"
        while True:
            try:
                event = await asyncio.wait_for(stream.events.get(), BEAT_S)
            except TimeoutError:
                yield b": alive\n\n"
                continue
            if event is None:
                return
            yield f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
    finally:
        watch.drop(stream)


class Watches:
    """One watch for each project that is looked at."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()

    def of(self, home: Home) -> Watch:
        with self._lock:
            if home.key not in self._watches:
                self._watches[home.key] = Watch(home)
            return self._watches[home.key]

    def close(self) -> None:
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
