"""Golden digests: one for each phase of a step, one for each module of the first and last."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from zlib import crc32

from assay.core.errors import InputError
from assay.core.golden_file import ORDER, WHOLE, GoldenLine
from assay.core.trace_file import PHASES, SAMPLE_INDICES, Digest, Phase
from assay.core.verdict import Difference
from assay.query.run import RunView
from assay.query.traces import ABSENT, Alignment, ranks_of, shown_digest, steps_of

_MAX_MODULES = 40
"""Modules with a digest of their own in a step; deeper ones are folded into their parents."""

_WITH_MODULES: tuple[Phase, ...] = ("init", "backward", "optimizer", "state")
_NAMED = 3
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
        if phase == "data":
            order = [each for each in members if each.site.name == SAMPLE_INDICES]
            if order:
                yield GoldenLine(step, phase, ORDER, _folded(order))
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


def align_golden(golden: Sequence[GoldenLine], found: Sequence[GoldenLine]) -> Alignment:
    """Return the first line that differs, with what was compared before it.

    InputError where the lines are of other places, so that they do not compare.
    """
    left, right = _by_place(golden), _by_place(found)
    if not any(place[2] == ORDER for place in left):  # as in files of before
        right = {place: digest for place, digest in right.items() if place[2] != ORDER}
    alignment = Alignment(first_step=0)
    for place in [*left, *(each for each in right if each not in left)]:
        step, phase, module = place
        digests = left.get(place, ABSENT), right.get(place, ABSENT)
        if digests[0] != digests[1]:
            _refuse_other_places(left, right)
            alignment.difference = Difference(
                step=step,
                phase=phase,
                module="" if module in (WHOLE, ORDER) else module,
                name=_name_of(phase, module),
                left=digests[0],
                right=digests[1],
            )
            break
        compared = alignment.traced.get(step, frozenset())
        alignment.traced[step] = compared | {phase} | ({"order"} if module == ORDER else set())
        alignment.last_step = step
    alignment.compared = len(left)
    return alignment


def _by_place(lines: Sequence[GoldenLine]) -> dict[tuple[int, Phase, str], str]:
    return {(line.step, line.phase, line.module): line.digest for line in lines}


def _refuse_other_places(
    left: Mapping[tuple[int, Phase, str], str], right: Mapping[tuple[int, Phase, str], str]
) -> None:
    """InputError for runs of another length, and for a model with modules of other names."""
    last, now = (max(step for step, *_ in lines) for lines in (left, right))
    if last != now:
        raise InputError(f"It has the digests of {last} steps, and this run made {now}.")
    names, others = (
        {module for step, phase, module in lines if phase == "init" and module != WHOLE}
        for lines in (left, right)
    )
    gone, new = sorted(names - others), sorted(others - names)
    if gone or new:
        renamed = " and ".join(
            f"{which} {', '.join(modules[:_NAMED])}"
            for which, modules in (("no longer has", gone), ("has the new", new))
            if modules
        )
        raise InputError(f"The model is another one: it {renamed}.")


def _name_of(phase: Phase, module: str) -> str:
    if module == ORDER:
        return SAMPLE_INDICES
    return "parameters" if module != WHOLE else f"{phase} digest"
