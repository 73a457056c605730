from __future__ import annotations

import functools
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, NewType

import pytest

from assay.build.context import Context
from assay.build.parameters import UNKNOWN, from_assay, injectable, signature_of

Alias = NewType("Alias", dict)  # type: ignore[type-arg]


class Base:
    def __init__(self, width: int, ghost: Ghost, *, name: str = "x") -> None:  # type: ignore[name-defined] # noqa: F821
        self.width = width


class Child(Base): ...


class Made:
    def __new__(cls, size: float) -> Made:
        return super().__new__(cls)


class Called:
    def __call__(self, fraction: Fraction) -> int:
        return 1


def hints(target: Any) -> dict[str, Any]:
    signature = signature_of(target)
    assert signature is not None
    return {parameter.name: parameter.hint for parameter in signature.named}


def test_each_hint_is_resolved_by_itself() -> None:
    assert hints(Base) == {"width": int, "ghost": UNKNOWN, "name": str}
    assert hints(Child) == hints(Base)
    assert hints(Made) == {"size": float}
    assert hints(Called()) == {"fraction": Fraction}
    assert hints(functools.partial(Base, 3)) == {"ghost": UNKNOWN, "name": str}


def test_positions_names_and_the_rest_are_told_apart() -> None:
    def function(a: int, /, b: int, *rest: str, c: int = 1, **more: float) -> Fraction:
        return Fraction(1)

    signature = signature_of(function)

    assert signature is not None
    assert [parameter.required for parameter in signature.named] == [True, True, False]
    assert list(signature.by_keyword()) == ["b", "c"]
    assert [getattr(signature.at(i), "name", None) for i in range(4)] == ["a", "b", "rest", "rest"]
    assert signature.var_kwargs is not None and signature.var_kwargs.hint is float
    assert signature.returns is Fraction


def test_a_function_written_in_c_may_have_no_signature() -> None:
    import torch

    assert signature_of(torch.nn.functional.conv2d) is None


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        (Fraction, Fraction),
        (Fraction | None, Fraction),
        (Annotated[Fraction, "note"], Fraction),
        (Fraction | int, None),
        (Alias, Alias),
        (int, None),
        (dict[str, int], None),
        (Iterable[int], None),
        (Any, None),
        (UNKNOWN, None),
        ("text", None),
    ],
)
def test_only_classes_and_aliases_can_be_looked_for(hint: Any, found: Any) -> None:
    assert injectable(hint) is found


def test_types_of_assay_are_recognised() -> None:
    assert from_assay(Context) and from_assay(Context | None)
    assert not from_assay(Fraction) and not from_assay(int)
