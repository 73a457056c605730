"""Files divided among the ranks that verify them; the slices that a rank asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.folder import Where, load_parts
from assay.engine.checkpoint.own_share import Share, divide_files, load_share
from assay.engine.checkpoint.saver import Saver
from assay.formats import manifest
from assay.formats.manifest import ManifestFile, Shard, ShardedTensor
from engine.toys import same_bits


def files(*sizes: int) -> list[ManifestFile]:
    return [ManifestFile(name=f"{i}", size_bytes=size, sha256="") for i, size in enumerate(sizes)]


def test_a_file_is_verified_by_the_rank_that_reads_all_of_it_anyway() -> None:
    owner = divide_files(files(100, 60, 20), [{"0": 98, "2": 20}, {"1": 58}])

    # Rank 1 reads less, and still does not read the file of the other.
    assert owner == {"0": 0, "1": 1, "2": 0}


def test_replicas_take_turns_in_what_they_verify() -> None:
    need = {f"{i}": 100 for i in range(4)}

    owner = divide_files(files(100, 100, 100, 100), [need, need])

    assert Counter(owner.values()) == {0: 2, 1: 2}


def test_files_that_nobody_needs_whole_are_divided_by_what_each_reads() -> None:
    sizes = [64] * 7 + [40]
    needs = [{f"{i}": size // 4 for i, size in enumerate(sizes)} for _ in range(4)]

    owner = divide_files(files(*sizes), needs)

    reads = [sum(need.values()) for need in needs]
    for name, rank in owner.items():
        reads[rank] += sizes[int(name)] - needs[rank][name]
    assert max(reads) <= 2 * sum(sizes) / 4
    assert set(Counter(owner.values()).values()) == {2}


def test_what_is_elsewhere_is_not_read_and_the_rest_is_whole(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    weights = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)).state_dict()
    state = {"0.weight": {"m": torch.ones(2, 3)}, "1.weight": {"m": torch.ones(2, 2)}, 7: (1,)}
    saved = saver.save({"model": weights, "optimizer": {"state": state}}, Where(step=1))
    folder = tmp_path / saved.name

    own = load_share(folder, Share(elsewhere={"0.weight", "0.bias"}))

    whole = load_parts(folder)
    for name in ("0.weight", "0.bias"):
        del whole["model"][name]
    del whole["optimizer"]["state"]["0.weight"]
    assert same_bits(own, whole)
    assert own["model"]._metadata == whole["model"]._metadata


def test_without_a_share_of_the_model_all_is_read_as_by_one_process(tmp_path: Path) -> None:
    folder = (
        tmp_path / Saver(tmp_path).save({"a": {"b": torch.ones(3), "c": [1]}}, Where(step=1)).name
    )

    assert same_bits(load_share(folder, Share()), load_parts(folder))


@pytest.mark.parametrize(
    ("key", "file", "what"),
    [
        ("a", "a.safetensors", "b has a piece twice"),
        ("c", "a.safetensors", "a.safetensors does not hold the c that it should"),
        ("c", "d.safetensors", "d.safetensors is no file of the part a"),
    ],
)
def test_pieces_that_lie_are_refused(tmp_path: Path, key: str, file: str, what: str) -> None:
    state = {"a": {"b": torch.ones(1), "a": torch.ones(1)}, "d": {"a": torch.ones(1)}}
    folder = tmp_path / Saver(tmp_path).save(state, Where(step=1)).name
    shards = (
        Shard(file="a.safetensors", key="a", offsets=(0,), shape=(1,)),
        Shard(file=file, key=key, offsets=(1,), shape=(1,)),
    )
    whole = manifest.read(folder)
    odd = ShardedTensor(name="b", dtype="torch.float32", shape=(2,), shards=shards)
    parts = [replace(each, sharded=(odd,)) if each.name == "a" else each for each in whole.parts]
    manifest.write(folder, replace(whole, parts=tuple(parts), digest=""))

    for verify in (True, False):
        with pytest.raises(CheckpointError, match=what):
            load_share(folder, Share(), verify=verify)


def test_damage_is_found_without_other_ranks_too(tmp_path: Path) -> None:
    folder = tmp_path / Saver(tmp_path).save({"a": {"b": torch.ones(3)}}, Where(step=1)).name
    path = folder / "a.safetensors"
    data = bytearray(path.read_bytes())
    data[data.index(b'"b"') + 1] ^= 1  # its name
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match=r"a\.safetensors is not what was written"):
        load_share(folder, Share())
    with pytest.raises(CheckpointError, match="a tensor that it does not hold: 'b'"):
        load_share(folder, Share(), verify=False)
