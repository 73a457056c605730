"""Models and optimizers that the engine cannot train are found by the check, before any build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.build import check_materials, user_code
from assay.config.tree import Table
from assay.core.diagnostics import Problem
from assay.core.optimizer_closure import needs_closure

Write = Callable[..., Path]
Tree = Callable[[str], Table]
Check = Callable[[str], list[Problem]]

PARTS = """
    from torch import nn
    from assay.engine import Process, Supervised

    class Net(nn.Module): ...
    class Mine(Supervised): ...
    class OwnUpdate(Mine):
        def update(self, step): ...
    def make_step(model, optimizer): ...
"""
LBFGS = '[optimizer]\ntype = "torch.optim.LBFGS"\n'


@pytest.fixture
def check(write: Write, tree: Tree) -> Check:
    project = write(parts=PARTS)

    def judge(text: str) -> list[Problem]:
        root = tree(text)
        with user_code([project]):
            return check_materials(root, user_dirs=[project])

    return judge


@pytest.mark.parametrize(
    "process", ["assay.engine.Supervised", "assay.engine.OwnLoss", "parts.Mine"]
)
def test_an_optimizer_whose_step_needs_a_closure_is_refused_where_the_engine_makes_the_update(
    check: Check, process: str
) -> None:
    (problem,) = check(f'{LBFGS}[process]\ntype = "{process}"')

    assert (problem.kind, problem.key, problem.origin.line) == ("needs-closure", "optimizer", 2)
    assert "`LBFGS`" in problem.message and "optimizer.step(closure)" in problem.fix
    (named,) = check(f'[optimizer.one]\ntype = "torch.optim.LBFGS"\n[process]\ntype = "{process}"')
    assert named.key == "optimizer.one"


@pytest.mark.parametrize(
    "process", ["assay.engine.StepFunction", "parts.OwnUpdate", "parts.make_step"]
)
def test_it_is_fine_where_the_code_of_the_user_makes_the_update(check: Check, process: str) -> None:
    assert check(f'{LBFGS}[process]\ntype = "{process}"') == []


def test_of_the_optimizers_of_torch_only_lbfgs_needs_a_closure() -> None:
    optimizers = [each for each in vars(torch.optim).values() if isinstance(each, type)]

    assert len(optimizers) > 10
    assert [each for each in optimizers if needs_closure(each)] == [torch.optim.LBFGS]


def test_a_lazy_module_anywhere_in_the_model_is_refused_with_its_place(check: Check) -> None:
    (problem,) = check(
        '[model]\ntype = "parts.Net"\nbody = [{ type = "torch.nn.LazyConv2d", out_channels = 3 }]'
    )

    assert (problem.kind, problem.key, problem.origin.line) == ("lazy-module", "model.body.0", 3)
    assert check('[model]\ntype = "parts.Net"\nbody = [{ type = "torch.nn.Linear" }]') == []
