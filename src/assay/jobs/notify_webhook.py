"""POST to a webhook: one look-up, public addresses only, no redirects, within a limit of time."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from assay.jobs.notice import NotifyError

_PORTS = {"http": 80, "https": 443}
_ANSWER_BYTES = 300
_LEAST_SECRET = 8
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The IPv6 addresses of the internet; those outside may stand for an IPv4 address of a site."""


def post(
    url: str, data: bytes, *, token: str = "", allows_private: bool = False, patience_s: float
) -> None:
    """Send JSON to an address of the web; NotifyError for every answer but 2xx.

    The name is resolved once and that very address is connected to: a second look-up could give
    another one. `token` goes along as `Authorization: Bearer`. The whole answer has to come within
    `patience_s`.
    """
    parts, port = _parse(url)
    assert parts.hostname is not None
    address = public_address(parts.hostname, port, allows_private=allows_private)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "assay"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=patience_s)
    try:
        plain = socket.create_connection((address, port), timeout=patience_s)
        connection.sock = plain
        with hang_up_after(patience_s, lambda: connection.sock):
            if parts.scheme == "https":
                # The handshake comes later: until then the watchdog has no socket to shut down.
                connection.sock = ssl.create_default_context().wrap_socket(
                    plain, server_hostname=parts.hostname, do_handshake_on_connect=False
                )
                connection.sock.do_handshake()
            connection.request("POST", path, body=data, headers=headers)
            with connection.getresponse() as answer:
                _check(answer, secrets=[token, *re.split(r"[/?&=]", path)])
    except (http.client.HTTPException, ValueError) as error:
        # Not in its own words, which may hold the token, or the path: a password of chat services.
        raise NotifyError(f"The webhook gave no answer: {type(error).__name__}.") from error
    finally:
        connection.close()


@contextlib.contextmanager
def hang_up_after(
    patience_s: float, socket_of: Callable[[], socket.socket | None]
) -> Iterator[None]:
    """Shut a connection down once a conversation has taken `patience_s`; NotifyError says so.

    The timeout of a socket is one of a single read: a server that sends a byte now and then, and
    never a whole answer, would hold its client for ever.
    """
    is_over = threading.Event()

    def hang_up() -> None:
        is_over.set()
        with contextlib.suppress(OSError):
            if (connection := socket_of()) is not None:
                connection.shutdown(socket.SHUT_RDWR)

    watchdog = threading.Timer(patience_s, hang_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if is_over.is_set():
            raise NotifyError(f"The server gave no whole answer in {patience_s:g} s.") from error
        raise
    finally:
        watchdog.cancel()
        watchdog.join()
    if is_over.is_set():
        raise NotifyError(f"The server gave no whole answer in {patience_s:g} s.")


def _parse(url: str) -> tuple[SplitResult, int]:
    """Return the parts of an address and its port; NotifyError, which never repeats a part of it.

    An address holds a secret more often than not: in the path, or before the host.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            what = "The address of a webhook begins with https:// or http:// and a host."
            raise NotifyError(what)
        port = parts.port or _PORTS[parts.scheme]
        parts.hostname.encode("idna")
    except ValueError as error:
        raise NotifyError("The host or the port in the address of the webhook is wrong.") from error
    if parts.username is not None:
        what = "The address of the webhook has a user before its host, which is not sent."
        raise NotifyError(what, fix='token = "${env:NAME}" in the rule is sent as a bearer token')
    target = parts.path + parts.query
    if not target.isascii() or not target.isprintable() or " " in target:
        what = "The address of the webhook has characters that no address has."
        raise NotifyError(what, fix="write them as %20 and the like")
    return parts, port


def public_address(host: str, port: int, *, allows_private: bool) -> str:
    """Return the address of a host; NotifyError for one of this machine or of a local network."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotifyError(f"The host `{host}` is not known: {error.strerror}.") from error
    addresses = [str(each[4][0]) for each in found]
    inner = [each for each in addresses if not _is_public(each)]
    if inner and not allows_private:
        raise NotifyError(
            f"`{host}` is {inner[0]}, an address of this machine or of a local network.",
            fix="private = true in the rule allows it",
        )
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return address in _UNICAST and not address.sixtofour and not address.teredo


def _check(answer: http.client.HTTPResponse, *, secrets: Sequence[str]) -> None:
    """Raise NotifyError for an answer that is not 2xx, without the secrets that it repeats."""
    said = f"{answer.reason}: {answer.read(_ANSWER_BYTES).decode('utf-8', 'replace')}"
    for secret in secrets:
        if len(secret) >= _LEAST_SECRET:
            said = said.replace(secret, "***")
    if 300 <= answer.status < 400:
        raise NotifyError("The webhook redirects, which is not followed.")
    if not 200 <= answer.status < 300:
        first = said.strip().split("\n", 1)[0]
        raise NotifyError(f"The webhook answered {answer.status} {first}")
