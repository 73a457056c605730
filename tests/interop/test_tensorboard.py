"""Event files as TensorBoard and torch write them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.interop.event_file import EventFile
from assay.interop.foreign_run import ForeignRun, ForeignSource
from assay.interop.tensorboard import find
from foreign_files import unpacked

FIRST = [2.0, math.nan, 0.5, math.inf, -math.inf, 0.25]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("tensorboard", tmp_path_factory.mktemp("tensorboard")) / "logs"


@pytest.fixture(scope="module")
def runs(logs: Path) -> dict[str, ForeignRun]:
    return {found.name: found.read() for found in find(logs)}


def test_every_folder_with_event_files_is_a_run(runs: dict[str, ForeignRun]) -> None:
    assert list(runs) == [
        "first",
        "first/best",
        "killed",
        "resumed",
        "sweep/lr=0.01",
        "sweep/lr=0.1",
    ]


def test_scalars_of_both_forms_keep_their_steps_and_times(runs: dict[str, ForeignRun]) -> None:
    by_name = {block.keys.names[0]: block for block in runs["first"].blocks}

    loss = by_name["train/loss"]
    assert list(loss.steps) == [-2, -1, 0, 1, 2, 3]
    np.testing.assert_array_equal(loss.values[:, 0], FIRST)
    assert [time_ns // 10**9 for time_ns in loss.times_ns] == [1_760_000_001 + i for i in range(6)]
    assert (list(by_name["2^40 steps"].steps), list(by_name["dense"].values[:, 0])) == (
        [2**40],
        [0.75],
    )
    assert list(runs["sweep/lr=0.1"].blocks[0].values[:, 0]) == pytest.approx([0.0, 0.1, 0.2])
    assert runs["first"].created_ns // 10**9 == 1_760_000_000


@pytest.mark.row("C73")
def test_texts_images_and_histograms_are_files_with_their_step(runs: dict[str, ForeignRun]) -> None:
    kept = {(file.name, file.kind, file.step): file.source for file in runs["first"].files}

    assert kept["note", "text", 4] == b"# It works\nwith two lines"
    image = kept["dots", "image", 5]
    assert isinstance(image, bytes)
    assert image.startswith(b"\x89PNG")
    assert struct.unpack(">II", image[16:24]) == (2, 2)
    about = json.loads(bytes(kept["weights", "histogram", 6]))
    assert (sum(about["counts"]), about["edges"][0], about["edges"][-1], about["sum"]) == (
        10,
        0.0,
        9.0,
        45.0,
    )
    assert len(about["edges"]) == len(about["counts"]) + 1
    (dense,) = runs["sweep/lr=0.1"].files
    assert json.loads(bytes(dense.source))["counts"] == [1.0, 2.0]


def test_hyperparameters_are_the_config(runs: dict[str, ForeignRun]) -> None:
    assert runs["first/best"].config == {"lr": 0.1, "layers": 3, "act": "relu", "bias": 1}
    assert runs["first/best"].warnings == []


def test_what_a_restart_left_behind_is_a_branch(runs: dict[str, ForeignRun]) -> None:
    (loss,) = runs["resumed"].blocks

    assert list(loss.steps) == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    assert [bool(branch) for branch in loss.branches] == [False] * 3 + [True] * 3 + [False] * 5
    assert list(loss.on_curve().values[:, 0]) == [0, 1, 2, 3.5, 4.5, 5.5, 6.5, 7.5]


@given(
    cut=st.integers(0, 904), flip=st.none() | st.tuples(st.integers(0, 903), st.integers(1, 255))
)
def test_whatever_happened_to_a_file_it_is_read_and_never_believed(
    logs: Path, tmp_path_factory: pytest.TempPathFactory, cut: int, flip: tuple[int, int] | None
) -> None:
    (whole,) = (logs / "killed").iterdir()
    folder = tmp_path_factory.mktemp("cut")
    data = bytearray(whole.read_bytes())
    if flip is not None:
        data[flip[0]] ^= flip[1]
    (folder / whole.name).write_bytes(data[:cut])

    run = find(folder)[0].read()

    known = {(step, struct.pack("<f", 1 / (1 + step))) for step in range(20)}
    said = {
        (s, struct.pack("<f", v))
        for block in run.blocks
        for s, v in zip(block.steps, block.values[:, 0], strict=True)
    }
    assert said <= known
    assert len(run.warnings) <= 1


@pytest.mark.parametrize(
    ("at", "flip", "words"),
    [(-1, 0, "truncated record in data"), (20, 0x40, "event crc32"), (1, 0x40, "header crc32")],
)
def test_a_file_is_read_up_to_its_first_damage_and_that_is_said(
    logs: Path, tmp_path: Path, at: int, flip: int, words: str
) -> None:
    (whole,) = (logs / "sweep" / "lr=0.1").iterdir()
    data = bytearray(whole.read_bytes())
    (first,) = struct.unpack_from("<Q", data)
    data[at + (first + 16 if flip else 0)] ^= flip
    (tmp_path / whole.name).write_bytes(data if flip else data[:at])

    run = find(tmp_path)[0].read()

    assert [len(block.steps) for block in run.blocks] == ([] if flip else [3])
    (warning,) = run.warnings
    assert str(tmp_path / whole.name) in warning and words in warning
    assert f"its first {1 if flip else 4} events" in warning


def test_a_run_is_known_by_its_first_event_wherever_it_lies(logs: Path, tmp_path: Path) -> None:
    def keys(found: list[ForeignSource]) -> set[str]:
        return {each.run_id for each in found}

    assert len(keys(find(logs))) == 6
    assert keys(find(unpacked("tensorboard", tmp_path / "moved"))) == keys(find(logs))
    assert keys(find(logs / "sweep")) < keys(find(logs))


def test_a_folder_without_event_files_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no event files of TensorBoard[\s\S]*events\.out\.tfevents"
    ):
        find(tmp_path)


@given(
    tag=st.text(max_size=200),
    step=st.integers(-(2**63), 2**63 - 1),
    value=st.floats(width=32),
    time_s=st.floats(1.0, 4e9),
    more=st.booleans(),
)
def test_what_we_write_ourselves_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    tag: str,
    step: int,
    value: float,
    time_s: float,
    more: bool,
) -> None:
    file = EventFile(tmp_path_factory.mktemp("ours"))
    file.scalars([(tag, value), ("second", 1.0)] if more else [(tag, value)], step, time_s)
    file.close()

    run = find(file.path.parent)[0].read()

    assert run.warnings == []
    block = run.blocks[0]
    assert (block.keys.names, list(block.steps)) == (
        (tag.encode("utf-8", "replace").decode(),),
        [step],
    )
    np.testing.assert_array_equal(block.values[:, 0][:1], [value])
    assert block.times_ns[0] == round(time_s * 1e9)
