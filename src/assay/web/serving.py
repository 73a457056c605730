"""The server as a process: its socket, its links, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

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
    config = quiet_config(app, grace_s=1, keep_alive_s=30)
    say("ready", f"{root}{LOGIN}#{keys.new_link_code()}")
    warming = threading.Timer(_WARM_AFTER_S, importlib.import_module, ["numpy"])
    warming.daemon = True
    warming.start()
    with listener:
        _Server(config, watches).run(sockets=[listener])
    warming.cancel()


def quiet_config(app: ASGIApp, *, grace_s: int, keep_alive_s: int) -> uvicorn.Config:
    """Return the options of a server that logs nothing, and believes no header of a proxy."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=grace_s,
        timeout_keep_alive=keep_alive_s,
        h11_max_incomplete_event_size=256 << 10,
        proxy_headers=False,
    )


class _Server(uvicorn.Server):
    """Server that sleeps while nobody asks, and ends the streams of open pages first.

    uvicorn by itself wakes ten times a second, waits for the streams, then cancels them with a
    traceback.
    """

    def __init__(self, config: uvicorn.Config, watches: Watches) -> None:
        super().__init__(config)
        self._watches = watches
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

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
        self._watches.close()
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
            listener.listen(256)
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
