"""What a value becomes for the type of its parameter, what does not fit, and how to mend it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict

from assay.build.adapters import Judged
from assay.build.adapters import judge as judge_node
from assay.build.parameters import signature_of
from assay.build.signatures import examine
from assay.config import loads
from assay.config.overrides import apply_setting, setting_of
from assay.config.tree import Table, from_plain, get_at, plain
from assay.core.diagnostics import Origin

ORIGIN = Origin(source="a.toml", line=1, column=5)


class Act(enum.Enum):
    relu = "relu"
    gelu = "gelu"


@dataclass
class Head:
    size: int
    name: str = "h"


class Closed(BaseModel):
    size: int = 1


class Free(BaseModel):
    model_config = ConfigDict(extra="allow")
    size: int = 1


def taking(
    width: int = 1,
    rate: float = 0.1,
    on: bool = True,
    name: str = "",
    betas: tuple[float, float] = (0, 0),
    names: list[str] = [],  # noqa: B006
    act: Act = Act.relu,
    norm: Literal["batch", "layer"] | None = None,
    head: Head | None = None,
    closed: Closed | None = None,
    free: Free | None = None,
    where: Path = Path(),
    heads: Sequence[Head] = (),
    anything: Any = None,
    weight: torch.Tensor | None = None,
    either: torch.Tensor | float = 0.0,
    several: Sequence[torch.Tensor] = (),
    by_name: dict[str, torch.Tensor] | None = None,
    pause: timedelta | None = None,
    pauses: dict[str, timedelta] = {},  # noqa: B006
    bare=None,  # type: ignore[no-untyped-def]
    bare_on=True,  # type: ignore[no-untyped-def]
    bare_name="x",  # type: ignore[no-untyped-def]
    bare_width=1,  # type: ignore[no-untyped-def]
    bare_rate=0.1,  # type: ignore[no-untyped-def]
    bare_names=(),  # type: ignore[no-untyped-def]
) -> None: ...


def judge(name: str, value: object) -> Judged:
    signature = signature_of(taking)
    assert signature is not None
    return judge_node(taking, signature.by_keyword()[name], from_plain(value, ORIGIN))


def typed(argument: str) -> Judged:
    """As if it had been typed on the command line."""
    root = apply_setting(
        loads('[taking]\ntype = "torch.nn.Linear"\n').root, setting_of(f"taking.{argument}")
    )
    name = argument.partition("=")[0]
    signature, node = signature_of(taking), get_at(root, ("taking", name))
    assert signature is not None
    assert node is not None
    return judge_node(taking, signature.by_keyword()[name], node)


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("width", 3, 3),
        ("rate", 3, 3.0),
        ("rate", 1e-3, 1e-3),
        ("betas", [0.9, 1], (0.9, 1.0)),
        ("act", "gelu", Act.gelu),
        ("norm", None, None),
        ("head", {"size": 3}, Head(3)),
        ("heads", [{"size": 3}], [Head(3)]),
        ("where", "/tmp", Path("/tmp")),
        ("free", {"more": 3}, Free(more=3)),  # type: ignore[call-arg]
        ("anything", {"a": [1]}, {"a": [1]}),
        ("bare", "3", "3"),
    ],
)
def test_a_value_that_fits_becomes_what_the_type_asks_for(
    name: str, value: object, becomes: object
) -> None:
    found = judge(name, value)

    assert found.misfits == ()
    assert found.value == becomes
    assert type(found.value) is type(becomes)


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ([0.05, 0.95], torch.tensor([0.05, 0.95])),
        ([1, 19], torch.tensor([1, 19])),
        ([[1.0, 2], [3, 4]], torch.tensor([[1.0, 2], [3, 4]])),
        ([True, False], torch.tensor([True, False])),
        (3.0, torch.tensor(3.0)),
        ([], torch.tensor([])),
    ],
)
def test_numbers_become_the_tensor_that_torch_makes_of_them(
    value: object, becomes: torch.Tensor
) -> None:
    alone, several, by_name = (
        judge("weight", value),
        judge("several", [value]),
        judge("by_name", {"a": value}),
    )

    assert not (alone.misfits or several.misfits or by_name.misfits)
    for tensor in (alone.value, several.value[0], by_name.value["a"]):
        assert tensor.dtype == becomes.dtype and torch.equal(tensor, becomes)


def test_another_type_than_a_tensor_takes_what_it_took_before() -> None:
    assert judge("weight", None).value is None
    assert type(judge("either", 0.5).value) is float
    assert judge("either", [0.5]).misfits[0].fix == "write 0.5, without brackets"
    assert typed("weight=0.1,0.9").value.tolist() == torch.tensor([0.1, 0.9]).tolist()


@pytest.mark.parametrize("value", ["high", [[1], [1, 2]], ["a"], {"a": 1}, [None], 10**30])
def test_what_is_no_tensor_is_refused_with_an_example(value: object) -> None:
    (misfit,) = judge("weight", value).misfits

    assert "must be a list of numbers, or an object" in misfit.said
    assert misfit.fix == "a tensor is written as [0.05, 0.95], or with rows of one length"


@pytest.mark.parametrize(
    ("name", "value", "said", "fix"),
    [
        ("width", "3", 'must be a whole number, not "3"', "write it without quotes: 3"),
        ("width", "3_0", 'must be a whole number, not "3_0"', "write it without quotes: 30"),
        ("width", 3.0, "must be a whole number, not 3.0", "write 3"),
        ("width", "-007", 'must be a whole number, not "-007"', "write -7"),
        ("width", 3.5, "must be a whole number, not 3.5", ""),
        ("width", True, "must be a whole number, not true", ""),
        ("width", [3], "must be a whole number, not [3]", "write 3, without brackets"),
        (
            "rate",
            "fast",
            'must be a number, not "fast"',
            "a number is written as 0.01, 1e-2 or 10",
        ),
        ("on", 1, "must be true or false, not 1", "write true"),
        ("on", "true", 'must be true or false, not "true"', "write it without quotes: true"),
        ("name", 3, "must be a string, not 3", 'write it in quotes: "3"'),
        ("name", True, "must be a string, not true", 'write it in quotes: "true"'),
        ("names", "a", 'must be a list, not "a"', 'write a list: ["a"]'),
        ("betas", [0.9], "must have 2 items, not [0.9]", ""),
        ("betas", [], "must have 2 items, not []", ""),
        ("betas", [1, 2, 3], "must have at most 2 items, not [1, 2, 3]", ""),
        ("act", "rleu", 'must be "relu" or "gelu", not "rleu"', "did you mean `relu`?"),
        ("norm", "bach", 'must be "batch" or "layer", not "bach"', "did you mean `batch`?"),
        ("head", {}, "must have a `size`, not {}", ""),
        ("head", {"size": 1, "nmae": "x"}, "must not have a key `nmae`", ""),
        ("closed", {"siez": 1}, "must not have a key `siez`", ""),
        ("head", 3, "must be a table, not 3", ""),
    ],
)
def test_what_does_not_fit_is_said_in_our_words_with_the_way_to_mend_it(
    name: str, value: object, said: str, fix: str
) -> None:
    (misfit,) = judge(name, value).misfits

    assert (misfit.said, misfit.fix) == (said, fix)


def test_the_part_that_does_not_fit_is_named() -> None:
    assert [misfit.inside for misfit in judge("betas", [0.9, "x"]).misfits] == [(1,)]
    assert [misfit.inside for misfit in judge("heads", [{"size": 1}, {"size": "x"}]).misfits] == [
        (1, "size")
    ]


@pytest.mark.parametrize("text", ["90 s", "1.5 min", "PT90S", "00:01:30"])
def test_a_timedelta_is_written_as_every_duration_here(text: str) -> None:
    assert judge("pause", text).value == timedelta(seconds=90)
    assert judge("pauses", {"a": text}).value == {"a": timedelta(seconds=90)}


@pytest.mark.parametrize("value", ["90", "soon", 90, 1.5])
def test_what_is_no_duration_is_told_how_one_is_written(value: object) -> None:
    (misfit,) = judge("pause", value).misfits

    assert 'must be a duration such as "90 s", "5 min", "2 h" or "1.5 d"' in misfit.said


REFUSED = object()
TEXTS = ("q,v", "[q,v]", "[q]", "q", "'a,b',c", "1,2", "[1,2]", "1", "true", "none", "'1'", "{a=1}")
READINGS: dict[Any, tuple[Any, ...]] = {
    str: (
        "q,v",
        REFUSED,
        REFUSED,
        "q",
        "'a,b',c",
        "1,2",
        REFUSED,
        "1",
        "true",
        "none",
        "1",
        REFUSED,
    ),
    int: (*[REFUSED] * 7, 1, *[REFUSED] * 4),
    float: (*[REFUSED] * 7, 1.0, *[REFUSED] * 4),
    bool: (*[REFUSED] * 8, True, *[REFUSED] * 3),
    list[str]: (
        *(["q", "v"], ["q", "v"], ["q"], REFUSED, ["a,b", "c"], ["1", "2"], ["1", "2"]),
        *[REFUSED] * 5,
    ),
    list[int]: (*[REFUSED] * 5, [1, 2], [1, 2], *[REFUSED] * 5),
    list[str] | None: (
        *(["q", "v"], ["q", "v"], ["q"], REFUSED, ["a,b", "c"], ["1", "2"], ["1", "2"]),
        *(REFUSED, REFUSED, None, REFUSED, REFUSED),
    ),
    str | list[str]: (
        *(REFUSED, ["q", "v"], ["q"], "q", REFUSED, REFUSED, ["1", "2"]),
        *("1", "true", "none", "1", REFUSED),
    ),
    tuple[str, int]: (*[REFUSED] * 5, ("1", 2), ("1", 2), *[REFUSED] * 5),
    dict[str, str]: (*[REFUSED] * 11, {"a": "1"}),
    int | None: (*[REFUSED] * 7, 1, REFUSED, None, REFUSED, REFUSED),
    Literal["q", "1"]: (*[REFUSED] * 3, "q", *[REFUSED] * 3, "1", REFUSED, REFUSED, "1", REFUSED),
    Any: (
        *("q,v", ["q", "v"], ["q"], "q", "'a,b',c", "1,2", [1, 2], 1, True, None, "1"),
        {"a": 1},
    ),
}


@pytest.mark.parametrize("from_outside", [False, True])
@pytest.mark.parametrize("hint", READINGS, ids=str)
def test_each_type_reads_each_text(
    hint: Any, from_outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(x: Any) -> None: ...

    target.__annotations__["x"] = hint
    signature = signature_of(target)
    assert signature is not None
    for text, value in zip(TEXTS, READINGS[hint], strict=True):
        monkeypatch.setenv("TYPED", text)
        root = loads(
            '[model]\ntype = "a.B"\nx = 0\n',
            ["model.x=${env:TYPED}" if from_outside else f"model.x={text}"],
        ).root
        node = get_at(root, ("model", "x"))
        assert node is not None
        found = judge_node(target, signature.by_keyword()["x"], node)

        if value is REFUSED:
            assert found.misfits, (hint, text, found.value)
        else:
            assert found.misfits == (), (hint, text, found.misfits)
            assert found.value == value and type(found.value) is type(value), (hint, text)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("name=123", "123"),
        ("name=true", "true"),
        ("name=1.50", "1.50"),
        ("name=none", "none"),
        ("name=a,b", "a,b"),
        ("betas=0.9,0.99", (0.9, 0.99)),
        ("betas=1,2,", (1.0, 2.0)),
        ("names=a,b", ["a", "b"]),
        ("width=3", 3),
        ("anything=1,2", "1,2"),
        ("norm=none", None),
    ],
)
def test_what_is_typed_is_read_by_the_type_of_its_parameter(argument: str, value: object) -> None:
    found = typed(argument)

    assert found.misfits == ()
    assert found.value == value
    assert type(found.value) is type(value)


def test_what_is_typed_and_fits_in_no_reading_is_shown_as_it_was_typed() -> None:
    (misfit,) = typed("betas=0.9").misfits

    assert misfit.said == "must be a list, not 0.9"


def test_the_settled_tree_holds_what_was_meant_and_needs_no_command_line() -> None:
    config = loads(
        '[a]\ntype = "torch.optim.AdamW"\nlr = 1\n[b]\ntype = "torch.nn.modules.pooling:MaxPool2d"\nkernel_size = 2\n'
        '[model]\ntype = "torch.nn.Linear"\nx = ["@a", "@b"]\n',
        ["a.betas=0.8,0.9"],
    )

    found = examine(config.root, user_dirs=[])

    assert plain(found.settle(config.root))["a"]["betas"] == [0.8, 0.9]
    assert plain(found.settle(config.root))["b"]["type"] == "torch.nn.modules.pooling:MaxPool2d"
    assert plain(found.canonical(config.root))["b"]["type"] == "torch.nn.MaxPool2d"
    assert isinstance(config.root, Table)
    assert plain(config.root)["a"]["betas"] == "0.8,0.9"


VALUES = ("no", "yes", "true", "a", "3", "1.10", True, False, 0, 1, 3, 1.1, 2.5)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["on", "name", "width", "rate", "names"])
def test_a_default_without_annotation_judges_a_scalar_as_an_annotation_does(
    name: str, value: object
) -> None:
    annotated, bare = judge(name, value), judge(f"bare_{name}", value)

    allowed_of_numbers = (name == "width" and isinstance(value, float)) or (
        name == "names" and not isinstance(value, str)
    )
    if allowed_of_numbers:
        assert bare.misfits == () and bare.value == value
        return
    assert [each.said for each in bare.misfits] == [each.said for each in annotated.misfits]
    if not annotated.misfits:
        assert bare.value == annotated.value and type(bare.value) is type(annotated.value)


@pytest.mark.parametrize(
    "argument",
    ["name=0123", "name=1.10", "name=true", "name=12e4567", "names=a,b", "on=false", "width=3"],
)
def test_what_is_typed_is_read_by_the_type_of_a_default_as_by_an_annotation(argument: str) -> None:
    annotated, bare = typed(argument), typed(f"bare_{argument}")

    assert bare.misfits == annotated.misfits == ()
    assert (
        list(bare.value) == list(annotated.value)
        if "," in argument
        else (bare.value == annotated.value and type(bare.value) is type(annotated.value))
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bare_on", None),
        ("bare_width", [3, 3]),
        ("bare_width", 0.5),
        ("bare_name", {"a": 1}),
        ("bare_names", ["a"]),
        ("bare", "no"),
    ],
)
def test_a_default_says_less_than_an_annotation(name: str, value: object) -> None:
    found = judge(name, value)

    assert found.misfits == () and found.value == value


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("bare_on", "no", "write false"),
        ("on", "yes", "write true"),
        ("bare_name", 1.1, 'write it in quotes: "1.1"'),
        ("bare_width", "3", "write it without quotes: 3"),
        ("bare_width", "same", "annotate `bare_width` if it takes other types than its default's"),
    ],
)
def test_a_scalar_of_another_type_than_the_default_is_told_with_a_fix(
    name: str, value: object, fix: str
) -> None:
    (misfit,) = judge(name, value).misfits

    assert misfit.fix == fix
