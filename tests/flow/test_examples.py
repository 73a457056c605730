"""The examples do what they say: their data is what it claims to be, and each of them trains."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import runpy
import shutil
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import assay as house
from assay.config import load, plain
from assay.formats import run_file
from assay.store.series import read_series
from examples import EXAMPLES, SRC
from languages import WRITERS
from warm_python import Run

OFFLINE = """\
import socket
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        raise OSError("the network was asked for")

sys.addaudithook(refuse)
"""
Assay = Callable[..., "object"]


def test_the_digits_are_five_thousand_balanced_and_split_without_overlap() -> None:
    with np.load(EXAMPLES / "01_digits" / "digits.npz") as file:
        images, labels = file["images"], file["labels"]

    assert images.shape == (5000, 28, 28) and images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [500] * 10
    assert (EXAMPLES / "01_digits" / "digits.npz").stat().st_size < 1_000_000


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("E27")
def test_the_digits_train_from_another_folder_and_without_a_network(assay, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "01_digits", tmp_path / "a folder" / "digits")
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)

    ran = assay(
        *("run", "a folder/digits/digits.toml", "--max-steps", "8"),
        cwd=tmp_path,
        PYTHONPATH=f"{tmp_path / 'offline'}{os.pathsep}{SRC}",
    )

    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run_file.read(run).status == "finished"
    losses = read_series(run / "metrics")["train/loss"]
    assert losses.steps.tolist() == list(range(1, 9)) and losses.values[-1] < losses.values[0]


@pytest.mark.slow
@pytest.mark.row("E27")
@pytest.mark.parametrize("packed", [True, False])
def test_all_of_mnist_can_be_read_where_it_lies(tmp_path: Path, packed: bool) -> None:
    draw = np.random.default_rng(0)
    for name, count in {"train": 5008, "t10k": 16}.items():
        images = draw.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = (images[:, 0, 0] % 10).astype(np.uint8)
        for kind, array in {"images-idx3": images, "labels-idx1": labels}.items():
            data = (
                struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
                + array.tobytes()
            )
            path = tmp_path / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)

    digits = runpy.run_path(str(EXAMPLES / "01_digits" / "data.py"))["Digits"]

    for split, count in {"train": 8, "valid": 5000, "test": 16}.items():
        data = digits(split, folder=str(tmp_path))
        assert len(data) == count
        assert all(
            round(float(image[0, 0, 0]) * 255) % 10 == label
            for image, label in (data[0], data[count - 1])
        )


@pytest.mark.slow
@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*/*.toml")), ids=lambda path: path.stem)
def test_the_config_of_an_example_is_sound(assay, config: Path, tmp_path: Path) -> None:
    checked = assay("check", str(config), cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout
    assert "fine" in checked.stdout


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["03_gpt", "04_tagging"])
def test_an_example_learns_in_a_few_steps_and_is_tested(assay, name: str, tmp_path: Path) -> None:
    (config,) = (EXAMPLES / name).glob("*.toml")
    best = load(config).root.items["checkpoint"]

    ran = assay("run", str(config), "--max-steps", "30", "evaluate.limit=2", cwd=tmp_path)
    tested = assay("test", "last", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert tested.returncode == 0, tested.stderr
    (run,) = (run for run in (tmp_path / "runs").iterdir() if run_file.read(run).kind == "train")
    curves = read_series(run / "metrics")
    losses = curves["train/loss"].values
    assert len(losses) == 30 and losses[-5:].mean() < 0.8 * losses[:5].mean()
    assert plain(best)["best"]["metric"] in curves
    assert (run / "checkpoints").exists() and "test/loss" in tested.stdout


@pytest.mark.thorough
@pytest.mark.row("E20")
def test_a_tiny_model_of_transformers_with_random_weights_learns_and_is_built_again(
    assay, tmp_path: Path
) -> None:
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)
    config = EXAMPLES / "08_transformers" / "bert.toml"

    ran = assay(
        "run",
        str(config),
        "train.epochs=3",
        cwd=tmp_path,
        PYTHONPATH=f"{tmp_path / 'offline'}{os.pathsep}{SRC}",
    )
    tested = assay("test", "last", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    accuracy = float(re.search(r"test/acc +(\S+)", tested.stdout)[1])
    assert accuracy > 0.9
    (run,) = (run for run in (tmp_path / "runs").iterdir() if run_file.read(run).kind == "train")
    model = house.load_model(str(run), "best")
    assert type(model).__module__.startswith("transformers.") and not model.training
    words = runpy.run_path(str(EXAMPLES / "08_transformers" / "data.py"))["Words"](500, seed=2)
    with torch.no_grad():
        scores = model(input_ids=words.letters, attention_mask=words.mask).logits
    assert (scores.argmax(1) == words.labels).double().mean().item() == pytest.approx(
        accuracy, abs=1e-4
    )


@pytest.mark.slow
def test_the_loop_by_hand_learns_is_recorded_and_knows_when_it_was_done(
    warm: Run, tmp_path: Path
) -> None:
    def ran() -> str:
        done = warm(
            [str(EXAMPLES / "05_hand_loop" / "train.py")],
            folder=tmp_path,
            variables={**os.environ, "PYTHONPATH": str(SRC)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, second = ran(), ran()

    assert first.startswith("step 240: valid/acc") and float(first.rpartition(" ")[2]) > 0.9
    assert second == f"resumed from step 240\n{first}"
    curves = [read_series(run / "metrics") for run in sorted((tmp_path / "runs").iterdir())]
    (whole,) = (curve for curve in curves if "train/loss" in curve)
    assert (
        whole["train/loss"].steps.tolist()
        == whole["train/unweighted"].steps.tolist()
        == list(range(1, 241))
    )
    assert whole["valid/acc"].steps.tolist() == [60, 120, 180, 240]


@pytest.mark.slow
def test_what_the_generator_makes_comes_to_lie_on_the_ring(assay, tmp_path: Path) -> None:
    ran = assay("run", str(EXAMPLES / "06_gan" / "gan.toml"), "train.epochs=6", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    curves = read_series(run / "metrics")
    off = curves["valid/off"].values
    assert len(off) == 6 and off[-1] < 0.6 * off[0]
    assert {"train/loss/critic", "train/loss/generator/fool", "train/lr/generator"} <= set(curves)
    model = house.load_model(str(run), "best")
    assert torch.linalg.vector_norm(model(500), dim=1).mean().item() == pytest.approx(1, abs=0.5)


@pytest.mark.thorough
@pytest.mark.row("C75")
def test_the_zoo_reaches_what_its_readme_says_and_each_of_its_models_learns(
    assay, tmp_path: Path
) -> None:
    zoo = EXAMPLES / "07_zoo"
    said = [
        float(share) / 100
        for share in re.findall(r"\| (\d+\.\d) % \|", (zoo / "README.md").read_text("utf-8"))
    ]

    whole = assay("run", str(zoo / "zoo.toml"), cwd=tmp_path)
    tested = assay("test", "last", cwd=tmp_path)
    each = assay(
        "run", str(zoo / "zoo.toml"), "--variant", "all", "--max-steps", "63", cwd=tmp_path
    )

    assert (whole.returncode, tested.returncode, each.returncode) == (0, 0, 0), (
        whole.stderr + each.stderr
    )
    accuracy = float(re.search(r"test/acc +(\S+)", tested.stdout)[1])
    assert accuracy > said[0] - 0.015
    last = {}
    for run in (tmp_path / "runs").iterdir():
        kept = run_file.read(run)
        if kept.kind == "train" and kept.tag != "zoo-mlp":
            last[kept.tag] = read_series(run / "metrics")["valid/acc"].values[-1]
    assert len(last) == len(said) - 1 == 3
    assert all(accuracy > 0.5 for accuracy in last.values()), (
        last
    )  # a tenth by chance, after one pass


LAYOUTS = ["data=1", "data=2", "shard=2", "tensor=2", "pipeline=2"]


@pytest.mark.thorough
def test_the_gpt_trains_alike_under_every_layout_by_a_number_in_its_config(
    assay, tmp_path: Path
) -> None:
    tiny = [
        "model.width=16",
        "model.heads=2",
        "train.accumulate=2",
        "evaluate.limit=1",
        "--max-steps",
        "6",
    ]
    losses = {}
    for layout in LAYOUTS:
        folder = tmp_path / layout
        folder.mkdir()
        ran = assay(
            "run", str(EXAMPLES / "03_gpt" / "gpt.toml"), *tiny, f"parallel.{layout}", cwd=folder
        )
        assert ran.returncode == 0, ran.stderr
        (run,) = (folder / "runs").iterdir()
        losses[layout] = list(read_series(run / "metrics")["train/loss"].values)

    for layout, found in losses.items():
        assert found == pytest.approx(losses["data=1"], rel=1e-3), layout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_gpt_writes_what_follows_a_beginning(assay, warm: Run, tmp_path: Path) -> None:
    assert (
        assay(
            "run", str(EXAMPLES / "03_gpt" / "gpt.toml"), "--max-steps", "2", cwd=tmp_path
        ).returncode
        == 0
    )

    wrote = warm(
        [str(EXAMPLES / "03_gpt" / "write.py"), "last", "Names "],
        folder=tmp_path,
        variables={**os.environ, "PYTHONPATH": str(SRC)},
    )

    assert wrote.returncode == 0, wrote.stderr
    assert wrote.stdout.startswith("Names ") and len(wrote.stdout) == len("Names ") + 300 + 1


def test_a_letter_of_the_gpt_does_not_know_those_that_follow_it() -> None:
    gpt = runpy.run_path(str(EXAMPLES / "03_gpt" / "model.py"))["GPT"](
        128, 16, width=16, layers=2, heads=2
    ).eval()
    letters = torch.randint(128, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = letters.clone()
    changed[0, 9] = (letters[0, 9] + 1) % 128

    with torch.no_grad():
        before, after = gpt(letters), gpt(changed)

    assert torch.allclose(before[..., :9], after[..., :9], atol=1e-6)
    assert not torch.allclose(before[..., 9], after[..., 9], atol=1e-3)


def test_the_words_of_a_program_are_tagged_with_what_they_are() -> None:
    data = runpy.run_path(str(EXAMPLES / "04_tagging" / "data.py"))
    source = (
        "import os\nclass A(B):\n    def f(self, x=1):\n        y = os.path(x, key=self.g)  # z\n"
    )

    found = [
        (word, data["TAGS"][tag]) for line in data["tagged"](source) for word, tag in line if tag
    ]

    assert found == [
        ("os", "module"),
        ("A", "class"),
        ("B", "used"),
        ("f", "function"),
        ("self", "parameter"),
        ("x", "parameter"),
        ("y", "set"),
        ("os", "used"),
        ("path", "attribute"),
        ("x", "used"),
        ("key", "keyword"),
        ("self", "used"),
        ("g", "attribute"),
    ]


def test_the_tags_of_a_line_do_not_depend_on_how_long_the_others_of_its_batch_are() -> None:
    tagger = runpy.run_path(str(EXAMPLES / "04_tagging" / "model.py"))["Tagger"](
        words=50, width=8, tags=9
    ).double()
    line = torch.tensor([[5, 9, 2]])
    filled = torch.tensor([[5, 9, 2, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]])

    with torch.no_grad():
        assert torch.allclose(tagger(line)[0], tagger(filled)[0, :, :3], atol=1e-12)


LAZY = """
from assay.config import L
from assay.config.defaults.optim import AdamW
from assay.config.defaults.process import process
from assay.config.defaults.schedule import WarmupCosine as schedule
from data import Digits
from model import Net

seed = 0
model = L(Net)(width=8)
data = {
    split: dict(source=L(Digits)(split=split), batch_size=250) for split in ("train", "valid", "test")
}
data["train"].update(source=L(Digits)(split="train", shift=2), batch_size=64, shuffle=True)
optimizer = L(AdamW.type)(lr=3e-3)
train = dict(epochs=12, steps=20, precision="fp32", accumulate=1, clip_norm=1.0)
"""

PARAMS = """
from assay import Params

class Digits(Params):
    def __init__(self):
        super().__init__()
        for name, value in GIVEN.items():
            setattr(self, name, value)

config = Digits()
"""


@pytest.mark.thorough
@pytest.mark.row("E02", "E27")
def test_the_digits_in_every_language_are_one_config_and_train_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(EXAMPLES / "01_digits", tmp_path / "digits")
    content = tomllib.loads((folder / "digits.toml").read_text(encoding="utf-8"))
    content["train"]["steps"] = 20
    content["model"]["width"] = 8
    content["evaluate"] = {"every": "never"}
    del content["checkpoint"]["best"]
    files = [f"plain{suffix}" for suffix in WRITERS]
    for file, write in zip(files, WRITERS.values(), strict=True):
        (folder / file).write_text(write(content), encoding="utf-8")
    (folder / "lazy.py").write_text(LAZY)
    (folder / "params.py").write_text(f"GIVEN = {content!r}\n{PARAMS}")
    monkeypatch.chdir(folder)

    found = {}
    for file in [*files, "lazy.py", "params.py"]:
        result = house.run(file)
        assert result.exception is None, (file, result.exception)
        assert result.record_dir is not None and result.step == 20
        weights = house.load_model(f"{result.id}@latest").state_dict()
        digest = hashlib.sha256(
            b"".join(value.numpy().tobytes() for value in weights.values())
        ).hexdigest()
        found[file] = (run_file.read(result.record_dir).newest.config_hash, digest)

    assert [Path(file).suffix for file in found] == [
        ".toml",
        ".json",
        ".yaml",
        ".ini",
        ".py",
        ".py",
        ".py",
    ]
    assert len(set(found.values())) == 1, found
