"""The twins that live in memory keep the contract of their ports."""

from __future__ import annotations

import hashlib

import pytest

from assay.core.facts import Warned
from assay.core.ports import MemoryBlobs, MemoryRecorder, NullRecorder, Recorder


def test_a_memory_recorder_keeps_curves_and_facts_and_rewinds() -> None:
    recorder = MemoryRecorder()
    for step in range(4):
        recorder.log({"loss": 1 / (step + 1), "acc": step}, step)
    recorder.tell(Warned(message="hot"))

    recorder.rewind(1)
    recorder.log({"loss": 0.0}, 2)

    assert recorder.curve("loss") == [(0, 1.0), (1, 0.5), (2, 0.0)]
    assert recorder.curve("acc") == [(0, 0.0), (1, 1.0)]
    assert recorder.facts == [Warned(message="hot")]


@pytest.mark.parametrize("value", ["0.5", b"1", None, [1.0, 2.0]])
def test_a_value_that_is_no_number_is_left_out_with_a_warning_that_names_it(value: object) -> None:
    recorder = MemoryRecorder()

    recorder.log({"loss": 1.0, "valid/acc": value}, 1)  # type: ignore[dict-item]

    assert recorder.points == [("loss", 1, 1.0)]
    (warned,) = recorder.facts
    assert isinstance(warned, Warned) and "'valid/acc' is no number" in warned.message


def test_a_null_recorder_takes_everything() -> None:
    recorder: Recorder = NullRecorder()

    recorder.log({"": "anything"}, -1)  # type: ignore[dict-item]
    recorder.tell(Warned(message=""))
    recorder.rewind(0)


def test_memory_blobs_are_kept_once_by_content() -> None:
    blobs = MemoryBlobs()

    digest = blobs.put(b"abc")

    assert blobs.put(b"abc") == digest == hashlib.sha256(b"abc").hexdigest()
    assert blobs.get(digest) == b"abc"
    assert digest in blobs and "0" * 64 not in blobs
    assert list(blobs.digests()) == [digest]
    with pytest.raises(KeyError):
        blobs.get("0" * 64)
