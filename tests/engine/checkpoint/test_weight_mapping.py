"""Weights of other frameworks, handed over by a mapping of names and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.compat.parts.bert import Bert
from assay.core.errors import CheckpointError, InputError
from assay.engine import load_weights
from assay.engine.checkpoint.weight_mapping import read_arrays

TENSORFLOW = r"""
"bert/embeddings/word_embeddings" = "tokens.weight"
"bert/embeddings/position_embeddings" = "positions.weight"
"bert/embeddings/token_type_embeddings" = "segments.weight"
"bert/embeddings/LayerNorm/gamma" = "norm.weight"
"bert/embeddings/LayerNorm/beta" = "norm.bias"
'bert/encoder/layer_(\d+)/attention/self/(\w+)/kernel' = { to = 'layers.\1.\2.weight', transpose = true }
'bert/encoder/layer_(\d+)/attention/self/(\w+)/bias' = 'layers.\1.\2.bias'
'bert/encoder/layer_(\d+)/attention/output/dense/kernel' = { to = 'layers.\1.attended.weight', transpose = true }
'bert/encoder/layer_(\d+)/attention/output/dense/bias' = 'layers.\1.attended.bias'
'bert/encoder/layer_(\d+)/attention/output/LayerNorm/gamma' = 'layers.\1.attention_norm.weight'
'bert/encoder/layer_(\d+)/attention/output/LayerNorm/beta' = 'layers.\1.attention_norm.bias'
'bert/encoder/layer_(\d+)/intermediate/dense/kernel' = { to = 'layers.\1.inner.weight', transpose = true }
'bert/encoder/layer_(\d+)/intermediate/dense/bias' = 'layers.\1.inner.bias'
'bert/encoder/layer_(\d+)/output/dense/kernel' = { to = 'layers.\1.outer.weight', transpose = true }
'bert/encoder/layer_(\d+)/output/dense/bias' = 'layers.\1.outer.bias'
'bert/encoder/layer_(\d+)/output/LayerNorm/gamma' = 'layers.\1.norm.weight'
'bert/encoder/layer_(\d+)/output/LayerNorm/beta' = 'layers.\1.norm.bias'
"bert/pooler/dense/kernel" = { to = "pooler.weight", transpose = true }
"bert/pooler/dense/bias" = "pooler.bias"
'cls/.*' = ""
"""
"""Names of the BERT checkpoints of TensorFlow."""


def bert() -> Bert:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Bert(11, **sizes, intermediate_size=12, max_position_embeddings=6).eval()


def as_of_tensorflow(model: Bert) -> dict[str, np.ndarray]:
    """The weights of a BERT as TensorFlow names and lays them out."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    top = "bert/embeddings"
    found = {
        f"{top}/word_embeddings": state["tokens.weight"],
        f"{top}/position_embeddings": state["positions.weight"],
        f"{top}/token_type_embeddings": state["segments.weight"],
        f"{top}/LayerNorm/gamma": state["norm.weight"],
        f"{top}/LayerNorm/beta": state["norm.bias"],
        "bert/pooler/dense/kernel": state["pooler.weight"].T,
        "bert/pooler/dense/bias": state["pooler.bias"],
        "cls/predictions/output_bias": np.zeros(11, np.float32),
    }
    dense = {"attended": "attention/output/dense", "inner": "intermediate/dense"}
    dense |= {
        "outer": "output/dense",
        **{n: f"attention/self/{n}" for n in ("query", "key", "value")},
    }
    norms = {"attention_norm": "attention/output/LayerNorm", "norm": "output/LayerNorm"}
    for i in range(2):
        for name, there in dense.items():
            place = f"bert/encoder/layer_{i}/{there}"
            found[f"{place}/kernel"] = state[f"layers.{i}.{name}.weight"].T
            found[f"{place}/bias"] = state[f"layers.{i}.{name}.bias"]
        for name, there in norms.items():
            place = f"bert/encoder/layer_{i}/{there}"
            found[f"{place}/gamma"] = state[f"layers.{i}.{name}.weight"]
            found[f"{place}/beta"] = state[f"layers.{i}.{name}.bias"]
    return found


@pytest.mark.row("B35")
def test_a_bert_of_tensorflow_gives_the_same_states_after_a_mapping_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs, ours = bert(), bert()
    np.savez(tmp_path / "bert.npz", **as_of_tensorflow(theirs))
    (tmp_path / "bert.toml").write_text(TENSORFLOW, encoding="utf-8")
    ids = torch.randint(11, (3, 6))

    report = load_weights(ours, tmp_path / "bert.npz", mapping=tmp_path / "bert.toml")

    assert report.fits
    assert all(torch.equal(a, b) for a, b in zip(theirs(ids), ours(ids), strict=True))


@pytest.mark.row("B35")
def test_arrays_of_hdf5_are_named_by_their_groups_and_reshaped(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    kernel = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    with h5py.File(tmp_path / "net.weights.h5", "w") as file:
        file["layers/query/vars/0"] = kernel
        file["layers/query/vars/1"] = np.ones((2, 3), np.float32)
        file["layers/query/name"] = "query"
    mapping = {
        "layers/query/vars/0": {"to": "weight", "shape": [4, 6], "transpose": True},
        "layers/query/vars/1": {"to": "bias", "shape": [6]},
    }
    layer = torch.nn.Linear(4, 6)

    load_weights(layer, tmp_path / "net.weights.h5", mapping=mapping)

    x = torch.randn(5, 4)
    expected = np.einsum("bi,ihd->bhd", x.numpy(), kernel).reshape(5, 6) + 1
    assert np.allclose(layer(x).detach().numpy(), expected, atol=1e-4)


def test_names_and_shapes_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    np.savez(path, kernel=np.zeros((4, 6), np.float32), gamma=np.zeros(3, np.float32))
    layer = torch.nn.Linear(4, 6)
    layer.register_buffer("beta", torch.zeros(3))
    named = {"kernel": "weight", "gamma": "beta"}

    report = load_weights(layer, path, mapping=named, strict=False)
    assert (report.missing, report.unexpected) == (("bias",), ())
    assert report.mismatched == ("weight",)
    with pytest.raises(
        CheckpointError, match=r"weight is \[4, 6\] there and \[6, 4\] in the model"
    ):
        load_weights(layer, path, mapping={"kernel": "weight"})


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"kernle": "weight"}, "'kernle', which is no weight of the file"),
        ({"kernel": {"shape": [2]}}, "has no name"),
        ({"kernel": {"to": "weight", "transposed": True}}, "has `transposed`"),
        ({"kernel(": "weight"}, "is no pattern"),
        ({"kernel": {"to": "weight", "shape": [5]}}, r"cannot be made shape \[5\]"),
        ({"kernel": "weight", "gamma": "weight"}, "Both 'kernel' and 'gamma' become 'weight'"),
        ({"kernel": r"weight\2"}, "does not fit"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_one_error(
    mapping: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.npz"
    np.savez(path, kernel=np.zeros((4, 6), np.float32), gamma=np.zeros(3, np.float32))

    with pytest.raises(InputError, match=said):
        load_weights(torch.nn.Linear(4, 6), path, mapping=mapping)


def test_a_file_that_is_none_or_holds_pickles_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK not really")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path / "broken.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path / "objects.npz")
    with pytest.raises(InputError, match="The mapping cannot be read"):
        np.savez(tmp_path / "net.npz", a=np.zeros(1))
        load_weights(torch.nn.Linear(1, 1), tmp_path / "net.npz", mapping=tmp_path / "none.toml")
