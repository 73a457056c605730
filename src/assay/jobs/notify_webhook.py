"""POST to a webhook: one look-up, public addresses only, no redirects."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from urllib.parse import urlsplit

from assay.jobs.notice import NotifyError

_PORTS = {"http": 80, "https": 443}
_ANSWER_BYTES = 300


def post(
    url: str, data: bytes, *, token: str = "", allows_private: bool = False, patience_s: float
) -> None:
    """Send JSON to an address of the web; NotifyError for every answer but 2xx.

    The name is resolved once and that very address is connected to: a second look-up could give
    another one. `token` goes along as `Authorization: Bearer`.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise NotifyError("The address of a webhook begins with https:// or http:// and a host.")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise NotifyError(f"The address of the webhook is wrong: {error}.") from error
    address = public_address(parts.hostname, port, allows_private=allows_private)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "assay"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=patience_s)
    try:
        plain = socket.create_connection((address, port), timeout=patience_s)
        connection.sock = plain
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(plain, server_hostname=parts.hostname)
        connection.request("POST", path, body=data, headers=headers)
        _check(connection.getresponse())
    except http.client.HTTPException as error:
        raise NotifyError(f"The webhook gave no answer: {error!r}.") from error
    finally:
        connection.close()


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
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_global and not address.is_multicast


def _check(answer: http.client.HTTPResponse) -> None:
    said = answer.read(_ANSWER_BYTES).decode("utf-8", "replace")
    if 300 <= answer.status < 400:
        raise NotifyError("The webhook redirects, which is not followed.")
    if not 200 <= answer.status < 300:
        first = said.strip().split("\n", 1)[0]
        raise NotifyError(f"The webhook answered {answer.status} {answer.reason}: {first}")
