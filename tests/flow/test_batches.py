"""Source that gives batches itself: its check, its training, its resume and its test."""

from __future__ import annotations

from pathlib import Path

import pytest

import assay
from assay.cli.main import main
from assay.formats import run_file

pytestmark = pytest.mark.slow

STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset

from points import Points

class Stream:
    def __init__(self, split, size):
        self.points, self.size = Points(split), size

    def __iter__(self):
        for i in range(0, len(self.points), self.size):
            yield self.points.points[i : i + self.size], self.points.labels[i : i + self.size]

class Flow(Stream, IterableDataset):
    pass

class Nothing:
    pass

def loader(split):
    return DataLoader(Points(split), batch_size=16)

def unknown(split):
    return Stream(split, 8)

def once(split):
    return iter(Stream(split, 8))

def nothing():
    return Nothing()
"""

CONFIG = """
[model]
type = "net.Net"
width = 8
[data.train]
source = { type = "stream.Stream", split = 0, size = 8 }
[data.valid]
source = { type = "stream.loader", split = 1 }
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
[optimizer]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 2
accumulate = 2
[checkpoint]
every = "3 steps"
"""
TRAIN = '"stream.Stream", split = 0, size = 8'
VALID = '"stream.loader", split = 1'


@pytest.fixture
def batches(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with sources that give batches, and a config that uses them."""
    (toy / "stream.py").write_text(STREAM)
    (toy / "stream.toml").write_text(CONFIG)
    monkeypatch.chdir(toy)
    return toy / "stream.toml"


@pytest.mark.thorough
def test_batches_train_go_on_and_are_evaluated(
    batches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "stream.toml"]) == 0
    result = assay.run("stream.toml", check=False)
    assert result.exception is None
    assert result.step == 8  # 60 points in 8 batches, two to a step, twice
    assert "valid/loss" in result.value
    assert result.record_dir is not None

    assert main(["resume", result.id, "train.epochs=3"]) == 0
    assert main(["test", result.id, "--split", "valid"]) == 0

    assert run_file.read(result.record_dir).status == "finished"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            f"{{ type = {TRAIN} }}",
            f"{{ type = {TRAIN} }}\nbatch_size = 8",
            7,
            "a `Stream` gives batches",
        ),
        (
            f"{{ type = {TRAIN} }}",
            f"{{ type = {TRAIN} }}\nshuffle = true",
            7,
            "a `Stream` gives batches",
        ),
        (TRAIN, '"points.Points", split = 0', 6, "[data.train] has no `batch_size`"),
        (TRAIN, '"stream.Nothing"', 6, "a `Nothing` is no data"),
    ],
)
def test_what_does_not_fit_is_told_by_the_check_with_its_place(
    batches: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: int, message: str
) -> None:
    batches.write_text(CONFIG.replace(old, new))

    assert main(["check", "stream.toml"]) == 2
    told = capsys.readouterr().out
    assert main(["run", "stream.toml"]) == 2

    assert message in told and "1 error" in told
    assert f"stream.toml:{line}:" in told
    assert message in capsys.readouterr().err
    assert not (batches.parent / "runs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            f"{{ type = {TRAIN} }}",
            '{ type = "stream.unknown", split = 0 }\nbatch_size = 8',
            7,
            "gives batches itself",
        ),
        (TRAIN, '"stream.nothing"', 6, "a Nothing can neither be iterated nor asked for an item"),
        (VALID, '"stream.once", split = 1', 8, "can be gone through once only"),
    ],
)
def test_what_only_building_it_shows_is_told_with_its_place_too(
    batches: Path, old: str, new: str, line: int, message: str
) -> None:
    batches.write_text(CONFIG.replace(old, new))

    result = assay.run("stream.toml", check=False)

    assert message in str(result.exception)
    assert f"stream.toml:{line}:" in str(result.exception)
    assert result.exit_code == 2


SAMPLES = """
from torch.utils.data import IterableDataset, get_worker_info

from points import Points

class Rows(IterableDataset):
    \"\"\"Samples, one after another; it has a length all the same.\"\"\"

    def __init__(self, split):
        self.points = Points(split, noisy=True)

    def __len__(self):
        return len(self.points)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.points[i] for i in range(first, len(self.points), step))

def rows(split):
    return Rows(split)
"""
ROWS = CONFIG.replace(
    f"{{ type = {TRAIN} }}", '{ type = "rows.Rows", split = 0 }\nbatch_size = 8'
).replace(f"{{ type = {VALID} }}", '{ type = "rows.rows", split = 1 }\nbatch_size = 16')


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_come_one_after_another_are_made_into_batches(
    batches: Path, workers: int
) -> None:
    (batches.parent / "rows.py").write_text(SAMPLES)
    batches.write_text(ROWS.replace("batch_size = 8", f"batch_size = 8\nworkers = {workers}"))

    assert main(["check", "stream.toml"]) == 0
    result = assay.run("stream.toml", check=False)

    assert result.exception is None and result.record_dir is not None
    assert result.step == 2 * 8  # 60 points, 8 to a step of two micro-batches
    assert "valid/loss" in result.value
    assert run_file.read(result.record_dir).newest.exactness.startswith("not tried (replayed")
    assert main(["resume", result.id, "train.epochs=3"]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "\nbatch_size = 8",
            "",
            "[data.train] has no `batch_size`, and a `Rows` gives samples: it is an IterableDataset",
        ),
        (
            "\nbatch_size = 16",
            "",
            "data.valid: Rows is an IterableDataset, which gives samples, and there is no batch",
        ),
        (
            "\nbatch_size = 8",
            "\nbatch_size = 8\nshuffle = true",
            "`shuffle` is for items by index, but a `Rows` gives",
        ),
        (
            "\nbatch_size = 16",
            "\nbatch_size = 16\nshuffle = true",
            "data.valid: `shuffle` is for items by index, but a",
        ),
    ],
)
def test_samples_that_nobody_makes_batches_of_are_refused_with_the_way_to_do_it(
    batches: Path, old: str, new: str, message: str
) -> None:
    (batches.parent / "rows.py").write_text(SAMPLES)
    batches.write_text(ROWS.replace(old, new))

    result = assay.run("stream.toml", check=False)

    told = " ".join(str(result.exception).split())
    assert result.exit_code == 2 and message in told
    assert "has no" not in message or 'batch_size = "@none"' in told
    assert not (batches.parent / "runs").exists()


@pytest.mark.thorough
def test_whole_batches_of_an_iterable_data_set_are_taken_from_a_loader_without_a_batch_size(
    batches: Path,
) -> None:
    loader = '"torch.utils.data.DataLoader", batch_size = "@none", dataset = { type = "stream.Flow", split = 0, size = 8 }'
    batches.write_text(CONFIG.replace(TRAIN, loader).replace("epochs = 2", "steps = 3"))

    result = assay.run("stream.toml", no_file=True, check=False)

    assert result.exception is None and result.step == 3


@pytest.mark.row("A68")
def test_a_stream_that_is_to_be_shuffled_like_a_list_is_refused_with_the_stage_that_shuffles(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    pipes = (
        '{ type = "points.Points", split = 0 }',
        '{ type = "assay.engine.data.streams.Shuffle", buffer = 9 }',
        '{ type = "assay.engine.data.streams.Batch", batch_size = 8 }',
    )
    stages = f'{{ type = "assay.engine.chain", pipes = [{", ".join(pipes)}] }}'
    config = (toy / "toy.toml").read_text()
    source = '{ type = "points.Points", split = 0, noisy = true }\nbatch_size = 8'
    assert source in config
    (toy / "toy.toml").write_text(config.replace(source, f"{stages}\nshuffle = true"))

    result = assay.run("toy.toml", check=False)

    assert result.exit_code == 2
    assert "data.train: `shuffle` is for items by index, but this is a stream" in str(
        result.exception
    )
    assert "assay.engine.data.streams.Shuffle" in str(result.exception)
