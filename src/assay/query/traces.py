"""Traces of runs, read step by step and aligned: the first fingerprint in which two runs differ."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from assay.core.trace_file import PHASES, Digest, Head, Level, Phase, SiteKind, read
from assay.core.verdict import Difference
from assay.query.run import RunView

_NUMBER = struct.Struct("<d")
_NUMBERS = frozenset({"loss", "gradient norm"})
"""Sites whose fingerprint is the number itself."""

ABSENT = "not there"


class FingerprintKey(NamedTuple):
    """Key by which fingerprints of two runs are aligned, within a step."""

    phase: Phase
    module: str
    name: str
    occurrence: int


Places: TypeAlias = dict[FingerprintKey, Digest]
"""Fingerprints of a step by place, in the order in which they were taken."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Fingerprints of one step, in the order in which they were taken."""

    step: int
    level: Level
    algorithm: str
    digests: tuple[Digest, ...]


@dataclass(slots=True, kw_only=True)
class Alignment:
    """Result of aligning two traces.

    `equal_until` is the last step with equal weights before the difference, -1 for none; `kind` is
    that of the site of the difference.
    """

    difference: Difference | None = None
    kind: SiteKind = "tensor"
    equal_until: int = -1
    first_step: int = -1
    last_step: int = -1
    compared: int = 0
    notes: list[str] = field(default_factory=list)


def ranks_of(view: RunView) -> list[int]:
    """Return the ranks that left a trace."""
    names = (path.stem.partition("-")[2] for path in view.folder.trace.glob("*-*.bin"))
    return sorted({int(name) for name in names if name.isdecimal()})


def steps_of(view: RunView, rank: int = 0) -> Iterator[TracedStep]:
    """Yield the steps that one rank traced; of a resumed run those that are part of its curve."""
    attempts = view.file.attempts
    for i, attempt in enumerate(attempts):
        last = min((later.from_step for later in attempts[i + 1 :]), default=None)
        path = view.folder.trace_file(attempt.number, rank)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        yield from steps_in(data, where=str(path), last=last)


def steps_in(data: bytes, *, where: str = "trace", last: int | None = None) -> Iterator[TracedStep]:
    """Yield the steps of one trace file up to `last`."""
    head: Head | None = None
    digests: list[Digest] = []
    for found in read(data, where=where):
        if isinstance(found, Head):
            head = found
        elif isinstance(found, Digest) and (last is None or found.step <= last):
            digests.append(found)
    if head is None:
        return
    for step, group in groupby(digests, key=lambda digest: digest.step):
        yield TracedStep(step, head.level, head.algorithm, tuple(group))


def align(left: Iterator[TracedStep], right: Iterator[TracedStep]) -> Alignment:
    """Walk through two traces up to the first fingerprint that differs.

    Steps and phases that only one of them traced are passed over.
    """
    found = Alignment()
    a = next(left, None)
    b = next(right, None)
    while a is not None and b is not None and found.difference is None:
        if a.step < b.step:
            a = next(left, None)
        elif b.step < a.step:
            b = next(right, None)
        else:
            _compare(a, b, found)
            a = next(left, None)
            b = next(right, None)
    return found


def _compare(left: TracedStep, right: TracedStep, found: Alignment) -> None:
    """Add what one step tells."""
    if left.algorithm != right.algorithm:
        found.notes = [f"fingerprints of {left.algorithm} and of {right.algorithm} do not compare"]
        return
    phases = {digest.site.phase for digest in left.digests} & {
        digest.site.phase for digest in right.digests
    }
    is_same_level = left.level == right.level
    a, b = (_places(each.digests, phases, with_operations=is_same_level) for each in (left, right))
    if not phases:
        return
    found.first_step = left.step if found.first_step < 0 else found.first_step
    found.last_step = left.step
    found.compared += len(a)
    bad = _first_bad(a, b), _first_bad(b, a)
    if bad == (None, None) or _is_same_outcome(a, b):
        if phases & {"optimizer", "init"}:
            found.equal_until = left.step
        return
    place, found.difference = _difference(left.step, a, b, *bad)
    digest = a.get(place) or b[place]
    found.kind = digest.site.kind


def _places(digests: Sequence[Digest], phases: set[Phase], *, with_operations: bool) -> Places:
    return {
        FingerprintKey(each.site.phase, each.site.module, each.site.name, each.occurrence): each
        for each in digests
        if each.site.phase in phases and (with_operations or each.site.kind == "tensor")
    }


def _is_same_outcome(a: Places, b: Places) -> bool:
    """Return True if all tensors are equal, whatever the operations that led to them.

    The first step of an attempt has a few operations more: constants that later steps keep.
    """
    left, right = (
        {place: digest for place, digest in each.items() if digest.site.kind == "tensor"}
        for each in (a, b)
    )
    return bool(left) and _first_bad(left, right) is None and _first_bad(right, left) is None


def _first_bad(own: Places, other: Places) -> FingerprintKey | None:
    """Return the first place of `own` that is not there in `other`, or not equal.

    An operation that only one run has counts unless the next phase begins equal. Then it is one of
    those that the first step of an attempt has more.
    """
    candidate: FingerprintKey | None = None
    for place, digest in own.items():
        is_extra = place not in other and digest.site.kind == "operation"
        if is_extra:
            candidate = candidate or place
        elif not _is_equal(digest, other.get(place)):
            return candidate or place
        elif candidate is not None and candidate.phase != place.phase:
            candidate = None
    return candidate


def _is_equal(left: Digest, right: Digest | None) -> bool:
    if right is None:
        return False
    a, b = left.site, right.site
    return left.fingerprint == right.fingerprint and (a.dtype, a.shape) == (b.dtype, b.shape)


def _difference(
    step: int,
    a: Places,
    b: Places,
    in_left: FingerprintKey | None,
    in_right: FingerprintKey | None,
) -> tuple[FingerprintKey, Difference]:
    """Return the place at which the runs part, and the difference there.

    Each side has its first bad place. One that only one side has comes before what it changed; an
    operation in place of another is told with the names of both.
    """
    is_left_only = in_left is not None and in_left not in b
    is_right_only = in_right is not None and in_right not in a
    place = in_left or in_right
    assert place is not None
    if in_right is not None and in_left is not None and is_right_only:
        is_first = PHASES.index(in_right.phase) < PHASES.index(in_left.phase)
        place = in_right if is_first or not is_left_only else in_left
    left = a.get(place)
    right = b.get(place)
    was = _shown(left, right)
    now = _shown(right, left)
    if is_left_only and is_right_only and in_left and in_right and in_left[:2] == in_right[:2]:
        was, now = in_left.name, in_right.name
    digest = left or right
    assert digest is not None
    is_operation = digest.site.kind != "tensor"
    return place, Difference(
        step=step,
        phase=place.phase,
        module=place.module,
        name="" if is_operation else place.name,
        op=place.name if is_operation else "",
        occurrence=place.occurrence,
        left=was,
        right=now,
    )


def _shown(digest: Digest | None, other: Digest | None) -> str:
    """Return the number where the fingerprint is one, dtype and shape where these differ."""
    if digest is None:
        return ABSENT
    site = digest.site
    is_of_another_kind = other is not None and (
        (site.dtype, site.shape) != (other.site.dtype, other.site.shape)
    )
    return f"{site.dtype} {list(site.shape)}" if is_of_another_kind else shown_digest(digest)


def shown_digest(digest: Digest) -> str:
    """Return the number of a loss or norm, else the fingerprint in hexadecimal digits."""
    if digest.site.name in _NUMBERS:
        return repr(_NUMBER.unpack(digest.fingerprint.to_bytes(8, "little"))[0])
    return f"{digest.fingerprint:08x}"
