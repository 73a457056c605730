"""The writer of traces: a disk that is full costs the trace, and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from assay.formats import trace_file
from assay.formats.trace_file import Digest, Head, TraceSite
from assay.record.trace_writer import TraceWriter

HEAD = Head(algorithm="fold64", level="default", every=1)
SITE = TraceSite(id=0, phase="loss", module="", name="loss", dtype="float64", shape=())


def test_what_was_written_is_there_although_nobody_closed_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace" / "1-0.bin"
    writer = TraceWriter(path, on_problem=pytest.fail)

    writer.write(trace_file.pack_head(HEAD))
    writer.write(trace_file.pack_site(SITE) + trace_file.pack_digests(3, [(0, 0, 7)]))

    assert list(trace_file.read_trace(path.read_bytes())) == [HEAD, Digest(3, SITE, 0, 7)]
    writer.close()


def test_a_full_disk_is_told_once_and_ends_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    writer = TraceWriter(tmp_path / "1-0.bin", on_problem=told.append)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        writer.write(b"12345678")

    assert len(told) == 1
    assert "The trace cannot be written: the disk is full" in told[0]


def test_a_place_that_is_taken_is_told(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("no folder")
    told: list[str] = []

    TraceWriter(tmp_path / "trace" / "1-0.bin", on_problem=told.append).write(b"12345678")

    assert len(told) == 1
