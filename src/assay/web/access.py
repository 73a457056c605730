"""Access to the server: who may ask, from which page, under which name.

This is the outermost layer of every request. One user's machine is the normal case. The server
listens on loopback, and that alone protects nothing: other users of the machine reach it, and so
does any web site in the user's browser. So each request needs a session cookie (or the token), a
Host that is ours (against DNS rebinding) and, from a browser, our own Origin; each write needs a
header beside the cookie that no other site can send.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from platformdirs import user_state_path

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
WRITE_HEADER = "x-assay-write"
TOKEN_VARIABLE = "ASSAY_UI_TOKEN"
MAX_BODY_BYTES = 8 << 20
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN = "/login"
PUBLIC = frozenset({LOGIN, "/login.js", "/login.css"})
"""Paths that are served without a session: the page that makes one, and its two files."""

Refusal = tuple[int, str, str]
"""Status, sentence and fix of a request that may not pass."""

_LEAST_TOKEN = 16
_YEAR_S = 365 * 86_400
_HEADERS: dict[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{nonce}; img-src 'self' data: blob:;"
    " media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'self';"
    " form-action 'none'; frame-ancestors 'none'"
)


@dataclass(slots=True)
class Keys:
    """Secrets of a server: values of the session cookie and write header, and unused link codes.

    `token` is one that the user chose and that lasts; a link from `new_link_code` works once.
    """

    secret: bytes
    token: str = ""
    on_link_used: Callable[[], object] = lambda: None
    _codes: set[str] = field(default_factory=set)

    @property
    def session(self) -> str:
        return self._derive("session")

    @property
    def write(self) -> str:
        return self._derive("write")

    def new_link_code(self) -> str:
        """Return a code that makes one session."""
        code = secrets.token_urlsafe(24)
        self._codes.add(code)
        return code

    def is_session(self, cookie: str) -> bool:
        return hmac.compare_digest(cookie.encode(), self.session.encode())

    def is_token(self, given: str) -> bool:
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request carries the token: `Authorization: Bearer TOKEN`."""
        bearer = headers.get("authorization", "")
        return bearer.startswith("Bearer ") and self.is_token(bearer.removeprefix("Bearer "))

    def admits(self, given: str) -> bool:
        """Return whether a code or the token makes a session; a code is used up by that."""
        if self.is_token(given):
            return True
        for code in self._codes:
            if hmac.compare_digest(code.encode(), given.encode()):
                self._codes.discard(code)
                self.on_link_used()
                return True
        return False

    def _derive(self, purpose: str) -> str:
        return hmac.new(self.secret, purpose.encode(), hashlib.sha256).hexdigest()


def kept_secret(path: Path | None = None) -> bytes:
    """Return this user's secret on this machine, made at first use: sessions outlive a restart."""
    place = path or user_state_path("assay", appauthor=False) / "ui-secret"
    try:
        make_directory(place.parent, PRIVATE)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # a home that cannot be written: sessions last as long as this process
        return secrets.token_bytes(32)
    with open(descriptor, "r+b") as file:
        os.fchmod(descriptor, 0o600)
        found = file.read(32)
        if len(found) < 32:
            found = secrets.token_bytes(32)
            file.seek(0)
            file.write(found)
    return found


@dataclass(frozen=True, slots=True)
class Rules:
    """Access rules of a server: its names beside loopback, and whether it may change anything.

    `is_local`: nobody beyond this machine reaches it, but through a tunnel of its user. `prefix` is
    what a proxy puts in front of every path and does not take off again. `other_names` says how it
    is asked under other names.
    """

    cookie: str
    hosts: frozenset[str] = frozenset()
    prefix: str = ""
    is_read_only: bool = False
    is_local: bool = True
    other_names: str = "open it as localhost or 127.0.0.1, or start it with --allow-host NAME"

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this server; a tunnel may have any port."""
        name = _hostname(host)
        return name is not None and (name in LOOPBACK or name in self.hosts)


class Guard:
    """ASGI layer in front of everything. What it refuses never reaches a route."""

    def __init__(
        self, app: ASGIApp, keys: Keys, rules: Rules, login_page: Callable[[str], bytes]
    ) -> None:
        """`login_page` returns the page that is shown at a path to somebody without a session."""
        self._app = app
        self._keys = keys
        self._rules = rules
        self._login_page = login_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no websocket here
            await send({"type": "websocket.close", "code": 1008})
            return
        prefix = self._rules.prefix
        path = str(scope["path"])
        if prefix and path.startswith(f"{prefix}/"):
            scope = {**scope, "path": path.removeprefix(prefix), "raw_path": None}
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce
        send = _with_headers(send, nonce)
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, what, fix = refusal
        path = str(scope["path"])
        if status == 401 and not path.startswith("/api/"):
            await send_answer(send, status, self._login_page(path), "text/html; charset=utf-8")
        else:
            body = json.dumps({"what": what, "where": "", "fix": fix}).encode()
            await send_answer(send, status, body, "application/json")

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Return status, sentence and fix of a request that may not pass."""
        headers = headers_of(scope)
        path = str(scope["path"])
        method = str(scope["method"])
        refusal = refuse_stranger(headers, method, path, self._rules)
        refusal = refusal or refuse_length(headers, MAX_BODY_BYTES)
        if refusal is not None:
            return refusal
        if path in PUBLIC:
            return None
        has_token = self._keys.has_token(headers)
        if not has_token and not self._keys.is_session(_cookie(headers, self._rules.cookie)):
            return 401, "There is no session.", "open the link that `assay ui` printed"
        if method not in SAFE_METHODS:
            if self._rules.is_read_only:
                return 403, "This server was started read-only: nothing can be changed here.", ""
            if not has_token and not hmac.compare_digest(
                headers.get(WRITE_HEADER, "").encode(), self._keys.write.encode()
            ):
                return 403, "A change needs the header of this page.", "reload the page"
        return None


def refuse_stranger(
    headers: Mapping[str, str], method: str, path: str, rules: Rules
) -> Refusal | None:
    """Return why a request may not pass that another site may have sent, None if it may."""
    host = headers.get("host", "")
    if not rules.knows(host):
        return 421, "This server does not answer to that name.", rules.other_names
    origin = headers.get("origin")
    if origin is not None and not _is_origin_of(origin, host):
        return 403, "Another site has no access here.", ""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _is_visit(
        headers, method, path
    ):
        return 403, "Another site has no access here.", ""
    return None


def refuse_length(headers: Mapping[str, str], max_body_bytes: int) -> Refusal | None:
    """Return why a request may not pass for its length, None if it may."""
    if "transfer-encoding" in headers:
        return 411, "A request says how long it is.", ""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 20 or int(length) > max_body_bytes:
        return 413, f"A request has at most {max_body_bytes >> 20} MB.", ""
    return None


def read_token(file: str | None, variable: str) -> str:
    """Return the user's token of a file or a variable, "" for none; InputError for a short one.

    It is never on the command line, which others can read.
    """
    token = os.environ.get(variable, "")
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"The token cannot be read: {error}", where=file) from None
    if token and len(token) < _LEAST_TOKEN:
        fix = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        raise InputError(f"The token is too short: it needs {_LEAST_TOKEN} characters.", fix=fix)
    return token


def require_token(host: str, token: str, variable: str) -> None:
    """Raise InputError for an address beyond this machine without a token."""
    if host not in LOOPBACK and not token:
        raise InputError(
            f"On {host} anybody in the network reaches this server: that needs a token.",
            fix=f"set {variable} to a long random text, or name a file with --token-file",
        )


def session_cookie(keys: Keys, rules: Rules, *, is_secure: bool) -> str:
    """Return the Set-Cookie header of a session.

    It has no path, which thus defaults to the folder of the login page, prefix included.
    """
    parts = [f"{rules.cookie}={keys.session}", "HttpOnly", "SameSite=Strict", f"Max-Age={_YEAR_S}"]
    return "; ".join([*parts, *(["Secure"] if is_secure else [])])


def _is_visit(headers: Mapping[str, str], method: str, path: str) -> bool:
    """Return whether a request follows a link from another site to a page.

    That is harmless, and has no cookie at first.
    """
    is_page = not path.startswith("/api/") and "." not in path.rpartition("/")[2]
    return (
        method == "GET"
        and is_page
        and headers.get("sec-fetch-mode") == "navigate"
        and (headers.get("sec-fetch-dest") == "document")
    )


def _is_origin_of(origin: str, host: str) -> bool:
    """Return whether an Origin is this server's Host, port included, as the browser sees it."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _hostname(host: str) -> str | None:
    """Return the name in a Host header, None for one that is not well formed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if (
        not host
        or parts.netloc != host
        or "@" in host
        or parts.path
        or parts.query
        or parts.fragment
    ):
        return None
    return parts.hostname


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers, the values of a repeated one joined: no second Host slips by."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _cookie(headers: dict[str, str], name: str) -> str:
    for part in headers.get("cookie", "").replace(",", ";").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def _with_headers(send: Send, nonce: str) -> Send:
    policy = _POLICY.format(nonce=f" 'nonce-{nonce}'")
    ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(pair for pair in ours if pair[0] not in given),
            ]
            if b"content-security-policy" not in given:
                message["headers"].append((b"content-security-policy", policy.encode()))
            if b"cache-control" not in given:
                message["headers"].append((b"cache-control", b"no-store"))
        await send(message)

    return sending


async def send_answer(send: Send, status: int, body: bytes, content_type: str) -> None:
    """Send a whole answer."""
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def allowed_hosts(names: Iterable[str]) -> frozenset[str]:
    """Return names as they are compared: lower case, without a port."""
    return frozenset(found for name in names if (found := _hostname(name)) is not None)
