"""Features in pairs and triples: a resumed run is the whole one, and the whole one is torch's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.feature_sets import (
    ENDS,
    FEATURES,
    draw_sets,
    fits,
    recipe_of,
    train,
    train_by_hand,
)
from engine.toys import kept, same_bits

FEW = [frozenset(), *(frozenset({name}) for name in FEATURES if fits(frozenset({name})))]


def differences(names: frozenset[str], folder: Path, *, seed: int) -> list[str]:
    """Return what differs between a whole run and resumed ones, by the way each was ended."""
    draw, recipe, found = random.Random(seed), recipe_of(names), []
    whole, points = train(recipe, folder / "whole")
    state = kept(whole)
    for how in draw.sample(ENDS, 2):
        at = draw.randrange(1, whole.state.step)
        resumed, others = train(recipe, folder / f"{how} {at}".replace(" ", "-"), at=at, how=how)
        place = f"{sorted(names)} {how} at {at}"
        if not same_bits(state["model"], kept(resumed)["model"]):
            found.append(f"{place}: weights")
        if odd := [
            name
            for name, part in kept(resumed).items()
            if name != "state" and not same_bits(state.get(name), part)
        ]:
            found.append(f"{place}: {odd}")
        if repr(points) != repr(others):
            odd = {*map(repr, points)} ^ {*map(repr, others)}
            found.append(f"{place}: points {sorted(odd)[:4] or (len(points), len(others))}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("names", FEW, ids=lambda names: " + ".join(sorted(names)) or "nothing")
def test_one_feature_resumed_is_the_whole_run(names, tmp_path) -> None:
    assert not differences(names, tmp_path, seed=len(str(names)))


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
