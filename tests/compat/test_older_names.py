"""Names of the five older systems that nothing here stands for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from assay.compat import UnmappedImportError, install
from assay.compat.names import PACKAGES, names_of
from assay.config import check_shape, loads

WRONG = {
    "alchemy.sym_tabl": "alchemy.sym_tbl",
    "alchemy.plugins.Seedin": "alchemy.plugins.Seeding",
    "tensorboardX.SumaryWriter": "tensorboardX.SummaryWriter",
    "hiddenlayer.Canvass": "hiddenlayer.Canvas",
    "thexp.frame.Metre": "thexp.frame.Meter",
    "flame.pytorch.typing_prelude.TranLoader": "flame.pytorch.typing_prelude.TrainLoader",
    "injector.Injectr": "injector.Injector",
    "libai.scheduler.WarmupCosinLR": "libai.scheduler.WarmupCosineLR",
    "libai.models.BertModell": "libai.models.BertModel",
}
"""Name that is mis-typed -> the nearest in the table of its system."""


@pytest.fixture
def older() -> Iterator[None]:
    """Imports of older systems, which this process forgets afterwards."""
    before = list(sys.meta_path)
    install()
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def test_the_names_below_are_of_all_five_systems() -> None:
    assert {PACKAGES[name.partition(".")[0]] for name in WRONG} == set(PACKAGES.values())


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize(("wrong", "near"), WRONG.items())
def test_its_import_is_one_error_with_the_nearest_and_the_way_to_say_it_here(
    wrong: str, near: str
) -> None:
    module, _, name = wrong.rpartition(".")

    with pytest.raises(UnmappedImportError) as caught:
        exec(f"from {module} import {name}")

    system = PACKAGES[wrong.partition(".")[0]]
    instead = names_of(system)[near].instead
    assert caught.value.what == f"`{wrong}` of {system} has nothing here that stands for it."
    assert f"did you mean `{near}`? Here: {instead}." in caught.value.fix
    assert f"docs/compat/{system}.md" in caught.value.fix


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize(("wrong", "near"), WRONG.items())
def test_its_use_in_a_config_is_one_error_at_its_place(wrong: str, near: str) -> None:
    config = loads(f'plugins = [\n  {{ type = "{wrong}" }},\n]\n')

    (problem,) = [each for each in check_shape(config) if each.severity == "error"]

    system = PACKAGES[wrong.partition(".")[0]]
    assert (problem.kind, problem.origin.line) == ("unknown-target", 2)
    assert problem.message == f"`{wrong}` of {system} has nothing here that stands for it"
    assert f"did you mean `{near}`? Here: {names_of(system)[near].instead}" in problem.fix


MODULES = {
    "alchemy.runer": "alchemy.runner",
    "tensorboardX.writer": "",
    "thexp.framee": "thexp.frame",
    "flame.pytorch.typing_prelud": "flame.pytorch.typing_prelude",
    "libai.data.structure": "libai.data.structures",
    "oneflow.nn.functionall": "oneflow.nn.functional",
}
"""Module that is not there -> the nearest that is."""


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize(("wrong", "near"), MODULES.items())
def test_the_import_of_a_module_that_is_not_there_is_one_error_with_the_nearest(
    wrong: str, near: str
) -> None:
    with pytest.raises(UnmappedImportError) as caught:
        importlib.import_module(wrong)

    system = PACKAGES[wrong.partition(".")[0]]
    assert caught.value.what == f"`{wrong}` of {system} has nothing here that stands for it."
    assert f"docs/compat/{system}.md" in caught.value.fix
    assert near in caught.value.fix


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_of_an_older_package_says_of_a_name_whether_it_has_it(package: str) -> None:
    module = importlib.import_module(package)

    assert getattr(module, "no_such_name", 3) == 3  # as the compiler of torch asks every module
    assert not hasattr(module, "no_such_name")


OF_ONEFLOW = (
    *("no_grad", "cat", "stack", "zeros", "ones", "arange", "randn", "tensor", "Tensor", "matmul"),
    *("einsum", "softmax", "argmax", "topk", "where", "masked_fill", "float16", "float32", "long"),
    *("nn.Module", "nn.Linear", "nn.LayerNorm", "nn.Embedding", "nn.ModuleList", "nn.init.normal_"),
    *("nn.functional.relu", "nn.functional.cross_entropy", "nn.functional.conv1d"),
    *("optim.AdamW", "optim.lr_scheduler.CosineAnnealingLR", "utils.data.Dataset"),
    *("utils.data.DataLoader", "autograd.Function", "manual_seed", "save", "load", "device"),
)


@pytest.mark.row("E61")
@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("name", OF_ONEFLOW)
def test_a_name_that_models_import_from_oneflow_is_that_of_torch(name: str) -> None:
    import torch

    module, _, last = f"oneflow.{name}".rpartition(".")
    expected = torch
    for part in name.split("."):
        expected = getattr(expected, part)

    assert getattr(importlib.import_module(module), last) is expected


def test_every_name_of_a_table_says_how_it_is_written_here() -> None:
    silent = [
        name
        for system in sorted(set(PACKAGES.values()))
        for name, entry in names_of(system).items()
        if not entry.instead
    ]

    assert silent == []
