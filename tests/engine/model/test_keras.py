"""A small BERT of Keras 3, trained as any model of torch, and by Keras itself on TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.core.errors import InputError
from assay.engine.model.keras_model import KerasModel
from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from examples import SRC

needs_keras = pytest.mark.skipif(
    importlib.util.find_spec("keras") is None, reason="Keras is not installed"
)
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None and not os.environ.get("TENSORFLOW_PYTHON"),
    reason="TensorFlow is not installed",
)
BERT = '''
import keras
from keras import layers


def build_transformer_model(vocab_size=12, hidden_size=16, heads=2, depth=2, length=8, seed=None):
    """BERT for classes of sentence pairs: blocks of attention and feed-forward, as in bert4keras."""
    tokens = keras.Input((length,), dtype="int32", name="input_ids")
    segments = keras.Input((length,), dtype="int32", name="segment_ids")
    x = layers.Embedding(vocab_size, hidden_size, name="Embedding-Token")(tokens)
    x = x + layers.Embedding(2, hidden_size, name="Embedding-Segment")(segments)
    x = layers.LayerNormalization(name="Embedding-Norm")(x)
    for i in range(depth):
        name = f"Transformer-{i}"
        attended = layers.MultiHeadAttention(
            heads, hidden_size // heads, name=f"{name}-MultiHeadSelfAttention"
        )(x, x)
        own = seed if i else None  # the first draws without a seed of its own
        attended = layers.Dropout(0.1, seed=own, name=f"{name}-Dropout")(attended)
        x = layers.LayerNormalization(name=f"{name}-AttentionNorm")(x + attended)
        inner = layers.Dense(4 * hidden_size, activation="gelu", name=f"{name}-Inner")(x)
        outer = layers.Dense(hidden_size, name=f"{name}-Outer")(inner)
        x = layers.LayerNormalization(name=f"{name}-FeedForwardNorm")(x + outer)
    scores = layers.Dense(2, name="Classifier")(x[:, 0])
    return keras.Model([tokens, segments], scores, name="bert")
'''
DATA = '''
import numpy as np


def sentence_pairs(size, seed):
    """Pairs whose class says whether a token of the first sentence is in the second."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, 12, (size, 8))
    segments = np.repeat(np.array([[0] * 4 + [1] * 4]), size, axis=0)
    labels = np.array([len({*row[:4]} & {*row[4:]}) > 1 for row in ids]).astype("int64")
    return ids, segments, labels
'''
MODEL = (
    BERT
    + """
import torch
from data import sentence_pairs


class Pairs:
    randomness = "none"

    def __init__(self, size=64, seed=0):
        self.arrays = [torch.as_tensor(array) for array in sentence_pairs(size, seed)]

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, i):
        ids, segments, label = (array[i] for array in self.arrays)
        return {"input_ids": ids, "segment_ids": segments}, label
"""
)
CONFIG = """
tag = "bert"
seed = 1
[model]
type = "assay.engine.KerasModel"
model = { type = "model.build_transformer_model", seed = 3 }
[data.train]
source = { type = "model.Pairs", size = 64 }
batch_size = 16
shuffle = true
[data.valid]
source = { type = "model.Pairs", size = 32, seed = 1 }
batch_size = 32
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }
[optimizer]
type = "torch.optim.AdamW"
lr = 0.003
[train]
epochs = 3
[checkpoint]
every = "5 steps"
"""


def variables(backend: str) -> dict[str, str]:
    """Environment of a process in which Keras computes with `backend`, on one thread."""
    own = {"PYTHONPATH": str(SRC), "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **own, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def python(*arguments: str, folder: Path, backend: str = "torch", executable: str = "") -> str:
    done = subprocess.run(
        [executable or sys.executable, *arguments],
        cwd=folder,
        env=variables(backend),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".assay").mkdir()
    (tmp_path / "data.py").write_text(DATA, encoding="utf-8")
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("forking")
@needs_keras
@pytest.mark.thorough
@pytest.mark.row("B35")
def test_a_bert_of_keras_with_and_without_a_seed_of_dropout_resumes_to_the_same_bits(
    project: Path,
) -> None:
    (project / "train.toml").write_text(CONFIG, encoding="utf-8")
    run = ("-m", "assay", "run", "train.toml", "--device", "cpu")

    python(*run, folder=project)
    python(*run, "--max-steps", "7", "--tag", "cut", folder=project)
    python("-m", "assay", "resume", "cut", "train.epochs=3", "--max-steps", "12", folder=project)

    views = {view.tag: view for view in map(RunView, run_folders(open_project(project)))}
    whole, cut = (
        read_series(views[tag].folder.metrics)["train/loss"].values for tag in ("bert", "cut")
    )
    assert len(whole) == 12 and np.array_equal(whole, cut)
    assert np.mean(whole[-4:]) < np.mean(whole[:4])
    assert "valid/acc" in views["bert"].metrics


@pytest.mark.usefixtures("forking")
@pytest.mark.thorough
@needs_keras
@pytest.mark.slow
def test_modes_and_names_of_inputs_reach_keras(project: Path) -> None:
    text = """
import torch
from assay.core.errors import InputError
from assay.engine import KerasModel
from model import Pairs, build_transformer_model, keras

net = KerasModel(build_transformer_model())
samples = [Pairs(4)[i][0] for i in range(4)]
batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
print(torch.equal(net.train()(**batch), net(**batch)), torch.equal(net.eval()(**batch), net(batch)))
print(sum(p.requires_grad for p in net.parameters()) > 20)
try:
    KerasModel(keras.Sequential([keras.layers.Dense(2)]))
except InputError as error:
    print(error)
"""
    (project / "show.py").write_text(text, encoding="utf-8")

    lines = python("show.py", folder=project).splitlines()

    assert lines[:2] == ["False True", "True"]
    assert lines[2] == "The Keras model Sequential has no weights yet."


def test_a_model_that_is_none_of_torch_is_one_error() -> None:
    with pytest.raises(InputError, match="KERAS_BACKEND=torch"):
        KerasModel(object())
    assert KerasModel(torch.nn.Linear(1, 1)) is not None


FIT = """
import assay
import keras
from data import sentence_pairs
from model import build_transformer_model

keras.utils.set_random_seed(1)
model = build_transformer_model()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(0.003), loss, metrics=["accuracy"])
ids, segments, labels = sentence_pairs(64, 0)
with assay.start(tag=keras.config.backend(), config={"lr": 0.003, "batch_size": 16}) as run:
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: run.log(logs, epoch + 1))
    inputs = {"input_ids": ids, "segment_ids": segments}
    model.fit(inputs, labels, batch_size=16, epochs=3, verbose=0, callbacks=[record])
    model.save_weights("bert.weights.h5")
    run.artifact("bert.weights.h5")
"""


def fitted(project: Path, backend: str, executable: str = "") -> RunView:
    """Train by Keras itself in a process of its own; return the record."""
    (project / "model.py").write_text(BERT, encoding="utf-8")
    (project / "fit.py").write_text(FIT, encoding="utf-8")
    python("fit.py", folder=project, backend=backend, executable=executable)
    views = {view.tag: view for view in map(RunView, run_folders(open_project(project)))}
    return views[backend]


@pytest.mark.usefixtures("forking")
@needs_keras
@pytest.mark.thorough
def test_what_keras_fits_is_recorded_and_compared_like_any_other_run(project: Path) -> None:
    view = fitted(project, "torch")

    assert list(view.metric("loss").steps) == [1, 2, 3]
    assert [each.name for each in view.artifacts] == ["bert.weights.h5"]


@needs_tensorflow
@pytest.mark.thorough
def test_a_model_on_tensorflow_is_recorded_in_a_process_of_its_own(project: Path) -> None:
    other = fitted(project, "tensorflow", os.environ.get("TENSORFLOW_PYTHON", ""))

    assert list(other.metric("loss").steps) == [1, 2, 3]
    ours = fitted(project, "torch")
    assert ours.metric("loss").values[-1] == pytest.approx(other.metric("loss").values[-1], abs=0.3)
