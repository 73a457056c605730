"""Compression of long text answers with gzip.

Curves are numbers that hardly get shorter, and streams must not be held back.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_BYTES = 2_000
LEVEL = 3
"""More takes several times as long, for a few percent."""

_TEXTS = (b"application/json", b"text/plain", b"text/html")


class Compression:
    """ASGI layer that packs whole answers of text for whoever takes gzip."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = dict(scope.get("headers", ())).get(b"accept-encoding", b"")
        if scope["type"] != "http" or b"gzip" not in accepted:
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                first, start = start, None
                is_whole = message["type"] == "http.response.body" and not message.get("more_body")
                if is_whole and _is_worth_it(first, message):
                    message = {**message, "body": _pack(first, message["body"])}
                await send(first)
            await send(message)

        await self._app(scope, receive, sending)


def _is_worth_it(start: Message, message: Message) -> bool:
    headers = dict(start["headers"])
    kind = headers.get(b"content-type", b"")
    return (
        len(message.get("body", b"")) >= LEAST_BYTES
        and kind.startswith(_TEXTS)
        and b"content-encoding" not in headers
    )


def _pack(start: Message, body: bytes) -> bytes:
    packed = gzip.compress(body, LEVEL, mtime=0)
    headers = [pair for pair in start["headers"] if pair[0] != b"content-length"]
    length = (b"content-length", str(len(packed)).encode())
    start["headers"] = [
        *headers,
        length,
        (b"content-encoding", b"gzip"),
        (b"vary", b"accept-encoding"),
    ]
    return packed
