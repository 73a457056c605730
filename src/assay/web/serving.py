"""The server as a process: its socket, its links, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from assay.core.errors import InputError
from assay.store.layout import Project
from assay.web.access import (
    LOGIN,
    LOOPBACK,
    TOKEN_VARIABLE,
    Keys,
    Rules,
    allowed_hosts,
    kept_secret,
    require_token,
)
from assay.web.app import make_app
from assay.web.live import Watches
from assay.web.pages import Files

DEFAULT_PORT = 7341
_REQUEST_S = 60
_MOST_CONNECTIONS, _BACKLOG, _ACCEPTED = 1000, 1024, 16
"""Connections that are open, that wait to be accepted, and that are accepted before one of them is
looked at."""

_SPARE_FILES = 128
"""Descriptors for other things than connections, and for those that were just accepted or ended."""

_TRIED = 20
_WARM_AFTER_S = 3.0
"""Seconds until numpy is imported, which the first curve needs: not beside the first rows of a page
that is opened at once."""

_TICK_S = 1.0
"""Seconds until an end is noticed that no signal told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of a server. `port` 0 is any free one, None the usual one or one of the next."""

    host: str = "127.0.0.1"
    port: int | None = None
    token: str = ""
    names: tuple[str, ...] = ()
    is_read_only: bool = False
    prefix: str = ""


def serve(project: Project, wanted: ServeOptions, say: Callable[[str, str], object]) -> None:
    """Serve until the process is interrupted.

    `say(event, text)` is told the link, each time there is a new one. InputError for an address
    that cannot be bound, and for one beyond this machine without a token.
    """
    is_local = wanted.host in LOOPBACK
    require_token(wanted.host, wanted.token, TOKEN_VARIABLE)
    listener = listen(wanted.host, wanted.port)
    port = listener.getsockname()[1]
    shown = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    root = f"http://{shown}:{port}{wanted.prefix}"
    keys = Keys(kept_secret(), wanted.token)
    keys.on_link_used = lambda: say("another", f"{root}{LOGIN}#{keys.new_link_code()}")
    names = allowed_hosts([*wanted.names, *([] if is_local else [shown])])
    rules = Rules(
        f"assay-{port}",
        names,
        wanted.prefix,
        is_read_only=wanted.is_read_only,
        is_local=is_local and not names,
    )
    files = Files.read()
    watches = Watches()
    app = make_app(project, keys, rules, files, watches)
    if not files.is_built:
        say("unbuilt", "")
    config = quiet_config(app, grace_s=1)
    say("ready", f"{root}{LOGIN}#{keys.new_link_code()}")
    warming = threading.Timer(_WARM_AFTER_S, importlib.import_module, ["numpy"])
    warming.daemon = True
    warming.start()
    with listener:
        QuietServer(config, watches.close).run(sockets=[listener])
    warming.cancel()


def quiet_config(app: ASGIApp, *, grace_s: int) -> uvicorn.Config:
    """Return the options of a server that logs nothing, and believes no header of a proxy."""
    return uvicorn.Config(
        app,
        http=_Connection,
        backlog=_ACCEPTED,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=_REQUEST_S,
        h11_max_incomplete_event_size=256 << 10,
        proxy_headers=False,
    )


class _Connection(H11Protocol):
    """Connection that ends unless its next request has arrived whole within a minute.

    uvicorn waits for ever for the rest of a request. Beyond the most connections that the process
    may have, the one that has waited longest makes room; one whose answer is being made never does.
    """

    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since_s = self.loop.time()
        others = [each for each in self.connections if isinstance(each, _Connection)]
        present = [each for each in others if not each.transport.is_closing()]
        if len(present) > _most_connections():
            waiting = [each for each in present if each._is_waiting]
            min(waiting, key=lambda each: each._since_s).transport.abort()
        self.loop.call_later(_REQUEST_S, self._end_late)

    def on_response_complete(self) -> None:
        self._since_s = self.loop.time()
        super().on_response_complete()

    @property
    def _is_waiting(self) -> bool:
        """True while the next request has not arrived whole."""
        cycle: RequestResponseCycle | None = self.cycle  # None until the first request
        return cycle is None or cycle.response_complete or cycle.more_body

    def _end_late(self) -> None:
        if self.transport.is_closing():
            return
        now_s = self.loop.time()
        end_s = self._since_s + _REQUEST_S if self._is_waiting else now_s + _REQUEST_S
        if end_s <= now_s:
            self.transport.close()
        else:
            self.loop.call_at(end_s, self._end_late)


def _most_connections() -> int:
    """Return how many connections fit into the descriptors that this process may have."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_ACCEPTED, min(_MOST_CONNECTIONS, allowed - _SPARE_FILES))


class QuietServer(uvicorn.Server):
    """Server that sleeps while nobody asks, and calls `end_streams` first when it ends.

    uvicorn by itself wakes ten times a second, waits for the streams of open pages, then cancels
    them with a traceback.
    """

    def __init__(
        self, config: uvicorn.Config, end_streams: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)  # asyncio has set it to the few that it accepts at once

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        # A request that takes longer than the grace is cut off: no news to whoever pressed Ctrl-C.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; InputError if the address is taken or not this machine's."""
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _TRIED), 0]
    for each in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Head and body are two writes: without it the second one waits 40 ms for the browser.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, each))
            listener.listen(_BACKLOG)
        except (OSError, OverflowError) as error:
            listener.close()
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if is_taken and port is None:
                continue
            what = (
                "is taken"
                if is_taken
                else f"cannot be had ({getattr(error, 'strerror', None) or error})"
            )
            raise InputError(
                f"The address {host}:{each} {what}.", fix="choose another with --port"
            ) from None
        else:
            return listener
    raise AssertionError("port 0 is never taken")
