"""A small BERT that Keras 3 trains itself, recorded."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
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
    (tmp_path / "model.py").write_text(BERT, encoding="utf-8")
    return tmp_path


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
