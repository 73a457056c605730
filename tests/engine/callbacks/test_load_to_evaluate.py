"""Foreign weights and checkpoints: what fits is loaded, the rest is named, and no code is run."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from assay.core.errors import CheckpointError, InputError
from assay.engine import Saver, load_checkpoint, load_weights, save_weights
from assay.engine.checkpoint import weights
from assay.engine.loop.engine_state import capture_state
from engine.toys import engine, net, same_bits, weights_of

PICKLING = ("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.place,)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(seed=1)
    return model, torch.optim.Adam(model.parameters(), lr=0.5)


def tutorial_file(folder: Path) -> Path:
    """The dictionary of an old training script, as torch writes it."""
    model, optimizer = trained()
    state = {
        "epoch": 7,
        "state_dict": model.state_dict(),
        "best_loss": 0.125,
        "optimizer": optimizer.state_dict(),
    }
    path = folder / "m-20200101-0.1250.pth.tar"
    torch.save({**state, "alpha": 0.25, "gamma": 2.0}, path)
    return path


# ------------------------------------------------------------------------------------------------------------ pickles


@pytest.mark.row("B26")
def test_a_pickle_is_refused_unless_it_is_allowed_and_then_only_weights_are_read(
    tmp_path: Path,
) -> None:
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    torch.save(model, tmp_path / "whole.pth")
    other, _ = fresh()
    before = weights_of(other)

    for name in ("weights.pth", "whole.pth"):
        with pytest.raises(InputError, match="pickles, which can run code") as caught:
            load_weights(other, tmp_path / name)
        assert "pickled=True" in caught.value.fix
    with pytest.raises(
        InputError, match=r"whole\.pth holds more than tensors.*To read it would be to run it"
    ) as caught:
        load_weights(other, tmp_path / "whole.pth", pickled=True)
    assert "state_dict()" in caught.value.fix
    assert same_bits(weights_of(other), before)

    report = load_weights(other, tmp_path / "weights.pth", pickled=True)

    assert report.fits
    assert same_bits(weights_of(other), weights_of(model))


@pytest.mark.row("B26")
def test_the_weights_of_a_model_alone_are_a_file_that_anything_reads(tmp_path: Path) -> None:
    model, _ = trained()

    path = save_weights(model, tmp_path / "net.safetensors")

    assert same_bits(load_file(path), weights_of(model))
    other, _ = fresh()
    assert load_weights(other, path).fits
    assert same_bits(weights_of(other), weights_of(model))
    assert [each.name for each in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_hostile_pickle_runs_nothing_however_it_is_called(allowed: bool, tmp_path: Path) -> None:
    place = tmp_path / "exploded"
    torch.save({"state_dict": Bomb(place)}, tmp_path / "zipped.pth")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb(place)))
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb(place)))
    (tmp_path / "torn.pth").write_bytes((tmp_path / "zipped.pth").read_bytes()[:100])
    (tmp_path / "empty.pth").write_bytes(b"")
    model, optimizer = fresh()

    for path in [path for path in tmp_path.iterdir()]:
        with pytest.raises((InputError, CheckpointError)) as caught:
            load_checkpoint(model, path, optimizer, pickled=allowed)
        assert "\n" not in caught.value.what

    assert not place.exists()


def test_a_torch_that_cannot_read_pickles_safely_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tutorial_file(tmp_path)
    model, _ = fresh()
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")

    with pytest.raises(InputError, match=re.escape("torch 2.9.1+cpu cannot read a pickle safely")):
        load_weights(model, path, pickled=True)


def test_no_pickle_is_read_anywhere_else() -> None:
    source = Path(weights.__file__).parents[2]

    found = {
        path.relative_to(source).as_posix(): pickles_in(ast.parse(path.read_text()))
        for path in source.rglob("*.py")
    }

    assert {name: reads for name, reads in found.items() if reads} == {
        "engine/checkpoint/weights.py": ["torch.load, weights only"],
        # what torch.save has just written into memory, to see that weights_only can read it back
        "compat/parts/torch_file.py": ["torch.load, weights only"],
        # what its own processes send through a pipe, nothing from a file
        "engine/data/workers.py": ["pickle"],
        # what the ranks of a run gather from each other, nothing from a file
        "engine/parallel/distributed_group.py": ["pickle"],
    }


def pickles_in(module: ast.Module) -> list[str]:
    """Imports of packages that read pickles, and calls of torch.load."""
    found = []
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names if each.name.partition(".")[0] in PICKLING]
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in PICKLING:
                found.append(name)
            case ast.Call(func=function) if ast.unparse(function) == "torch.load":
                said = {each.arg: ast.unparse(each.value) for each in node.keywords}
                is_safe = said.get("weights_only") == "True"
                found.append(f"torch.load, {'weights only' if is_safe else 'anything'}")
    return found


# --------------------------------------------------------------------------------------------------- a whole checkpoint


@pytest.mark.row("S-B5")
def test_the_dictionary_of_an_old_script_is_restored(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = tutorial_file(tmp_path)
    other, again = fresh()

    loaded = load_checkpoint(other, path, again, pickled=True)

    assert loaded.model is other and loaded.optimizer is again
    assert dict(loaded.rest) == {"epoch": 7, "best_loss": 0.125, "alpha": 0.25, "gamma": 2.0}
    assert same_bits(weights_of(other), weights_of(model))
    assert same_bits(again.state_dict(), optimizer.state_dict())


def test_the_same_dictionary_goes_through_our_own_format(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"epoch": 7, "state_dict": model, "best_loss": 0.125, "optimizer": optimizer}
    Saver(tmp_path).save_checkpoint(7, {**state, "alpha": 0.25, "gamma": 2.0})
    other, again = fresh()

    loaded = load_checkpoint(other, tmp_path / "step-000000007", again)

    assert dict(loaded.rest) == {"epoch": 7, "best_loss": 0.125, "alpha": 0.25, "gamma": 2.0}
    assert same_bits(weights_of(other), weights_of(model))
    assert same_bits(again.state_dict(), optimizer.state_dict())


def test_a_checkpoint_of_a_run_gives_model_and_optimizer_too(tmp_path: Path) -> None:
    runs = engine()
    runs.run()
    Saver(tmp_path).save_checkpoint(6, capture_state(runs))
    other = engine()

    loaded = load_checkpoint(
        other.process.model, tmp_path / "step-000000006", other.process.backward.optimizer
    )

    assert loaded.rest["state"]["step"] == 6
    assert same_bits(capture_state(other)["optimizer"], capture_state(runs)["optimizer"])


@pytest.mark.row("B28")
def test_a_path_that_leads_nowhere_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    model, optimizer = fresh()
    before = weights_of(model)

    with pytest.raises(InputError, match="path is None"):
        load_checkpoint(model, None, optimizer)
    with pytest.raises(InputError, match="no checkpoint here") as caught:
        load_checkpoint(model, tmp_path / "m.pth.tar", optimizer)
    assert caught.value.where == str(tmp_path / "m.pth.tar")
    with pytest.raises(CheckpointError, match="no manifest"):
        load_checkpoint(model, tmp_path, optimizer)
    assert same_bits(weights_of(model), before)


@pytest.mark.row("B28")
def test_what_does_not_fit_is_an_error_or_a_report(tmp_path: Path) -> None:
    model, optimizer = trained()
    Saver(tmp_path).save_checkpoint(1, {"model": model, "optimizer": optimizer})
    path = tmp_path / "step-000000001"
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 1))

    with pytest.raises(CheckpointError, match="does not fit the model") as caught:
        load_checkpoint(other, path)
    assert all(name in str(caught.value) for name in ("3.weight", "3.bias", "2.weight"))
    report = load_checkpoint(other, path, strict=False).report

    assert report.missing == ("3.weight", "3.bias")
    assert report.mismatched == ("2.weight", "2.bias")
    assert report.unexpected == ()
    assert str(report) == (
        "not loaded, missing there: 3.weight, 3.bias;"
        " not loaded, of another shape there: 2.weight, 2.bias"
    )
    assert torch.equal(other[0].weight, model[0].weight)  # type: ignore[index]
    smaller = load_checkpoint(nn.Sequential(nn.Linear(4, 8)), path, strict=False).report
    assert (smaller.unexpected, smaller.fits) == (("2.weight", "2.bias"), False)


def test_a_checkpoint_without_what_is_asked_for_says_what_it_has(tmp_path: Path) -> None:
    model, optimizer = fresh()
    saver = Saver(tmp_path)
    saver.save_checkpoint(1, {"model": model, "epoch": 3})
    saver.save_checkpoint(2, {"epoch": 3})

    with pytest.raises(CheckpointError, match="nothing for the optimizer") as caught:
        load_checkpoint(model, tmp_path / "step-000000001", optimizer)
    assert caught.value.fix == "It has: model, epoch."
    with pytest.raises(CheckpointError, match="holds no weights") as caught:
        load_weights(model, tmp_path / "step-000000002")
    assert "It has: epoch" in caught.value.fix


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_what_wrappers_put_before_every_name_is_taken_off(prefix: str, tmp_path: Path) -> None:
    model, _ = trained()
    Saver(tmp_path).save_checkpoint(
        1, {prefix + name: value for name, value in model.state_dict().items()}
    )
    other, _ = fresh()

    assert load_weights(other, tmp_path / "step-000000001").fits
    assert same_bits(weights_of(other), weights_of(model))


def test_names_are_changed_by_rules(tmp_path: Path) -> None:
    model, _ = trained()
    renamed = {f"encoder.layer{name}": value for name, value in model.state_dict().items()}
    Saver(tmp_path).save_checkpoint(1, {"model": renamed})
    other, _ = fresh()

    load_weights(other, tmp_path / "step-000000001", rename={r"^encoder\.layer": ""})

    assert same_bits(weights_of(other), weights_of(model))
    with pytest.raises(InputError, match=r"makes two weights 'weight'"):
        load_weights(other, tmp_path / "step-000000001", rename={r".*\.": ""})


class Tied(nn.Module):
    """Two layers with one weight, and a part of one."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.f, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.f.weight = self.e.weight
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("again", self.mean)


@pytest.mark.parametrize(
    "left_out", [("f.weight", "again"), ("e.weight", "mean"), ("e.weight", "again"), ()]
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_file_of_a_tied_model_needs_each_weight_once(
    left_out: tuple[str, ...], strict: bool, tmp_path: Path
) -> None:
    model, other = Tied(), Tied()
    nn.init.normal_(model.mean)
    state = {name: value for name, value in model.state_dict().items() if name not in left_out}
    save_file({name: value.clone() for name, value in state.items()}, tmp_path / "tied.safetensors")

    report = load_weights(other, tmp_path / "tied.safetensors", strict=strict)

    assert report.fits
    assert same_bits(other.state_dict(), model.state_dict())
    assert other.f.weight is other.e.weight


def test_a_weight_that_is_missing_under_all_its_names_is_missing(tmp_path: Path) -> None:
    state = {"o.weight": torch.zeros(2, 4), "o.bias": torch.zeros(2)}
    save_file(state, tmp_path / "part.safetensors")

    report = load_weights(Tied(), tmp_path / "part.safetensors", strict=False)

    assert sorted(report.missing) == ["again", "e.bias", "e.weight", "f.bias", "f.weight", "mean"]
    assert str(report).startswith("not loaded, missing there: ")


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        ({"": "net.body."}, r'rename = { "^net\\.body\\." = "" }'),
        ({"": "x"}, "rename = {"),
    ],
)
def test_weights_of_which_none_fits_are_an_error_though_some_may_be_left_out(
    names: dict[str, str], rule: str, tmp_path: Path
) -> None:
    model, other = Tied(), Tied()
    before = weights_of(other)
    state = {names[""] + name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, tmp_path / "other.safetensors")

    with pytest.raises(CheckpointError, match="No weight of the file fits") as caught:
        load_weights(other, tmp_path / "other.safetensors", strict=False)

    assert rule in str(caught.value.fix)
    assert same_bits(weights_of(other), before)
    if names[""] == "net.body.":  # the fix, applied
        assert load_weights(
            other, tmp_path / "other.safetensors", rename={r"^net\.body\.": ""}, strict=False
        ).fits
