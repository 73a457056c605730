"""Errors of torch about a connection to another rank, as PeerError."""

from __future__ import annotations

from typing import Any

from assay.core.errors import PeerError


class peer_errors:
    """Context manager that turns torch's errors about a lost connection into PeerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise peer_error(error) from error


def peer_error(error: BaseException) -> PeerError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return PeerError(
        "Another process of this run ended, or does not answer; it tells why.", where=first[:200]
    )
