"""Bytes that a rank sends to others in a step, from the collectives that the step really calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from assay.engine.numerics.structures import tensors_in
from assay.formats.rehearsal import AxisTraffic

NAMESPACES = ("c10d", "_c10d_functional")

Call = tuple[str, bool]
"""Group of a collective by its name, and whether it adds up what it also gives to all."""


class Traffic:
    """Counter of the collectives of a step and of the bytes of what they gather or add up."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self.whole_bytes: Counter[Call] = Counter()

    def see(self, func: Any, args: Any, out: Any) -> None:
        """Count an operation of `NAMESPACES`; those that only wait name no group."""
        group = _group_of(args)
        if group is None or "recv" in func.name():  # what is received is sent by another
            return
        # A gather gives the whole, a reduce-scatter is given it, others have it on both sides.
        sizes = [sum(tensor.nbytes for tensor in tensors_in(each)) for each in (*args, out)]
        name = func.name()
        call = group, "allreduce" in name or "all_reduce" in name
        self.calls[call] += 1
        self.whole_bytes[call] += max(sizes)

    def copy(self) -> Traffic:
        """Return what was counted until now."""
        other = Traffic()
        other.calls += self.calls
        other.whole_bytes += self.whole_bytes
        return other

    def repeat(self, one: Traffic, times: int) -> None:
        """Count what `one` has so many times more."""
        for call in one.calls:
            self.calls[call] += times * one.calls[call]
            self.whole_bytes[call] += times * one.whole_bytes[call]

    def by_axis(self, axes: Mapping[str, tuple[str, int]]) -> tuple[AxisTraffic, ...]:
        """Return what one rank sends along each axis, given the axis and the size of each group.

        In a ring each of n ranks sends (n - 1) / n of the whole, and twice that where it is added
        up and given to all (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
        clusters of workstations", 2009). A pipeline sends what it gives on.
        """
        collectives: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        for (group, adds_up), whole in self.whole_bytes.items():
            axis, ranks = axes.get(group, ("", 1))
            share = 1.0 if axis == "pipeline" else (ranks - 1) / ranks * (2 if adds_up else 1)
            if ranks > 1:
                collectives[axis] += self.calls[group, adds_up]
                sent[axis] += round(whole * share)
        return tuple(
            AxisTraffic(axis=axis, collectives=count, sent_bytes=sent[axis])
            for axis, count in collectives.items()
        )


def _group_of(args: Sequence[Any]) -> str | None:
    """Return the name of the group that a collective is given: boxed, or as its last argument."""
    for each in args:
        if isinstance(each, torch.ScriptObject):
            with suppress(RuntimeError):  # it is something else, as the way of adding up
                return str(dist.ProcessGroup.unbox(each).group_name)
    last = args[-1] if args else None
    return str(getattr(last, "group_name", last)) if len(args) > 1 else None
