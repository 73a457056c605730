"""Traces: what was fingerprinted is read back, and damage never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import RecordError
from assay.formats import frames, trace_file
from assay.formats.frames import Damage
from assay.formats.trace_file import PHASES, Digest, Head, TraceSite

U32 = st.integers(0, 2**32 - 1)
HEAD = Head(algorithm="fold64", level="full", every=100, rank=3)
Entries = list[tuple[int, int, int]]


def head_of(data: dict[str, object]) -> bytes:
    """Return the frame of a head that another version may have written."""
    body = json.dumps(data).encode()
    return frames.pack(trace_file.HEAD, 0, 0, len(body).to_bytes(4, "little") + body)


@st.composite
def sites(draw: st.DrawFn) -> list[TraceSite]:
    ids = draw(st.lists(U32, min_size=1, max_size=4, unique=True))
    text = st.text(max_size=10)
    return [
        TraceSite(
            id=each,
            phase=draw(st.sampled_from(PHASES)),
            module=draw(text),
            name=draw(text),
            dtype="float32",
            shape=tuple(draw(st.lists(st.integers(0, 2**40), max_size=3))),
        )
        for each in ids
    ]


@settings(deadline=None)
@given(sites(), st.data())
def test_fingerprints_come_back_in_the_order_in_which_they_were_taken(
    known: list[TraceSite], data: st.DataObject
) -> None:
    entry = st.tuples(st.sampled_from([site.id for site in known]), U32, st.integers(0, 2**64 - 1))
    steps: list[tuple[int, Entries]] = data.draw(
        st.lists(st.tuples(U32, st.lists(entry, max_size=6)), max_size=4)
    )
    body = trace_file.pack_head(HEAD) + b"".join(map(trace_file.pack_site, known))
    body += b"".join(trace_file.pack_digests(step, entries) for step, entries in steps)

    head, *digests = trace_file.read_trace(body)

    by_id = {site.id: site for site in known}
    assert head == HEAD
    assert digests == [
        Digest(step, by_id[i], n, mark) for step, entries in steps for i, n, mark in entries
    ]


def test_a_step_of_more_fingerprints_than_a_frame_holds_is_written_as_several() -> None:
    site = TraceSite(id=1, phase="forward", module="net", name="output", dtype="float32", shape=())
    entries = [(1, n, n * n) for n in range(trace_file.MAX_ENTRIES + 1)]

    packed = trace_file.pack_head(HEAD) + trace_file.pack_site(site)
    packed += trace_file.pack_digests(5, entries)

    assert [
        digest.occurrence for digest in trace_file.read_trace(packed) if isinstance(digest, Digest)
    ] == list(range(trace_file.MAX_ENTRIES + 1))


def test_a_site_of_a_later_version_with_more_to_say_is_read() -> None:
    body = b'{"phase":"data","module":"","name":"x","dtype":"int64","shape":[2],"device":"cpu"}'
    frame = frames.pack(trace_file.SITE, 4, 0, len(body).to_bytes(4, "little") + body)

    head = trace_file.pack_head(HEAD)
    found = list(trace_file.read_trace(head + frame + trace_file.pack_digests(1, [(4, 0, 9)])))

    site = TraceSite(id=4, phase="data", module="", name="x", dtype="int64", shape=(2,))
    assert found == [HEAD, Digest(1, site, 0, 9)]


@pytest.mark.parametrize(
    "body",
    [
        frames.pack(trace_file.SITE, 1, 0, b"\x05\0\0\0{bad}"),
        frames.pack(trace_file.SITE, 1, 0, b"\x02\0\0\0{}"),
        frames.pack(trace_file.SITE, 1, 0, b""),
        frames.pack(trace_file.HEAD, 0, 0, b"\x02\0\0\0[]"),
        trace_file.pack_digests(1, [(77, 0, 1)]),
    ],
    ids=["no JSON", "nothing said", "empty", "a list", "a site nobody defined"],
)
def test_what_makes_no_sense_is_reported_as_damage_and_passed_over(body: bytes) -> None:
    found = list(trace_file.read_trace(body + trace_file.pack_head(HEAD)))

    assert [type(item) for item in found] == [Damage, Head]


@settings(deadline=None)
@given(st.data())
def test_a_flipped_bit_costs_at_most_the_fingerprints_of_its_own_frame(data: st.DataObject) -> None:
    site = TraceSite(
        id=1, phase="forward", module="net", name="output", dtype="float32", shape=(2, 3)
    )
    first = (
        trace_file.pack_head(HEAD)
        + trace_file.pack_site(site)
        + trace_file.pack_digests(1, [(1, 0, 5), (1, 1, 6)])
    )
    second = trace_file.pack_digests(2, [(1, 0, 7)])
    whole = first + second
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    found = [item for item in trace_file.read_trace(bytes(flipped)) if not isinstance(item, Damage)]

    said = list(trace_file.read_trace(whole))
    assert all(item in said for item in found)
    assert len(found) >= len(said) - 2, "two fingerprints are in a frame"
    assert any(isinstance(item, Head) for item in found)


def test_a_file_cut_at_every_byte_of_its_last_frame_keeps_what_came_before() -> None:
    site = TraceSite(id=1, phase="loss", module="", name="loss", dtype="float32", shape=())
    last = trace_file.pack_digests(2, [(1, 0, 2**64 - 1)])
    whole = trace_file.pack_head(HEAD) + trace_file.pack_site(site)
    whole += trace_file.pack_digests(1, [(1, 0, 5)]) + last
    start = len(whole) - len(last)

    for cut in range(start + 1, len(whole)):
        assert list(trace_file.read_trace(whole[:cut])) == [
            HEAD,
            Digest(1, site, 0, 5),
            Damage(start, cut, torn=True),
        ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" * 100, "no trace: it has no intact head"),
        (trace_file.pack_head(HEAD)[:30], "no trace: it has no intact head"),
        (head_of({"format": 3, "algorithm": "fold64"}), "has format 3; this assay knows 2"),
        (head_of({"algorithm": "fold64"}), "has format 1; this assay knows 2"),
    ],
)
def test_what_is_no_trace_or_of_another_format_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        list(trace_file.read_trace(data))


def test_the_file_of_a_run_that_was_killed_at_once_is_an_empty_trace() -> None:
    assert list(trace_file.read_trace(b"")) == []
