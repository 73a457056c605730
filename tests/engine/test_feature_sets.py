"""Features in pairs and triples: a resumed run is the whole one, and the whole one is torch's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from assay.engine import Saver
from engine.feature_sets import (
    ENDS,
    FEATURES,
    draw_sets,
    fits,
    recipe_of,
    resume_everywhere,
    train,
    train_by_hand,
)
from engine.parallel.launching import answers
from engine.toys import kept, same_bits

PROGRAMS = [
    names if fits(names) else names | {"evaluation: every four steps"}
    for names in (frozenset(), *(frozenset({name}) for name in FEATURES))
]
"""Each feature by itself, or with what it wants."""
SCRIPT = Path(__file__).with_name("feature_sets.py")


def differences(names: frozenset[str], folder: Path, *, seed: int, ends: int = 2) -> list[str]:
    """Return what differs between a whole run and resumed ones, by the way each was ended."""
    draw, recipe, found = random.Random(seed), recipe_of(names), []
    whole, points = train(recipe, folder / "whole")
    state = kept(whole)
    for how in draw.sample(ENDS, ends):
        at = draw.randrange(1, whole.state.step)
        own = folder / f"{how} {at}".replace(" ", "-")
        resumed, others = train(recipe, own, at=at, how=how)
        place = f"{sorted(names)} {how} at {at}"
        if not same_bits(state["model"], kept(resumed)["model"]):
            found.append(f"{place}: weights")
        if odd := [
            name
            for name, part in kept(resumed).items()
            if name != "state" and not same_bits(state.get(name), part)
        ]:
            found.append(f"{place}: {odd}")
        if Saver(own).best() != Saver(folder / "whole").best():
            found.append(f"{place}: best")
        if repr(points) != repr(others):
            odd = {*map(repr, points)} ^ {*map(repr, others)}
            found.append(f"{place}: points {sorted(odd)[:4] or (len(points), len(others))}")
    return found


@pytest.mark.parametrize("names", PROGRAMS, ids=lambda names: " + ".join(sorted(names)) or "plain")
def test_a_run_resumed_from_any_step_has_every_bit_of_the_whole_one(names, tmp_path) -> None:
    recipe = recipe_of(names)
    recipe.epochs = 2
    assert not resume_everywhere(recipe, tmp_path)
    ends = len(ENDS) if "evaluation" in str(names) else 1
    assert not differences(names, tmp_path / "ends", seed=len(str(names)), ends=ends)


@pytest.mark.parametrize("part", range(20))
@pytest.mark.thorough
def test_features_in_pairs_and_triples_resumed_are_the_whole_run(part, tmp_path) -> None:
    found = []
    for n, names in enumerate(draw_sets(500)[part::20]):
        found += differences(names, tmp_path / str(n), seed=n)
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_sets_of_features_train_as_plain_torch_does_in_float64(tmp_path) -> None:
    count, found = 0, []
    for n, names in enumerate(draw_sets(200, seed=1)):
        recipe = recipe_of(names)
        recipe.dtype = torch.float64
        right = train_by_hand(recipe)
        if right is None:
            continue
        count += 1
        engine, _ = train(recipe, tmp_path / str(n))
        ours = engine.process.model.state_dict()
        far = max(
            (ours[name].double() - value.double()).abs().max().item()
            for name, value in right.items()
        )
        if not far < 1e-9:
            found.append(f"{sorted(names)}: {far:.1e}")
    assert not found, "\n".join(found)
    assert count > 30


SHARED = (
    "data: drawing + evaluation: every four steps + listener: EMA + model: batch norm"
    " + schedule: plateau",
    "data: weighted + evaluation: every epoch + listener: early stop + model: late numpy",
    "data: by length + model: dropout + process: two optimizers",
    "optimizer: Adam + process: taught + window: accumulate 2",
    "process: carried + schedule: one cycle + update: clip",
    "model: own generator + process: attributes + ramp: cycle",
    "listener: counter + schedule: by epochs + update: deferred",
    "evaluation: two splits + listener: inner evaluation + loss: windows ignored"
    " + model: carried state",
)


@pytest.mark.slow
def test_a_run_of_two_ranks_resumed_from_any_step_has_every_bit_of_the_whole_one(
    tmp_path, warm
) -> None:
    assert all(fits(frozenset(names.split(" + "))) for names in SHARED)
    for found in answers(SCRIPT, tmp_path, 2, SHARED, warm=warm):
        assert list(found) == list(SHARED)
        assert not {names: odd for names, odd in found.items() if odd}
