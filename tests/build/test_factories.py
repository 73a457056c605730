from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.build import Context, build, check_signatures, instantiate, user_code
from assay.config.tree import Table, from_plain, get_at
from assay.core.diagnostics import Origin

Write = Callable[..., Path]
Tree = Callable[[str], Table]

PARTS = """
    class Dataset:
        made = 0
        def __init__(self): Dataset.made += 1

    class Loader:
        def __init__(self, dataset, batch_size: int, size: int = 1):
            self.all = (dataset, batch_size, size)

    class Takes:
        def __init__(self, factory): self.factory = factory
"""

CONFIG = """
    [data]
    type = "parts.Dataset"
    [first]
    type = "parts.Takes"
    factory = { type = "parts.Loader", dataset = "@data", size = 2, _partial_ = true }
    [second]
    type = "parts.Loader"
    dataset = "@data"
    batch_size = 3
    _partial_ = false
"""


@pytest.fixture
def project(write: Write) -> Iterator[Path]:
    place = write(parts=PARTS)
    with user_code([place]):
        yield place


@pytest.mark.row("D28")
def test_a_partial_node_is_a_factory_and_every_other_an_object(project: Path, tree: Tree) -> None:
    root, context = tree(CONFIG), Context()

    def made(name: str) -> Any:
        node = get_at(root, (name,))
        assert node is not None
        return build(node, context, root=root, path=(name,), user_dirs=[project])

    assert check_signatures(root, user_dirs=[project]) == []
    factory = made("first").factory
    one, two = factory(batch_size=4), factory(batch_size=5)

    assert isinstance(factory, functools.partial) and one is not two
    assert one.all == (made("data"), 4, 2) and two.all == (made("data"), 5, 2)
    assert made("second").all[0] is one.all[0] is two.all[0]
    assert type(made("data")).made == 1


def test_what_a_factory_is_given_is_checked_and_what_it_lacks_is_not(
    project: Path, tree: Tree
) -> None:
    wrong = tree(CONFIG.replace("size = 2", 'sise = 2, batch_size = "x"').replace("= false", "= 1"))

    problems = check_signatures(wrong, user_dirs=[project])

    assert [(problem.kind, problem.key) for problem in problems] == [
        ("unknown-argument", "first.factory.sise"),
        ("wrong-type", "first.factory.batch_size"),
        ("wrong-type", "second._partial_"),
    ]


def test_a_mapping_for_a_configurable_class_is_checked_and_built_like_keyword_arguments(
    write: Write, tree: Tree
) -> None:
    project = write(
        "other",
        nets="""
            from assay.build import configurable
            class Net:
                @configurable
                def __init__(self, num_classes: int, width: int): self.all = (num_classes, width)
            class Head(Net):
                @configurable
                def __init__(self, size: int): self.size = size
                @classmethod
                def from_config(cls, cfg): return {"size": cfg["hidden"] * 2}
        """,
    )
    root = tree(
        """
        model = { type = "nets.Net", args = [{ num_classes = 3, width = 4 }] }
        named = { type = "nets.Net", cfg = { num_classes = 3, width = 4 } }
        head = { type = "nets.Head", args = [{ hidden = 4 }] }
        typo = { type = "nets.Net", args = [{ num_clases = 3 }], width = 1 }
        other = { type = "nets.Net", cfg = { num_clases = 3 }, width = 1 }
        """
    )

    with user_code([project]):
        problems = check_signatures(root, user_dirs=[project])
        made = [
            build(root.items[name], Context(), root=root, path=(name,), user_dirs=[project])
            for name in ("model", "named", "head")
        ]

    assert (made[0].all, made[1].all, made[2].size) == ((3, 4), (3, 4), 8)
    assert [(problem.kind, problem.key) for problem in problems] == [
        ("unchecked", "head"),
        ("unknown-argument", "typo.num_clases"),
        ("unknown-argument", "other.num_clases"),
    ]


def test_late_arguments_win_over_what_is_written() -> None:
    layer = instantiate(
        {"type": "torch.nn.Linear", "in_features": 2, "out_features": 3}, out_features=4
    )
    assert layer.weight.shape == (4, 2)

    sgd = instantiate({"type": "torch.optim.SGD", "lr": 0.1, "_partial_": True})
    assert sgd(layer.parameters()).param_groups[0]["lr"] == 0.1

    with pytest.raises(TypeError, match="no `type`"):
        instantiate({"a": 1}, b=2)
    with pytest.raises(TypeError, match="args = "):
        instantiate({"type": "torch.nn.Linear"}, 2, 3)


def test_what_gives_a_tree_is_built_as_that_tree() -> None:
    class Params:
        def tree(self) -> Any:
            return from_plain(
                {"type": "torch.nn.Linear", "in_features": 2}, Origin(source="<python>")
            )

    assert instantiate(Params(), out_features=3).weight.shape == (3, 2)
    assert instantiate(torch.nn.Linear, 2, out_features=3).weight.shape == (3, 2)
