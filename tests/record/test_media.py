"""Pictures, sounds, tables and tensors given to a run of a script."""

from __future__ import annotations

import csv
import io
import json
import math
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import assay
from assay.core.errors import InputError
from assay.formats import run_file
from assay.record import deferred, media
from assay.record.start import Run
from assay.store.artifacts import Artifact, artifacts
from assay.store.blobs import FileBlobs
from assay.store.layout import RunFolder
from assay.store.series import read_series
from event_reader import pixels_of


def folder_of(run: Run) -> RunFolder:
    assert run.folder is not None
    return run.folder


def kept(run: Run) -> dict[str, tuple[Artifact, bytes]]:
    store = FileBlobs(folder_of(run).artifacts)
    return {each.name: (each, store.get(each.digest)) for each in artifacts(folder_of(run))}


def test_everything_that_can_be_shown_is_kept_with_its_kind_and_step(tmp_path: Path) -> None:
    class Figure:
        def savefig(self, out: io.BytesIO, format: str) -> None:
            out.write(b"drawn as " + format.encode())

    with assay.start(project=tmp_path) as run:
        run.text("a/sample", "the cat", step=1)
        run.table("words", [{"word": "cat", "score": 0.5}, {"word": "=1+1", "extra": None}])
        run.table("rows", [[1, 2], [3, 4]], columns=["a", "b"], step=2)
        run.histogram(
            "weights", torch.arange(10, dtype=torch.bfloat16, requires_grad=True), step=3, bins=5
        )
        run.image("image", np.eye(2), step=4)
        run.images("grid", torch.rand(5, 3, 4, 4), per_row=4)
        run.figure("figure", Figure())
        run.audio("tone", np.sin(np.arange(100)), rate=8000)
        run.video("film", b"frames")
        run.value("confusion", [[5, 1], [0, 6]])

    found = kept(run)
    assert {name: (each.kind, each.step) for name, (each, _) in found.items()} == {
        "a/sample": ("text", 1),
        "words": ("table", None),
        "rows": ("table", 2),
        "weights": ("histogram", 3),
        "image": ("image", 4),
        "grid": ("image", None),
        "figure": ("figure", None),
        "tone": ("audio", None),
        "film": ("video", None),
    }
    assert found["a/sample"][1] == b"the cat"
    assert list(csv.DictReader(io.StringIO(found["words"][1].decode()))) == [
        {"word": "cat", "score": "0.5", "extra": ""},
        {"word": "=1+1", "score": "", "extra": ""},
    ]
    assert found["rows"][1] == b"a,b\n1,2\n3,4\n"
    assert json.loads(found["weights"][1])["counts"] == [2, 2, 2, 2, 2]
    assert pixels_of(found["image"][1]) == (2, 2, bytes([255] * 3 + [0] * 6 + [255] * 3))
    assert pixels_of(found["grid"][1])[:2] == (4 * 6 + 2, 2 * 6 + 2)
    assert found["figure"][1] == b"drawn as png"
    with wave.open(io.BytesIO(found["tone"][1])) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getnchannels()) == (8000, 100, 1)
    assert run_file.read(folder_of(run).path).values == {"confusion": [[5, 1], [0, 6]]}


def test_one_name_at_several_steps_is_several_artifacts_with_one_content(tmp_path: Path) -> None:
    with assay.start(project=tmp_path) as run:
        digests = {run.image("same", np.zeros((2, 2)), step) for step in (1, 2, 2)}

    assert len(digests) == 1
    assert [each.step for each in artifacts(folder_of(run))] == [1, 2]


@pytest.mark.parametrize(
    ("image", "first"),
    [
        (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 4), 300), (255, 255, 255)),
        (torch.tensor([[[0.5]], [[2.0]], [[math.nan]]]), (128, 255, 0)),
        (np.ones((1, 2, 2), bool), (255, 255, 255)),
        ([[0.0, 1.0]], (0, 0, 0)),
    ],
)
def test_images_of_any_shape_and_type(image: object, first: tuple[int, int, int]) -> None:
    found = media.pixels(image)

    assert found.dtype == np.uint8 and found.ndim == 3
    assert tuple(found[0, 0]) == first


@pytest.mark.parametrize(
    "image", [np.zeros(3), np.zeros((2, 2, 5)), np.zeros((0, 2)), np.zeros((1, 2, 2, 3))]
)
def test_what_is_no_image_is_refused(image: object) -> None:
    with pytest.raises(InputError, match="is no image"):
        media.pixels(image)


def test_mistakes_in_tables_sounds_figures_and_grids_are_told() -> None:
    with pytest.raises(InputError, match="need `columns`"):
        media.table_csv([[1, 2]])
    with pytest.raises(InputError, match="2 cells, and there are 1"):
        media.table_csv([[1, 2]], ["a"])
    with pytest.raises(InputError, match="is no sound"):
        media.wav(np.zeros((2, 2, 2)), 8000)
    with pytest.raises(InputError, match="no figure"):
        media.figure_png("x")
    with pytest.raises(InputError, match="of one size"):
        media.grid([np.zeros((2, 2)), np.zeros((3, 3))])


def test_a_histogram_counts_what_is_no_number_apart() -> None:
    found = media.histogram_of([1.0, 2.0, math.nan, math.inf])
    assert (sum(found.counts), found.total, found.non_finite) == (2, 3.0, 2)
    assert media.histogram_of([math.nan]).counts == [0]


@pytest.mark.parametrize(
    "values", [[-3.4e38] * 4, [1.0, 1.0000000000000002], [2.0**53, 2.0**53 + 2], [1e308, -1e308]]
)
def test_a_histogram_of_a_range_that_has_no_bins_has_one(values: list[float]) -> None:
    found = media.histogram_of(torch.tensor(values, dtype=torch.float64).numpy())

    low, high = found.edges
    assert low < high and low <= min(values) and max(values) <= high
    assert found.counts == [len(values)]
    with pytest.raises(InputError, match="at least one bin, not 0"):
        media.histogram_of(values, bins=0)


def test_tensors_logged_for_later_come_in_order_with_the_values_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    fetch = deferred._fetch
    monkeypatch.setattr(deferred, "_fetch", lambda rows: (fetched.append(len(rows)), fetch(rows)))
    with assay.start(project=tmp_path) as run:
        loss = torch.zeros((), requires_grad=True)
        for step in range(1, 151):
            with torch.no_grad():
                loss += 1
            run.log_later({"loss": loss, "lr": 0.1}, step)
        assert fetched[:2] == [deferred.MOST, deferred.MOST]

    found = read_series(folder_of(run).metrics)
    assert found["loss"].values.tolist() == list(range(1, 151))
    assert found["lr"].steps.tolist() == list(range(1, 151))


def test_switched_off_nothing_is_made_and_every_call_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY", "off")
    monkeypatch.chdir(tmp_path)
    with assay.start() as run:
        run.log_later({"a": 1.0}, 1)
        run.attach(assay.TensorBoard())
        run.value("a", 1)
        assert run.image("x", "nonsense") == run.video("f", "none") == ""
        assert run.keycode(test_a_histogram_counts_what_is_no_number_apart) is not None
        assert run.watch("save").is_dir()
        assert run.recorded is None
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_would_take_the_memory_of_the_training_is_refused() -> None:
    huge = np.broadcast_to(np.uint8(0), (50_000, 50_000))
    many = np.broadcast_to(np.uint8(0), (2_000, 300, 300))
    lazy = Image.new("L", (1, 1))
    lazy._size = (50_000, 50_000)  # of a file whose pixels are not read yet

    for kind, value, size in (
        ("image", huge, "50000 x 50000"),
        ("image", lazy, "50000 x 50000"),
        ("images", many, "2418 x 75502"),
    ):
        with pytest.raises(InputError, match=f"{size} pixels is too large"):
            media.encode(kind, value)
