"""Stop token: the starter of a run makes one and passes it down to every long-running part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to end a run.

    `interrupts`: it will be resumed; `signal` is 0 unless a signal asked.
    """

    reason: str
    interrupts: bool = False
    signal: int = 0


NOBODY = Request(reason="")


class Stop:
    """Token that tells a run to end before its bound, why, and whether the run is interrupted.

    `asked` holds the request of this OS process; `reason`, `interrupts` and `signal` are in
    force. In a lone process both are the same. Ranks put a request in force after the step in
    which all of them have heard of it (`agree`): one that left its loop earlier would leave the
    others waiting.

    `ask` only assigns attributes, so that a signal handler may call it at any line.
    """

    __slots__ = ("asked", "interrupts", "is_settled", "is_shared", "reason", "signal")

    def __init__(self) -> None:
        self.asked = NOBODY
        self.reason = ""
        self.interrupts = False
        self.signal = 0
        self.is_shared = False
        self.is_settled = False

    def ask(self, reason: str, *, interrupts: bool = False, signal: int = 0) -> None:
        """Ask the run to end after its step.

        The first reason counts, but an interruption outweighs an ordinary end.
        """
        if not self.asked.reason or (interrupts and not self.asked.interrupts):
            self.asked = Request(reason=reason, interrupts=interrupts, signal=signal)
        if not self.is_shared:
            self.agree(self.asked)

    def agree(self, request: Request) -> None:
        """Put a request in force, unless the end has begun (`settle`)."""
        if self.is_settled:
            return
        self.reason = request.reason
        self.interrupts = request.interrupts
        self.signal = request.signal

    def settle(self) -> None:
        """Begin the end: from now on it stays what it is, an ordinary end or an interruption."""
        self.is_settled = True
