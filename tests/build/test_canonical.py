"""Whatever it is asked for by, what is called has one name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.build import user_code
from assay.build.targets import TargetError, canonical_name, find_target

Write = Callable[..., Path]

PLACES = (
    torch.nn,
    torch.optim,
    torch.optim.lr_scheduler,
    torch.utils.data,
    torch.nn.functional,
    torch.nn.init,
)


def named(target: str, *user_dirs: Path) -> str:
    return canonical_name(find_target(target, user_dirs=user_dirs), target, user_dirs=user_dirs)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("torch.nn.modules.linear.Linear", "torch.nn.Linear"),
        ("torch.nn:Linear", "torch.nn.Linear"),
        ("torch.optim.adamw.AdamW", "torch.optim.AdamW"),
        ("torch.optim.lr_scheduler.StepLR", "torch.optim.lr_scheduler.StepLR"),
        ("torch.utils.data.dataset.TensorDataset", "torch.utils.data.TensorDataset"),
        ("torch.nn.functional:conv2d", "torch.nn.functional.conv2d"),
        ("torch.nn.functional.relu", "torch.nn.functional.relu"),
        ("torch.nn.init.xavier_uniform_", "torch.nn.init.xavier_uniform_"),
        ("assay.engine.loop.process.Supervised", "assay.engine.Supervised"),
        ("assay.engine:Accuracy", "assay.engine.Accuracy"),
    ],
)
def test_torch_and_assay_are_known_by_their_public_names(target: str, name: str) -> None:
    assert named(target) == name


def test_every_name_of_torch_leads_back_to_the_same_object() -> None:
    count = 0
    for place in PLACES:
        for short in vars(place):
            target = f"{place.__name__}.{short}"
            try:
                thing = find_target(target, user_dirs=[])
            except TargetError:
                continue
            name = canonical_name(thing, target, user_dirs=[])
            assert find_target(name, user_dirs=[]) is thing
            assert "modules" not in name
            count += 1
    assert count > 300


def test_user_code_is_known_by_the_module_that_defines_it(write: Write) -> None:
    project = write(
        model="""
        import functools, torch
        from pkg.nets import Net, make
        from assay.build import register
        Alias = Net
        partial = functools.partial(Net, 3)
        instance = Net()
        @register("small")
        class Small(Net): ...
        def local():
            class Inner: ...
            return Inner
        Inner = local()
        """,
        pkg__nets="""
        class Net:
            def __call__(self): ...
            class Part: ...
            @classmethod
            def tiny(cls): ...
        def make(): ...
        """,
    )
    with user_code([project]):
        names = {
            target: named(target, project)
            for target in (
                "pkg.nets:Net",
                "model.Net",
                "model.Alias",
                "model:Net.Part",
                "model.make",
                "small",
                "model:Small.tiny",
                "model:partial",
                "model:instance",
                "model:Inner",
            )
        }

    assert names == {
        "pkg.nets:Net": "pkg.nets.Net",
        "model.Net": "pkg.nets.Net",
        "model.Alias": "pkg.nets.Net",
        "model:Net.Part": "pkg.nets.Net.Part",
        "model.make": "pkg.nets.make",
        "small": "model.Small",
        "model:Small.tiny": "model.Small.tiny",
        "model:partial": "model.partial",
        "model:instance": "model.instance",
        "model:Inner": "model.Inner",
    }
