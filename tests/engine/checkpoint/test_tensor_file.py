"""Files of tensors: those of others are read, damaged ones refused, several written at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.tensor_file import (
    Slice,
    read_slices,
    read_tensors,
    side_by_side,
    write_tensors,
)


def entry(dtype: str, shape: list[Any], *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def write(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "dtype"),
    [
        ({"__metadata__": {"by": "others"}, "a": entry("C64", [1], 0, 8)}, torch.complex64),
        ({"b": entry("F64", [], 0, 8), "a": entry("F32", [0, 3], 0, 0)}, torch.float32),
        ({"a": entry("F8_E4M3FNUZ", [2, 4], 0, 8)}, torch.float8_e4m3fnuz),
        ({"b": entry("U8", [7], 0, 7), "a": entry("BOOL", [1, 1], 7, 8)}, torch.bool),
    ],
)
def test_what_others_have_written_is_read(
    tmp_path: Path, header: dict[str, Any], dtype: torch.dtype
) -> None:
    path = write(tmp_path / "theirs.safetensors", header, bytes([*range(7), 1]))

    own = read_tensors(path)

    with safe_open(path, framework="pt") as file:
        assert own.keys() == set(file.keys())
        for name, tensor in own.items():
            theirs = file.get_tensor(name)
            assert (tensor.dtype, tensor.shape) == (theirs.dtype, theirs.shape)
            assert bytes(tensor.untyped_storage()) == bytes(theirs.untyped_storage())
    assert own["a"].dtype == dtype


@pytest.mark.parametrize(
    ("header", "data", "what"),
    [
        ({"a": entry("F32", [1], 0, 4)}, b"12345678", "file not fully covered"),
        ({"a": entry("F32", [1], 4, 8)}, b"12345678", "invalid offset for tensor `a`"),
        ({"a": entry("F32", [2], 0, 4)}, b"1234", "invalid"),
        ({"a": entry("F32", [2], 0, 8)}, b"1234", "file not fully covered"),
        ({n: entry("F32", [1], 0, 4) for n in "ab"}, b"1234", "invalid offset for tensor `"),
        ({"a": entry("F32", [-1, -1], 0, 4)}, b"1234", "integer `-1`"),
        ({"a": entry("F32", [1] * 65, 0, 4)}, b"1234", "a has more than 64 dimensions"),
        ({"a": entry("F32", [1 << 64], 0, 4)}, b"1234", "floating point"),
        ({"a": entry("F32", [True], 0, 4)}, b"1234", "boolean"),
        ({"a": entry("F6_E2M3", [4], 0, 3)}, b"123", "F6_E2M3"),
        ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
        ([], b"", "invalid type"),
        (b"{", b"", "EOF"),
        (b"[" * 100_000, b"", "invalid type"),
        (b"\xff\xfe", b"", "UTF-8"),
    ],
)
def test_what_lies_about_its_tensors_is_refused(
    tmp_path: Path, header: Any, data: bytes, what: str
) -> None:
    path = write(tmp_path / "odd.safetensors", header, data)

    with pytest.raises(CheckpointError, match=r"odd\.safetensors cannot be read: ") as caught:
        read_tensors(path)

    assert caught.match(what)
    assert "\n" not in caught.value.what and len(caught.value.what) < 300


@pytest.mark.parametrize("data", [b"", b"1234", (1 << 63).to_bytes(8, "little"), b"\1" + bytes(7)])
def test_a_file_without_a_whole_header_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match="cannot be read: Error while deserializing header"):
        read_tensors(path)


SHAPES: dict[str, Sequence[int]] = {
    "number": (),
    "none": (0, 3),
    "row": (700,),
    "rows": (5, 3),
    "wide": (6, 600),
    "deep": (4, 3, 300),
}
BOXES: list[tuple[str, tuple[slice, ...]]] = [
    ("number", ()),
    ("none", (slice(0, 0), slice(1, 2))),
    ("row", (slice(100, 700),)),
    ("rows", (slice(1, 4), slice(0, 3))),
    ("rows", (slice(0, 5), slice(1, 2))),
    ("wide", (slice(2, 6), slice(300, 600))),
    ("deep", (slice(1, 3), slice(0, 3), slice(0, 300))),
    ("deep", (slice(1, 4), slice(1, 3), slice(10, 290))),
    ("deep", (slice(0, 4), slice(2, 3), slice(0, 300))),
]


def test_slices_are_those_of_the_whole_tensors(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    whole = {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}
    path = tmp_path / "a.safetensors"
    write_tensors(path, whole)
    wanted: dict[str, list[Slice]] = {}
    for name, box in BOXES:
        shape, offsets = whole[name].shape, tuple(each.start for each in box)
        sizes = [each.stop - each.start for each in box]
        contiguous, strided = (
            torch.empty(sizes),
            torch.empty(sizes[::-1]).permute([*range(len(sizes))][::-1]),
        )
        wanted.setdefault(name, []).extend(
            Slice(tuple(shape), offsets, into) for into in (contiguous, strided)
        )

    read_slices(path, wanted)

    for name, box in BOXES:
        for into in [wanted[name].pop(0).into for _ in range(2)]:
            assert torch.equal(into, whole[name][box])


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("b", (2, 3), torch.float32), ("a", (3, 2), torch.float32), ("a", (2, 3), torch.float16)],
)
def test_a_slice_of_what_a_file_does_not_hold_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": torch.ones(2, 3)})
    wanted = {name: [Slice(shape, (0, 0), torch.empty(shape, dtype=dtype))]}

    with pytest.raises(CheckpointError, match=f"does not hold the {name} that it should"):
        read_slices(path, wanted)


def test_several_are_done_at_once_and_the_first_error_is_raised_when_all_have_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=60)
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number < 2:
            both.wait()  # would time out if one were done after the other
        if number == 1:
            raise OSError("full")
        return 10 * number

    assert side_by_side(lambda number: 10 * number, range(5)) == [0, 10, 20, 30, 40]
    assert side_by_side(work, []) == []
    with pytest.raises(OSError, match="full"):
        side_by_side(work, range(100))
    assert len(begun) < 100
    assert "assay-files" not in {thread.name for thread in threading.enumerate()}


def test_without_a_thread_to_begin_all_is_done_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)

    assert side_by_side(str, range(3)) == ["0", "1", "2"]
