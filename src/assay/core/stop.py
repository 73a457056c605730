"""Token that asks a run to end: whoever starts the run makes one and passes it down to everything
that lasts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Wish to end a run. `interrupts`: the run is to be resumed later; `signal` is 0 unless a
    signal asked."""

    reason: str
    interrupts: bool = False
    signal: int = 0


NOBODY = Request(reason="")


class Stop:
    """Token that says whether a run was asked to end before its bound, why, and whether that
    interrupts it.

    `asked` holds the wish of this OS process; `reason`, `interrupts` and `signal` are in force. In
    a lone process both are the same. Ranks put a wish in force after the step in which all of them
    have heard of it (`agree`): one that left its loop earlier than the others would leave them
    waiting.

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
        """Ask the run to end after its step. The first reason counts, but an interruption outweighs
        an own end."""
        if not self.asked.reason or (interrupts and not self.asked.interrupts):
            self.asked = Request(reason=reason, interrupts=interrupts, signal=signal)
        if not self.is_shared:
            self.agree(self.asked)

    def agree(self, request: Request) -> None:
        """Put a wish in force. Once the end has begun (`settle`) it changes no longer how the run
        ends."""
        if self.is_settled:
            return
        self.reason, self.interrupts, self.signal = (
            request.reason,
            request.interrupts,
            request.signal,
        )

    def settle(self) -> None:
        """Begin the end: from now on what it is, an own end or an interruption, stays as it is."""
        self.is_settled = True
