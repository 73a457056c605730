"""`assay.run` from Python: one result for one config, errors that are raised, views of a run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import assay
from assay.compose import training
from assay.compose.weights import find_weights, weights_at
from assay.core.errors import AssayError, ConfigError, InputError
from examples import EXAMPLES

pytestmark = pytest.mark.slow


@pytest.fixture
def here(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(toy)
    return toy


@pytest.mark.thorough
def test_one_config_gives_one_result_and_a_list_gives_a_list(here: Path) -> None:
    given = {"seed": 5, "tag": "mine", "max_steps": 2, "device": "cpu"}

    one = assay.run("toy.toml", overrides={"model.width": 4, "optimizer.lr": 0.5}, **given)
    (listed,) = assay.run(["toy.toml"], overrides=["train.epochs=1"], max_steps=1)

    assert one.step == 2 and listed.step == 1
    assert repr(one).startswith(f"<RunResult {one.id}, finished, step 2, valid/loss ")
    run = one.run
    assert (run.tag, run.reason, run.last_step) == ("mine", "limit of 2 steps", 2)
    assert run.config_text.count("width = 4") == 1 and "lr = 0.5" in run.config_text
    assert repr(run).startswith(f"<RunView {one.id}, mine, finished, step 2, valid/acc ")
    assert assay.load_model("last").training is False


def test_what_is_wrong_is_raised_unless_it_is_to_be_kept(here: Path) -> None:
    with pytest.raises(InputError, match=r"no config file nope\.toml"):
        assay.run("nope.toml")
    with pytest.raises(ConfigError, match="width"):
        assay.run("toy.toml", overrides={"model.widht": 4})
    with pytest.raises(InputError) as caught:
        assay.run(["toy.toml", "nope.toml"], max_steps=1, no_file=True)
    assert caught.value.__notes__ == ["1 of 2 runs failed; check=False returns all results"]

    kept = assay.run("nope.toml", check=False)

    assert kept.status == "failed" and "nope.toml" in repr(kept) and "\n" not in repr(kept)
    with pytest.raises(InputError, match="left no record"):
        _ = kept.run


def test_a_model_without_a_best_checkpoint_is_loaded_from_the_newest(here: Path) -> None:
    text = (here / "toy.toml").read_text()
    (here / "toy.toml").write_text(
        text.replace('best = { metric = "valid/acc", mode = "max" }', "")
    )
    result = assay.run("toy.toml", max_steps=3, device="cpu")

    loaded = assay.load_model(result.id).state_dict()

    newest = assay.load_model(result.id, "latest").state_dict()
    assert all((loaded[name] == newest[name]).all() for name in newest)


def test_a_damaged_newest_checkpoint_is_told_where_an_older_one_is_taken(here: Path) -> None:
    text = (here / "toy.toml").read_text()
    (here / "toy.toml").write_text(
        text.replace('best = { metric = "valid/acc", mode = "max" }', "")
    )
    run = assay.run("toy.toml", max_steps=6, device="cpu").run
    kept = run.checkpoints
    newest = kept[-1].path / "model.safetensors"
    size = newest.stat().st_size
    os.truncate(newest, 300)
    damage = f"{kept[-1].name} is damaged: model.safetensors has 300 of {size} bytes"

    with pytest.warns(UserWarning, match=damage):
        assay.load_model(run.id)
    tested = weights_at(run.id)
    assert tested.path == kept[-2].path and damage in tested.why
    assert damage in find_weights(run.id).fill(assay.load_model(f"{run.id}@{kept[-2].step}"))

    for each in kept[:-1]:
        shutil.rmtree(each.path)
    for use in (assay.load_model, weights_at, find_weights, training.resume):
        with pytest.raises(AssayError, match=damage):
            use(run.id)


@pytest.mark.thorough
def test_runs_are_grouped_by_a_key_and_drawn(here: Path) -> None:
    for width in (4, 4, 8):
        assay.run("toy.toml", overrides={"model.width": width}, max_steps=3)
    table = assay.runs(columns=["tag", "model.width", "train/loss.min"])

    groups = table.group_by("model.width")

    assert {key: len(group) for key, group in groups.items()} == {4: 2, 8: 1}
    assert set(table.group_by("tag", "model.width")) == {("toy", 4), ("toy", 8)}
    drawing = table[0].plot("train/loss")
    lines = [node for node in ElementTree.fromstring(drawing.svg) if node.tag.endswith("polyline")]
    assert len(lines) == 1 and len(lines[0].get("points", "").split()) == 3
    html = table[0]._repr_html_()
    assert "<polyline" in html and "config.toml</a>" in html and "toy" in html
    with pytest.raises(InputError, match="train/loss"):
        table[0].plot("train/los")


@pytest.mark.thorough
def test_an_objective_of_optuna_is_a_call_of_run(here: Path) -> None:
    optuna = pytest.importorskip("optuna")
    spec = importlib.util.spec_from_file_location("search", EXAMPLES / "09_optuna" / "search.py")
    assert spec is not None and spec.loader is not None
    search = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(search)
    study = optuna.create_study(direction="maximize")

    study.optimize(search.objective, n_trials=2)

    found = assay.runs("tag = search")
    assert len(found) == 2
    assert study.best_value == max(run.metric("valid/acc").values[-1] for run in found)
