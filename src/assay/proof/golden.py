"""Golden digests: one for each phase of a step, one for each module of the first and last."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from zlib import crc32

from assay.core.golden_file import WHOLE, GoldenLine
from assay.core.trace_file import PHASES, Digest, Phase
from assay.core.verdict import Difference
from assay.query.run import RunView
from assay.query.traces import ABSENT, ranks_of, shown_digest, steps_of

_MAX_MODULES = 40
"""Modules with a digest of their own in a step; deeper ones are folded into their parents."""

_WITH_MODULES: tuple[Phase, ...] = ("init", "backward", "optimizer", "state")
_VALUE = struct.Struct("<Q")


def golden_lines(view: RunView, steps: int) -> list[GoldenLine]:
    """Return the digests of steps 0 to `steps` of a run that traced each of them."""
    found: list[GoldenLine] = []
    for step, digests in sorted(_digests_by_step(view).items()):
        if step <= steps:
            found += _lines_of_step(step, digests, with_modules=step in (0, 1, steps))
    return found


def _digests_by_step(view: RunView) -> dict[int, list[Digest]]:
    """Return the digests of all ranks by step, rank after rank."""
    found: dict[int, list[Digest]] = {}
    for rank in ranks_of(view):
        for traced in steps_of(view, rank):
            found.setdefault(traced.step, []).extend(traced.digests)
    return found


def _lines_of_step(
    step: int, digests: Sequence[Digest], *, with_modules: bool
) -> Iterator[GoldenLine]:
    tensors = [each for each in digests if each.site.kind == "tensor"]
    tensors.sort(key=lambda each: PHASES.index(each.site.phase))
    for phase, group in groupby(tensors, key=lambda each: each.site.phase):
        members = list(group)
        if with_modules and phase in _WITH_MODULES:
            for module, inside in _by_module(members).items():
                yield GoldenLine(step, phase, module, _folded(inside))
        yield GoldenLine(step, phase, WHOLE, _folded(members))


def _by_module(digests: Sequence[Digest]) -> dict[str, list[Digest]]:
    """Group digests by module, folding the deepest modules until few enough are left."""
    paths = [each.site.module.split(".") for each in digests]
    depth = max(map(len, paths), default=1)
    while depth > 1 and len({tuple(path[:depth]) for path in paths}) > _MAX_MODULES:
        depth -= 1
    found: dict[str, list[Digest]] = {}
    for path, digest in zip(paths, digests, strict=True):
        if name := ".".join(path[:depth]):
            found.setdefault(name, []).append(digest)
    return found


def _folded(digests: Sequence[Digest]) -> str:
    """Return one digest of many; the number itself for a single loss."""
    if len(digests) == 1:
        return shown_digest(digests[0])
    mark = 0
    for each in digests:
        site = each.site
        text = f"{site.module} {site.name} {site.dtype} {site.shape} {each.occurrence} "
        mark = crc32(text.encode() + _VALUE.pack(each.fingerprint), mark)
    return f"{mark:08x}"


def first_golden_difference(
    golden: Sequence[GoldenLine], found: Sequence[GoldenLine]
) -> Difference | None:
    """Return the first line that differs, None for equal digests."""
    for left, right in zip_longest(golden, found):
        if left == right:
            continue
        place = left or right
        is_same_place = left and right and left[:3] == right[:3]
        return Difference(
            step=place.step,
            phase=place.phase,
            module="" if place.module == WHOLE else place.module,
            name=_name_of(place),
            left=left.digest if left else ABSENT,
            right=right.digest if right and is_same_place else ABSENT,
        )
    return None


def _name_of(line: GoldenLine) -> str:
    return "parameters" if line.module != WHOLE else f"{line.phase} digest"
