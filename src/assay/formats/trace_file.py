"""The byte format of a trace, version 2: fingerprints of a run, step by step, module by module.

One file an attempt and rank: `trace/<attempt>-<rank>.bin`. The grammar of frames is in
`formats/frames.py`.

    tag             a        b        payload
    1       DIGESTS step     entries  entries of: u32 site, u32 occurrence, u64 fingerprint, in the
                                      order they happened
    0xFFFE  SITE    site id  0        u32 length, UTF-8 JSON: phase, module, name, dtype, shape,
                                      kind, arguments
    0xFFFD  HEAD    0        0        u32 length, UTF-8 JSON: format, algorithm, level, every, rank

A site is a place in the program at which a tensor is fingerprinted; it is defined before its first
use. `occurrence` counts how often that site was reached within the step (a module called twice, a
micro-step). HEAD comes first. SITE and HEAD are written twice, because other frames depend on them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from assay.core.errors import RecordError
from assay.formats import frames
from assay.formats.frames import Damage, Frame
from assay.formats.json_codec import dataclass_from

FORMAT = 2

DIGESTS = 1
SITE = 0xFFFE
HEAD = 0xFFFD
_TAGS = frozenset({DIGESTS, SITE, HEAD})
_SENSELESS = (KeyError, struct.error, ValueError, TypeError, RecursionError, RecordError)
MAX_ENTRIES = frames.MAX_PAYLOAD_BYTES // 16

Phase = Literal[
    "init",
    "data",
    "randomness",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "state",
    "average",
    "evaluation",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""Phases in the order of a step; `init` comes before step 1 and before a resumed attempt.

`average` has the averaged weights after the update, and `evaluation` the buffers that an evaluation
after the step wrote; either is there only for these.
"""

SAMPLE_INDICES = "sample indices"
"""Name of the site that tells which samples a micro-batch has."""

Level = Literal["default", "full"]
"""`full` adds every operation of the steps that are traced, with the module that it belongs to."""

SiteKind = Literal["tensor", "operation", "random operation"]

_ENTRY = struct.Struct("<IIQ")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Settings of the fingerprints of a file; two files compare only where these are equal."""

    algorithm: str
    level: Level
    every: int
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSite:
    """Place at which a tensor is fingerprinted: dotted path of a module, and the tensor's name.

    An operation has torch's name for it; a random operation draws from a generator. `arguments` are
    those of a random operation that are no tensors, as text: its probability, its bounds.
    """

    id: int
    phase: Phase
    module: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: SiteKind = "tensor"
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Digest:
    """The fingerprint of one tensor at one step."""

    step: int
    site: TraceSite
    occurrence: int
    fingerprint: int


def pack_head(head: Head) -> bytes:
    """Return the frame of a head, twice: without it no other frame can be compared."""
    data = {
        "format": FORMAT,
        "algorithm": head.algorithm,
        "level": head.level,
        "every": head.every,
        "rank": head.rank,
    }
    return 2 * frames.pack(HEAD, 0, 0, _text(data))


def pack_site(site: TraceSite) -> bytes:
    """Return the frame that defines a site, twice: the fingerprints of the site depend on it."""
    names = ("phase", "module", "name", "dtype", "shape", "kind")
    data = {name: getattr(site, name) for name in names}
    if site.arguments:
        data["arguments"] = site.arguments
    return 2 * frames.pack(SITE, site.id, 0, _text(data))


def pack_digests(step: int, entries: Iterable[tuple[int, int, int]]) -> bytes:
    """Return frames for the (site id, occurrence, fingerprint) triples of one step, a u32."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    out = []
    for i in range(0, len(packed), MAX_ENTRIES):
        part = packed[i : i + MAX_ENTRIES]
        out.append(frames.pack(DIGESTS, step, len(part), b"".join(part)))
    return b"".join(out)


def read_trace(
    data: bytes | memoryview, *, where: str = "trace"
) -> Iterator[Head | Digest | Damage]:
    """Yield the head, then the fingerprints in the order taken; damage is reported and skipped.

    RecordError for what has no intact head, and is no trace or one of another format.
    """
    if not data:
        return
    _check_format(data, where)
    sites: dict[int, TraceSite] = {}
    head: Head | None = None
    for item in frames.scan(data, is_tag=_TAGS.__contains__):
        if isinstance(item, Damage):
            yield item
            continue
        try:
            for found in _decode(item, sites):
                if found != head:  # the second copy
                    yield found
                if isinstance(found, Head):
                    head = found
        except _SENSELESS:
            # Intact, but about a site whose definition was lost, or written wrongly: one frame is
            # lost.
            yield Damage(item.offset, item.end, torn=False)


def _check_format(data: bytes | memoryview, where: str) -> None:
    heads = (
        item
        for item in frames.scan(data, is_tag=_TAGS.__contains__)
        if isinstance(item, Frame) and item.tag == HEAD
    )
    for frame in heads:
        try:
            head = _json(frame.payload)
        except _SENSELESS:
            continue
        if "algorithm" not in head:
            continue
        found = head.get("format", 1)
        if found == FORMAT:
            return
        fix = "Read it with the assay that wrote it."
        raise RecordError(
            f"The file has format {found}; this assay knows {FORMAT}.", where=where, fix=fix
        )
    raise RecordError("This is no trace: it has no intact head.", where=where)


def _decode(frame: Frame, sites: dict[int, TraceSite]) -> list[Head | Digest]:
    match frame.tag:
        case 0xFFFD:  # HEAD
            return [dataclass_from(Head, _json(frame.payload))]
        case 0xFFFE:  # SITE
            sites[frame.a] = dataclass_from(TraceSite, {**_json(frame.payload), "id": frame.a})
        case 1:  # DIGESTS
            entries = _ENTRY.iter_unpack(frame.payload[: frame.b * _ENTRY.size])
            return [
                Digest(frame.a, sites[site], occurrence, value)
                for site, occurrence, value in entries
            ]
    return []


def _text(data: dict[str, Any]) -> bytes:
    body = json.dumps(data, separators=(",", ":")).encode("utf-8")
    return _LENGTH.pack(len(body)) + body


def _json(payload: memoryview) -> dict[str, Any]:
    (length,) = _LENGTH.unpack_from(payload)
    return dict(json.loads(bytes(payload[_LENGTH.size : _LENGTH.size + length])))
