"""Names of the five older systems that nothing here stands for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from assay.compat import UnmappedImportError, install
from assay.config import check_shape, loads
from assay.config.older_systems.names import PACKAGES, names_of

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
        getattr(importlib.import_module(module), name)

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


def test_every_name_of_a_table_says_how_it_is_written_here() -> None:
    silent = [
        name
        for system in sorted(set(PACKAGES.values()))
        for name, entry in names_of(system).items()
        if not entry.instead
    ]

    assert silent == []
