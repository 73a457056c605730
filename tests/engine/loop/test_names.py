from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW

from assay.build import Context, inject
from assay.engine import Loader, State, WarmupCosine
from assay.engine.loop import names


def test_every_name_is_explained_and_all_come_with_a_star() -> None:
    space: dict[str, object] = {}
    exec("from assay.engine.loop.names import *", space)

    told = names.__doc__ or ""
    assert set(names.__all__) == space.keys() - {"__builtins__"}
    assert all(f"{name} " in told for name in names.__all__)


def test_each_split_has_a_loader_that_its_type_finds() -> None:
    context = Context()
    loaders = {
        split: Loader([1, 2], batch_size=1, split=split) for split in ("train", "valid", "test")
    }
    for split, loader in loaders.items():
        context.set(f"{split}_loader", loader, type=names.LOADERS[split])

    found = [context.get(kind) for kind in (names.TrainLoader, names.ValLoader, names.TestLoader)]

    assert found == list(loaders.values())


def test_the_other_names_are_types_of_what_a_run_holds() -> None:
    model = nn.Linear(1, 1)
    things = {
        names.Model: model,
        names.Optimizer: AdamW(model.parameters()),
        names.Scheduler: WarmupCosine(),
        names.Device: torch.device("cpu"),
        names.State: State(),
    }
    context = Context()
    for thing in things.values():
        context.set(type(thing).__name__, thing)

    assert all(context.get(kind) is thing for kind, thing in things.items())


def test_a_criterion_is_found_by_its_type_or_by_its_name_and_never_taken_for_the_model() -> None:
    @inject
    def step(model: names.Model, criterion: names.Criterion) -> tuple[nn.Module, nn.Module]:
        return model, criterion

    model, loss = nn.Linear(1, 1), nn.CrossEntropyLoss()
    named, typed = Context(), Context()
    for context in (named, typed):
        context.set("model", model)
    named.set("criterion", loss)
    typed.set("the_loss", loss, type=names.Criterion)

    assert named.bind(step)() == typed.bind(step)() == (model, loss)
