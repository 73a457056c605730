"""Files of weights that a stranger made: each is read, or refused in one line that names it."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import CheckpointError, InputError
from assay.engine.checkpoint.folder import assemble_pieces
from assay.engine.checkpoint.tensor_file import write_tensors
from assay.engine.checkpoint.weights import read_foreign
from assay.formats.manifest import Shard, ShardedTensor


def safetensors_file(header: Any, data: bytes = bytes(64), size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64], **changes}}


TWICE = b'{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},'
TWICE += b'"w":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}}'
BAD_HEADERS = {
    "nothing": b"",
    "half a length": b"\1\0",
    "a header of a terabyte": safetensors_file(entry(), size=1 << 40),
    "a header beyond 64 bits of file": safetensors_file(entry(), size=(1 << 64) - 1),
    "no JSON": safetensors_file(b"{{{"),
    "a list": safetensors_file(b"[]"),
    "brackets without end": safetensors_file(b'{"w":' * 50_000),
    "a negative size": safetensors_file(entry(shape=[-16])),
    "a size that is no whole number": safetensors_file(entry(shape=[16.0])),
    "a negative offset": safetensors_file(entry(data_offsets=[-64, 0])),
    "an end before its start": safetensors_file(entry(data_offsets=[64, 0])),
    "offsets behind the file": safetensors_file(entry(shape=[1600], data_offsets=[0, 6400])),
    "offsets that overlap": safetensors_file({**entry(), "v": entry()["w"]}),
    "a name twice": safetensors_file(TWICE),
    "bytes that no tensor has": safetensors_file(entry(), bytes(128)),
    "an unknown dtype": safetensors_file(entry(dtype="../X\x1b[31m" + "9" * 100_000)),
    "a dtype of six bits": safetensors_file(
        entry(dtype="F6_E2M3", shape=[64], data_offsets=[0, 48]), bytes(48)
    ),
    "a size that overflows": safetensors_file(
        entry(shape=[1 << 62, 1 << 62, 0], data_offsets=[0, 0]), b""
    ),
    "a size beyond a signed number": safetensors_file(
        entry(shape=[0, 1 << 63], data_offsets=[0, 0]), b""
    ),
    "dimensions without end": safetensors_file(
        entry(shape=[1] * 20_000, data_offsets=[0, 4]), bytes(4)
    ),
    "empty dimensions without end": safetensors_file(
        entry(shape=[0] * 20_000, data_offsets=[0, 0]), b""
    ),
    "a metadata that is no table": safetensors_file({"__metadata__": 5, **entry()}),
}


def npy(dtype: str, shape: str, data: bytes = b"") -> bytes:
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + data


def npz(*arrays: bytes, packed: bool = False) -> bytes:
    out = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", method) as file:
        for number, array in enumerate(arrays):
            file.writestr(f"{number}.npy", array)
    return out.getvalue()


ONE = npy("<f4", "(4,)", bytes(16))
BAD_ARRAYS = {
    "nothing": b"",
    "no archive": b"hello",
    "an array alone": ONE,
    "an archive without its end": npz(ONE)[:-30],
    "an archive without its start": npz(ONE)[10:],
    "an array of terabytes": npz(npy("<f4", f"({1 << 40},)")),
    "a negative size": npz(npy("<f4", "(-4,)", bytes(16))),
    "objects": npz(npy("|O", "(4,)", bytes(32))),
    "texts": npz(npy("<U4", "(1,)", bytes(16))),
    "a header that is no table": npz(npy("<f4", "(" * 9_000)),
    "a header that nests": npz(npy("<f4", "-" * 9_900 + "1")),
    "dimensions without end": npz(npy("<f4", str((1,) * 65), bytes(4))),
    "no array": npz(b"abc"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_hostile_header_is_one_line_that_names_the_file(case: str, tmp_path: Path) -> None:
    check_refused(tmp_path / "net.safetensors", BAD_HEADERS[case])


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_a_hostile_archive_of_arrays_is_one_line_that_names_the_file(
    case: str, tmp_path: Path
) -> None:
    check_refused(tmp_path / "net.npz", BAD_ARRAYS[case])


def check_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as refused:
        read_foreign(path)
    assert path.name in refused.value.what
    assert refused.value.where == str(path)
    assert len(refused.value.what) < 300
    assert "pickle.load" not in refused.value.what


@pytest.mark.parametrize("ending", ["safetensors", "npz", "pt"])
def test_changed_bytes_of_a_file_of_weights_are_read_or_refused(
    ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"net.{ending}"
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.int16)}
    if ending == "safetensors":
        write_tensors(path, tensors)
    elif ending == "npz":
        np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    else:
        torch.save(tensors, path)
    whole = path.read_bytes()
    rng = random.Random(28)
    refused = 0
    for _ in range(120):
        data = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.randint(0 if len(data) < len(whole) else 1, 4) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            read_foreign(path, pickled=True)
        except (CheckpointError, InputError) as error:
            refused += 1
            assert path.name in error.what, error
    assert refused > 20


def test_arrays_that_a_small_file_unpacks_to_are_refused_before_they_are_unpacked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("w.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy("|u1", f"({300 << 20},)"))
        for _ in range(300):
            member.write(bytes(1 << 20))

    with pytest.raises(CheckpointError, match=r"bomb\.npz cannot be read: it claims 315 MB"):
        read_foreign(path)


def test_a_dataset_whose_data_lies_in_another_file_is_not_followed(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    (tmp_path / "mine.txt").write_bytes(b"my secret.......")
    for name in ("external", "virtual"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            if name == "external":
                place = [(str(tmp_path / "mine.txt"), 0, 16)]
                file.create_dataset("w", (16,), "u1", external=place)
            else:
                layout = h5py.VirtualLayout(shape=(16,), dtype="u1")
                layout[:] = h5py.VirtualSource(tmp_path / "external.h5", "w", shape=(16,))
                file.create_virtual_dataset("w", layout)
        with pytest.raises(CheckpointError, match="w lies in another file, which is not followed"):
            read_foreign(tmp_path / f"{name}.h5")


def test_a_dataset_of_terabytes_that_were_never_written_is_refused(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.create_dataset("w", (1 << 30,), "f4", chunks=(1 << 16,))

    with pytest.raises(CheckpointError, match=r"it claims 4\.29 GB of arrays"):
        read_foreign(tmp_path / "net.h5")


@pytest.mark.parametrize("ending", ["safetensors", "npz", "h5", "pt"])
def test_a_named_pipe_is_not_waited_for(ending: str, tmp_path: Path) -> None:
    if ending == "h5":
        pytest.importorskip("h5py")
    os.mkfifo(tmp_path / f"net.{ending}")

    with pytest.raises(CheckpointError, match="it is a named pipe, not a file"):
        read_foreign(tmp_path / f"net.{ending}", pickled=True)


def test_a_tensor_in_pieces_is_no_larger_than_the_pieces_that_are_there() -> None:
    mine = Shard(file="a.safetensors", key="w", offsets=(0,), shape=(2,))
    rest = Shard(file="a.safetensors", key="v", offsets=(2,), shape=((1 << 45) - 2,))
    again = replace(mine, offsets=(2,))

    for shards in ((mine, rest), (mine, again)):
        size = sum(shard.shape[0] for shard in shards)
        tensor = ShardedTensor(name="w", dtype="F32", shape=(size,), shards=shards)
        with pytest.raises(CheckpointError, match="does not hold the piece of w"):
            assemble_pieces(tensor, {"a.safetensors": {"w": torch.ones(2)}})
