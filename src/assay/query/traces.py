"""Traces of runs, read step by step and aligned: the first fingerprint in which two runs differ."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from assay.core.errors import RecordError
from assay.core.regular_file import read_bytes
from assay.formats.trace_file import (
    PHASES,
    SAMPLE_INDICES,
    Digest,
    Head,
    Level,
    Phase,
    SiteKind,
    read_trace,
)
from assay.formats.verdict import Difference
from assay.query.run import RunView

_NUMBER = struct.Struct("<d")
_INPUTS = PHASES.index("randomness")
"""Place of the last phase that no weight and no buffer changes."""

_NUMBERS = frozenset({"loss", "gradient norm"})
"""Sites whose fingerprint is the number itself."""

ABSENT = "not there"

Compared = Literal[Phase, "order", "operations"]
"""What was compared of a step: a phase, the indices of the samples, every operation."""


class FingerprintKey(NamedTuple):
    """Key by which fingerprints of two runs are aligned, within a step."""

    phase: Phase
    module: str
    name: str
    occurrence: int


Places: TypeAlias = dict[FingerprintKey, Digest]
"""Fingerprints of a step by place, in the order in which they were taken."""
_MOST_BYTES = 2 << 30


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
    that of the site of the difference. `traced` says what was compared of each step: up to the
    difference it is equal. `compared` values of `first_step` to `last_step`, -1 for none, depend on
    the weights.
    """

    difference: Difference | None = None
    kind: SiteKind = "tensor"
    traced: dict[int, frozenset[Compared]] = field(default_factory=dict)
    equal_until: int = -1
    first_step: int = -1
    last_step: int = -1
    compared: int = 0
    notes: list[str] = field(default_factory=list)

    def add_steps(self, steps: Sequence[int]) -> None:
        """Count a value that was compared at each of these steps."""
        if steps:
            known = [step for step in (self.first_step, self.last_step) if step >= 0]
            self.first_step, self.last_step = min([*known, *steps]), max([*known, *steps])
            self.compared += len(steps)


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
            data = read_bytes(path, _MOST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            what = f"The trace cannot be read: {error.strerror or error}."
            raise RecordError(what, where=str(path)) from error
        yield from steps_in(data, where=str(path), last=last)


def steps_in(data: bytes, *, where: str = "trace", last: int | None = None) -> Iterator[TracedStep]:
    """Yield the steps of one trace file up to `last`."""
    head: Head | None = None
    digests: list[Digest] = []
    for found in read_trace(data, where=where):
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

    Steps and phases that only one of them traced are passed over. A buffer that an evaluation of
    one of them has written is the difference if the weights or buffers after it differ.
    """
    found = Alignment()
    written: list[Difference] = []
    a = next(left, None)
    b = next(right, None)
    while a is not None and b is not None:
        at = min(a.step, b.step)
        here = (a if a.step == at else None, b if b.step == at else None)
        if here == (a, b):
            _compare(a, b, found)
        first = found.difference
        if first is not None:
            if written and PHASES.index(first.phase) > _INPUTS:
                found.difference, found.kind = written[0], "tensor"
            break
        if "state" in found.traced.get(at, ()):
            written.clear()  # the buffers are equal now
        if "optimizer" in found.traced.get(at, ()):  # else what it wrote may be what it was given
            written += _written_in_evaluation(*here)
        a = next(left, None) if a.step == at else a
        b = next(right, None) if b.step == at else b
    return found


def _written_in_evaluation(
    left: TracedStep | None, right: TracedStep | None
) -> Iterator[Difference]:
    """Yield the buffers that the evaluation of one run wrote, and that of the other otherwise."""
    places = [
        {} if each is None else _places(each.digests, {"evaluation"}, with_operations=False)
        for each in (left, right)
    ]
    a, b = places
    for place in [*a, *(each for each in b if each not in a)]:
        was, now = a.get(place), b.get(place)
        if was is None or not _is_equal(was, now):
            yield Difference(
                step=(was or b[place]).step,
                phase=place.phase,
                module=place.module,
                name=place.name,
                left=_show(was, now),
                right=_show(now, was),
            )


def _compare(left: TracedStep, right: TracedStep, found: Alignment) -> None:
    """Add what one step tells."""
    if left.algorithm != right.algorithm:
        found.notes = [f"fingerprints of {left.algorithm} and of {right.algorithm} do not compare"]
        return
    phases = {digest.site.phase for digest in left.digests} & {
        digest.site.phase for digest in right.digests
    }
    phases.discard("evaluation")  # whoever writes nothing has none
    is_same_level = left.level == right.level
    a, b = (_places(each.digests, phases, with_operations=is_same_level) for each in (left, right))
    if not phases:
        return
    if phases - {"data", "randomness"}:
        found.add_steps([left.step] * len(a))
    found.traced[left.step] = found.traced.get(left.step, frozenset()) | _compare_facts(
        a, b, phases
    )
    bad = _first_bad(a, b), _first_bad(b, a)
    if bad == (None, None) or _is_same_outcome(a, b):
        if phases & {"optimizer", "init"}:
            found.equal_until = left.step
        return
    place, found.difference = _difference(left.step, a, b, *bad)
    found.kind = _kind(a.get(place), b.get(place))


def _compare_facts(a: Places, b: Places, phases: set[Phase]) -> frozenset[Compared]:
    """Return what both steps have of what tells one cause from another."""
    compared: set[Compared] = {*phases}
    if any(place.name == SAMPLE_INDICES for place in a.keys() & b.keys()):
        compared.add("order")
    if any(each.site.kind != "tensor" for each in (*a.values(), *b.values())):
        compared.add("operations")
    return frozenset(compared)


def _kind(left: Digest | None, right: Digest | None) -> SiteKind:
    """Return the kind of a place: one that draws with other arguments is no other randomness."""
    if left is not None and right is not None and left.site.arguments != right.site.arguments:
        return "operation"
    digest = left or right
    assert digest is not None
    return digest.site.kind


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
    was = _show(left, right)
    now = _show(right, left)
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


def _show(digest: Digest | None, other: Digest | None) -> str:
    """Return the number where the fingerprint is one; dtype and shape or arguments that differ."""
    if digest is None:
        return ABSENT
    site = digest.site
    is_of_another_kind = other is not None and (
        (site.dtype, site.shape) != (other.site.dtype, other.site.shape)
    )
    if is_of_another_kind:
        return f"{site.dtype} {list(site.shape)}"
    if other is not None and site.arguments != other.site.arguments:
        return f"{shown_digest(digest)}, drawn with {site.arguments or 'no arguments'}"
    return shown_digest(digest)


def shown_digest(digest: Digest) -> str:
    """Return the number of a loss or norm, else the fingerprint in hexadecimal digits."""
    if digest.site.name in _NUMBERS:
        return repr(_NUMBER.unpack(digest.fingerprint.to_bytes(8, "little"))[0])
    return f"{digest.fingerprint:08x}"
