"""manifest.json: a checkpoint says what it holds, and a stranger's cannot point elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import CheckpointError
from assay.formats import manifest
from assay.formats.manifest import (
    CheckpointPart,
    Manifest,
    ManifestFile,
    MeshAxis,
    Shard,
    ShardedTensor,
)


def a_manifest(
    *,
    files: tuple[ManifestFile, ...] = (),
    parts: tuple[CheckpointPart, ...] = (),
    layout: tuple[MeshAxis, ...] = (),
) -> Manifest:
    return Manifest(
        kind="checkpoint",
        name="step-000000012",
        step=12,
        epoch=1,
        samples=768,
        run="kq3f7abc",
        attempt=1,
        created_ns=5,
        files=files,
        parts=parts,
        layout=layout,
    )


def listed(*names: str) -> tuple[ManifestFile, ...]:
    return tuple(ManifestFile(name=name, size_bytes=0, sha256="") for name in names)


def sharded(shape: tuple[int, ...], *shards: tuple[tuple[int, ...], tuple[int, ...]]) -> Manifest:
    boxes = tuple(
        Shard(file="0.safetensors", key="w", offsets=at, shape=size) for at, size in shards
    )
    tensor = ShardedTensor(name="w", dtype="F32", shape=shape, shards=boxes)
    part = CheckpointPart(
        name="model", tree="model.json", files=("0.safetensors",), sharded=(tensor,)
    )
    return a_manifest(files=listed("model.json", "0.safetensors"), parts=(part,))


def test_a_manifest_comes_back_equal(tmp_path: Path) -> None:
    written = replace(
        sharded((4, 2), ((0, 0), (2, 2)), ((2, 0), (2, 2))),
        layout=(MeshAxis(name="data", size=2), MeshAxis(name="shard", size=3)),
        info={"valid/acc": 0.5},
        versions={"torch": "2.6"},
    )

    manifest.write(tmp_path, written)

    assert manifest.read(tmp_path) == written
    assert written.world_size == 6
    assert a_manifest().world_size == 1


def test_a_folder_without_a_manifest_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not complete"):
        manifest.read(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    manifest.write(tmp_path, replace(a_manifest(), format=3))

    with pytest.raises(CheckpointError, match="format 3; this assay knows 2") as caught:
        manifest.read(tmp_path)

    assert "newer" in caught.value.fix


def test_a_manifest_that_was_cut_off_is_refused_as_a_checkpoint_error(tmp_path: Path) -> None:
    manifest.write(tmp_path, a_manifest())
    path = tmp_path / manifest.FILE_NAME
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(CheckpointError, match="cannot be read"):
        manifest.read(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../run.json",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        ".hidden",
        "",
        "a\\b",
        "a\0",
        "a\n",
        "C:evil",
        "a/../../b",
        "ü",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    manifest.write(tmp_path, a_manifest(files=listed(name)))

    with pytest.raises(CheckpointError, match="outside its folder"):
        manifest.read(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        CheckpointPart(name="model", tree="other.json"),
        CheckpointPart(name="model", tree="model.json", files=("../secret",)),
        CheckpointPart(
            name="model",
            tree="model.json",
            sharded=(
                ShardedTensor(
                    name="w",
                    dtype="F32",
                    shape=(1,),
                    shards=(Shard(file="x", key="w", offsets=(0,), shape=(1,)),),
                ),
            ),
        ),
    ],
    ids=["tree", "file", "shard"],
)
def test_a_part_uses_only_files_that_are_listed(tmp_path: Path, part: CheckpointPart) -> None:
    manifest.write(tmp_path, a_manifest(files=listed("model.json"), parts=(part,)))

    with pytest.raises(CheckpointError, match="Part model uses files that are not listed"):
        manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("shape", "shards"),
    [
        ((4, 4), [((0, 0), (4, 4))]),
        ((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 1)), ((2, 1), (2, 3))]),
        ((), [((), ())]),
        ((0, 3), []),
        ((0, 3), [((0, 0), (0, 3))]),
    ],
    ids=["one", "three", "a scalar", "empty", "an empty one"],
)
def test_shards_that_cover_a_tensor_exactly_once_are_accepted(
    tmp_path: Path, shape: tuple[int, ...], shards: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    manifest.write(tmp_path, sharded(shape, *shards))

    manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("shape", "shards", "message"),
    [
        ((4, 4), [((0, 0), (2, 4))], "exactly once"),
        ((4,), [((0,), (2,)), ((1,), (2,))], "exactly once"),
        ((4,), [((0,), (4,)), ((0,), (4,))], "exactly once"),
        ((), [((), ()), ((), ())], "exactly once"),
        ((), [], "exactly once"),
        ((4,), [((2,), (4,))], "lies outside"),
        ((4,), [((-1,), (4,))], "lies outside"),
        ((4, 4), [((0,), (4,))], "lies outside"),
        ((2, 2), [((0, 0), (2, 1)), ((0, 1), (1, 1)), ((2, 2), (-1, -1))], "lies outside"),
    ],
    ids=[
        "too few",
        "overlap",
        "twice",
        "scalar twice",
        "none",
        "too long",
        "negative",
        "flat",
        "negative size",
    ],
)
def test_shards_that_do_not_are_refused(
    tmp_path: Path,
    shape: tuple[int, ...],
    shards: list[tuple[tuple[int, ...], tuple[int, ...]]],
    message: str,
) -> None:
    manifest.write(tmp_path, sharded(shape, *shards))

    with pytest.raises(CheckpointError, match=message):
        manifest.read(tmp_path)


def test_missing_and_short_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    a, b = (
        ManifestFile(name="a", size_bytes=3, sha256=""),
        ManifestFile(name="b", size_bytes=1, sha256=""),
    )

    assert manifest.missing_files(tmp_path, [a]) == ""
    assert manifest.missing_files(tmp_path, [a, b]) == "b is missing"
    assert manifest.missing_files(tmp_path, [replace(a, size_bytes=4)]) == "a has 3 of 4 bytes"


def test_a_part_that_does_not_exist_lists_those_that_do() -> None:
    held = a_manifest(
        parts=(CheckpointPart(name="model", tree="m"), CheckpointPart(name="optimizer", tree="o"))
    )

    assert held.part("model").tree == "m"
    with pytest.raises(CheckpointError, match="It has: model, optimizer"):
        held.part("optimiser")


@given(st.integers(0, 10**12))
def test_the_folder_of_a_step_says_the_step_and_sorts_by_it(step: int) -> None:
    name = manifest.folder_of_step(step)

    assert manifest.step_of_folder(name) == step
    if step < 10**9 - 1:
        assert name < manifest.folder_of_step(step + 1)


@pytest.mark.parametrize(
    "name", ["step-000000012.tmp", "step-12", "step-", "best", "step-00000001x"]
)
def test_other_folders_have_no_step(name: str) -> None:
    assert manifest.step_of_folder(name) is None


def test_a_manifest_of_a_later_version_may_say_more(tmp_path: Path) -> None:
    manifest.write(tmp_path, a_manifest())
    path = tmp_path / manifest.FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "weather": "fine"}))

    assert manifest.read(tmp_path) == a_manifest()
