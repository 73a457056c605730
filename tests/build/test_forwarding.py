"""`**kwargs` are followed to the `super().__init__` that takes them, and nowhere else."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.build.parameters import UNKNOWN, Signature, signature_of
from assay.build.signatures import check_signatures
from assay.config.tree import Table

Write = Callable[..., Path]
Tree = Callable[[str], Table]


class Base:
    def __init__(self, width: int, depth: int = 2, *, rate: float = 0.1) -> None: ...


def taking_more(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap an `__init__` as transformers does: unknown keywords become attributes."""

    @functools.wraps(function)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        known = {
            name: value for name, value in kwargs.items() if name in ("width", "depth", "rate")
        }
        function(self, *args, **known)
        vars(self).update({name: value for name, value in kwargs.items() if name not in known})

    return init


def handing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Widened(Base):
    __init__ = taking_more(Base.__init__)


class UnderWidened(Widened):
    def __init__(self, color: str = "red", **kwargs: Any) -> None:
        super().__init__(**kwargs)


@contextlib.contextmanager
def managed(width: int) -> Iterator[int]:
    yield width


def names(target: Any) -> list[str]:
    signature = signature_of(target)
    assert signature is not None
    return [parameter.name + ("!" if parameter.required else "") for parameter in signature.named]


def is_open(target: Any) -> bool:
    signature = signature_of(target)
    return signature is not None and signature.var_kwargs is not None


def test_a_wrapper_that_takes_more_than_it_advertises_is_open() -> None:
    assert names(Widened) == ["width!", "depth", "rate"]
    assert is_open(Widened)
    assert names(UnderWidened) == ["color", "width!", "depth", "rate"]
    assert is_open(UnderWidened)


def test_a_wrapper_of_python_or_torch_takes_what_it_advertises() -> None:
    assert names(managed) == ["width!"] and not is_open(managed)
    assert not is_open(torch.no_grad()(lambda width: width))
    assert is_open(handing_on(Base))


def test_the_configs_of_transformers_are_open() -> None:
    bert = pytest.importorskip("transformers").BertConfig

    assert "hidden_size" in names(bert)
    assert is_open(bert)


class Plain(Base):
    def __init__(self, *, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Given(Base):
    def __init__(self, scale: int, **kwargs: Any) -> None:
        super().__init__(8 * scale, rate=0.5, **kwargs)


class WithArgs(Base):
    def __init__(self, *args: Any, name: str = "", **kwargs: Any) -> None:
        super(WithArgs, self).__init__(*args, **kwargs)  # noqa: UP008


class Two(Plain):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class ByName(Base):
    def __init__(self, **kwargs: Any) -> None:
        Base.__init__(self, 3, **kwargs)


class Mixin:
    def __init__(self, *, color: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Mixed(Mixin, Base):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Takes(Base):
    def __init__(self, **kwargs: Any) -> None:
        name = kwargs.pop("name")
        self.color = kwargs.pop("color", "red")
        kwargs.setdefault("width", len(name))
        kwargs["depth"] = 3
        if "rate" in kwargs and kwargs.get("rate", 1) > kwargs["rate"]:
            kwargs.pop("more")
        super().__init__(**kwargs)


class Lonely:
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Net(nn.Module):
    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class MyAdam(torch.optim.AdamW):
    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)


def make(**kwargs: Any) -> Base:
    return Base(rate=1.0, **kwargs)


class Factory(Base):
    @classmethod
    def small(cls, **kwargs: Any) -> Base:
        return cls(width=1, **kwargs)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Plain, ["scale", "width!", "depth", "rate"]),
        (Given, ["scale!", "depth"]),
        (WithArgs, ["name", "width!", "depth", "rate"]),
        (Two, ["scale", "width!", "depth", "rate"]),
        (Mixed, ["color!", "width!", "depth", "rate"]),
        (Lonely, []),
        (Net, ["width!"]),
        (nn.Sigmoid, []),
    ],
)
def test_what_a_parent_takes_belongs_to_what_a_child_takes(
    target: Any, expected: list[str]
) -> None:
    assert names(target) == expected
    assert not is_open(target)


def test_torch_is_followed_too() -> None:
    assert names(MyAdam)[:3] == ["params!", "lr", "betas"]
    assert not is_open(MyAdam)


def test_types_come_along() -> None:
    signature = signature_of(Plain)
    assert isinstance(signature, Signature)

    assert [parameter.hint for parameter in signature.named] == [float, int, int, float]
    assert [parameter.default for parameter in signature.named] == [1.0, UNKNOWN, 2, 0.1]


def test_arguments_by_position_go_where_the_star_goes() -> None:
    with_args, plain = signature_of(WithArgs), signature_of(Plain)
    assert with_args is not None
    assert plain is not None

    assert [parameter.name for i in range(2) if (parameter := with_args.at(i))] == [
        "width",
        "depth",
    ]
    assert plain.at(0) is None


@pytest.mark.parametrize("target", [make, Factory.small, ByName, Takes, nn.Identity])
def test_all_but_super_init_stays_open(target: Any) -> None:
    assert is_open(target)


def test_a_key_that_no_parent_takes_is_an_error_and_no_note(write: Write, tree: Tree) -> None:
    project = write(
        model="""
        from torch import nn
        class Net(nn.Module):
            def __init__(self, width: int = 3, **kwargs):
                super().__init__(**kwargs)
        class Child(Net):
            def __init__(self, depth: int = 1, **kwargs):
                super().__init__(**kwargs)
                self.depth = depth
        """
    )
    root = tree('[model]\ntype = "model.Child"\nwidth = "3"\nwidht = 4\n')

    problems = check_signatures(root, user_dirs=[project], strict=True)

    assert [(problem.kind, problem.origin.line, problem.fix) for problem in problems] == [
        ("wrong-type", 3, "write it without quotes: 3"),
        ("unknown-argument", 4, "did you mean `width`?"),
    ]


def test_what_goes_through_kwargs_is_injected_where_it_is_required(
    write: Write, tree: Tree
) -> None:
    project = write(
        model="""
        import torch
        class Adam(torch.optim.Adam):
            def __init__(self, warm: int = 3, **kwargs):
                super().__init__(**kwargs)
        """
    )
    root = tree('[optimizer]\ntype = "model.Adam"\n')

    assert check_signatures(root, user_dirs=[project]) == []
    (missing,) = check_signatures(root, user_dirs=[project], roles=())
    assert missing.message == "`model.Adam` needs `params`"
