"""Parameters from the command line: every form, every type kept, every mistake told at once."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import BaseParams, Params
from assay.config.params.coercion import parse_literal
from assay.core.errors import ConfigError


class Norm(enum.Enum):
    BATCH = "batch"
    LAYER = 2


class Mine(BaseParams):
    epochs = 10
    lr = 0.1
    shuffle = True
    name = "base"
    note: str | None = None
    clip: float | None = None
    mode: Literal["min", "max"] = "min"
    topk = (1, 2, 3)
    betas = (0.9, 0.99)
    pair: tuple[float, int] = (0.5, 1)
    words: list[str] = ["a"]  # noqa: RUF012
    mixed = [1, "a"]  # noqa: RUF012
    root = Path("/data")
    norm = Norm.BATCH
    day = date(2024, 1, 2)
    anything = None
    optim = {"lr": 0.009, "moment": 0.9}  # noqa: RUF012


@pytest.mark.row("C07")
@pytest.mark.parametrize(
    "argv",
    [
        ["--epoch=400", "--optim.lr=0.01"],
        ["epoch=400", "optim.lr=0.01"],
        ["--epoch", "400", "--optim.lr", "0.01"],
    ],
)
def test_dotted_names_are_set_from_the_command_line(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tutorial(Params):
        def __init__(self) -> None:
            super().__init__()
            self.optim_option(lr=0.1)

    monkeypatch.setattr(sys, "argv", ["p.py", *argv])
    params = Tutorial()

    assert params.from_args() is params
    assert (params.epoch, params.optim) == (400, {"lr": 0.01})


@pytest.mark.row("C08")
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("--epochs=1e3", 1000),
        ("--lr=1e-3", 0.001),
        ("--lr=1", 1.0),
        ("--lr=.5", 0.5),
        ("--lr=inf", float("inf")),
        ("--shuffle=False", False),
        ("--name=123", "123"),
        ("--name=none", "none"),
        ("--name='x y'", "x y"),
        ('--name="123"', "123"),
        ("--name=a,b", "a,b"),
        ("--name=", ""),
        ("--note=none", None),
        ("--note=5", "5"),
        ("--clip=1", 1.0),
        ("--clip=None", None),
        ("--mode=max", "max"),
        ("--topk=(1,5)", (1, 5)),
        ("--topk=[1, 5]", (1, 5)),
        ("--topk=1,5", (1, 5)),
        ("--topk=1,", (1,)),
        ("--topk=()", ()),
        ("--betas=0.9,1", (0.9, 1.0)),
        ("--pair=1,2", (1.0, 2)),
        ("--words=a,2", ["a", "2"]),
        ("--words=[a, b]", ["a", "b"]),
        ("--mixed=[1, true, 'x']", [1, True, "x"]),
        ("--root=/other", Path("/other")),
        ("--root=7", Path("7")),
        ("--norm=LAYER", Norm.LAYER),
        ("--norm=2", Norm.LAYER),
        ("--day=2025-03-04", date(2025, 3, 4)),
        ("--anything=(1, 'a', None)", (1, "a", None)),
        ("--anything={'a': {1: 2}}", {"a": {1: 2}}),
        ("--anything=abc", "abc"),
        ("--anything=[1,", "[1,"),
        ("--optim={'lr': 1}", {"lr": 1.0, "moment": 0.9}),
        ("--optim={lr = 1}", {"lr": 1.0, "moment": 0.9}),
        ("--optim=@delete", None),
        ("--mixed[0]=3", [3, "a"]),
        ("mixed.1=b", [1, "b"]),
    ],
)
def test_a_value_keeps_the_type_of_its_default(argument: str, value: Any) -> None:
    name = argument.removeprefix("--").split("=")[0].split("[")[0].split(".")[0]

    made = Mine().from_args([argument]).get(name)

    assert made == value
    assert type(made) is type(value) or isinstance(value, dict | Path)


@pytest.mark.row("C08")
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--lr=abc", "`lr` must be a number, not 'abc'"),
        ("--lr=true", "`lr` must be a number, not True"),
        ("--epochs=1.5", "`epochs` must be a whole number, not 1.5"),
        ("--epochs=none", "`epochs` must be a whole number, not None"),
        ("--shuffle=1", "`shuffle` must be true or false, not 1"),
        ("--clip=much", "`clip` must be a number or none, not 'much'"),
        ("--mode=mid", "`mode` must be one of 'min', 'max', not 'mid'"),
        ("--topk=5", "`topk` must be a tuple of whole numbers, not 5"),
        ("--topk=1,x", "`topk` must be a tuple of whole numbers, not '1,x'"),
        ("--pair=1,2,3", "`pair` must be a tuple of 2 values, not '1,2,3'"),
        ("--norm=GROUP", "`norm` must be one of BATCH, LAYER, not 'GROUP'"),
        ("--day=soon", "`day` must be a date, not 'soon'"),
        ("--optim=adam", "`optim` must be a table, not 'adam'"),
        ("--optim.lr=x", "`optim.lr` must be a number, not 'x'"),
        ("--optim={'lr': 'x'}", "`optim.lr` must be a number, not 'x'"),
        ("--mixed[5]=1", "`mixed` has no `5`"),
        ("--lr.x=1", "`lr` has no `x`"),
        ("--betas[0]=1", "`betas` is one value, so it has no `0`"),
        ("junk", "`junk` names no parameter"),
        ("-x", "`-x` names no parameter"),
        ("--lr", "`--lr` has no value"),
        ("--a..b=1", "`a..b` is no name of a parameter"),
        ("+lr=1", "`lr` is there already"),
        ("--load=1", "unknown parameter `load`"),
        ("+load=1", "`load` cannot be a parameter"),
        ("--lrr=@delete", "unknown parameter `lrr`"),
    ],
)
def test_what_does_not_fit_is_told_and_changes_nothing(argument: str, message: str) -> None:
    params = Mine()

    with pytest.raises(ConfigError) as caught:
        params.from_args(["--epochs=3", argument])

    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.origin.source == "<cli>"
    assert params == Mine()


@pytest.mark.row("C09")
def test_a_new_name_is_refused_with_the_nearest_one_and_plus_declares_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Params().from_args(["--epoc=4"])
    assert str(caught.value) == (
        "error: unknown parameter `epoc`                                    [unknown-key]\n"
        " --> <cli>:1:3\n"
        "  |\n"
        "1 | --epoc=4\n"
        "  |   ^^^^\n"
        "  = did you mean `epoch`? +epoc=... declares a new one"
    )

    params = Params().from_args(["+new=1", "+optim.lr=0.1"])
    assert (params.new, params.optim.lr) == (1, 0.1)


def test_new_names_may_be_allowed_or_warned_of() -> None:
    with pytest.warns(
        UserWarning, match="unknown parameter `epoc`: it is added; did you mean `epoch`"
    ) as caught:
        params = Params().from_args(["--epoc=4"], unknown="warn")
    assert params.epoc == 4
    assert caught[0].filename == __file__

    assert Params().from_args(["--optim.lr=0.01"], unknown="allow").optim == {"lr": 0.01}


def test_all_mistakes_are_told_at_once() -> None:
    argv = ["--epochs=x", "--lrr=1", "junk", "--optim.lr=a", "--shuffle=yes please"]

    with pytest.raises(ConfigError) as caught:
        Mine().from_args(argv)

    places = {
        (problem.kind, problem.origin.text, problem.origin.column)
        for problem in caught.value.problems
    }
    assert places == {
        ("wrong-type", "--epochs=x", 10),
        ("unknown-key", "--lrr=1", 3),
        ("syntax", "junk", 1),
        ("wrong-type", "--optim.lr=a", 12),
        ("wrong-type", "--shuffle=yes please", 11),
    }


def test_a_flag_alone_is_true_and_takes_no_value() -> None:
    params = Mine(shuffle=False).from_args(["--shuffle", "--lr", "-1", "name=x"])

    assert (params.shuffle, params.lr, params.name) == (True, -1.0, "x")


def test_the_last_of_two_wins() -> None:
    assert Mine().from_args(["--lr=1", "--lr=2"]).lr == 2.0


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    class Asking(BaseParams):
        root: Path
        width: int
        depth: int = 1

    with pytest.raises(AttributeError, match="`root` has no value"):
        _ = Asking().root
    with pytest.raises(ConfigError) as caught:
        Asking().from_args(["--width=x"])
    assert {problem.key for problem in caught.value.problems} == {"root", "width"}
    params = Asking().from_args(["--width=3", "--root=/data"])
    assert params.to_dict() == {"depth": 1, "width": 3, "root": Path("/data")}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="ascii")),
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner)
        ),
    )
)
def test_what_python_writes_is_read_back(value: object) -> None:
    params = BaseParams()
    params.x = None

    text = repr(value)

    made = params.from_args([f"--x={text}"]).x
    # Python has no literal for inf; and what is TOML too is read as TOML, where '\\n' is two
    # characters.
    if "inf" not in text and "\\" not in text:
        assert made == value and repr(made) == text


@given(st.text())
def test_no_text_breaks_the_command_line(text: str) -> None:
    for name in Mine():
        try:
            Mine().from_args([f"--{name}={text}"])
        except ConfigError as error:
            assert error.problems
    try:
        Mine().from_args([text])
    except ConfigError as error:
        assert error.problems


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_stays_text_where_text_is_wanted(number: float) -> None:
    assert Mine().from_args([f"--name={number}"]).name == str(number)


def test_deep_nesting_stays_text() -> None:
    assert parse_literal("(" * 100_000) == "(" * 100_000
    assert parse_literal("[" * 10_000 + "]" * 10_000).startswith("[[")


def test_a_declared_table_without_a_default_is_made_by_what_is_given_inside() -> None:
    class Asking(BaseParams):
        options: dict

    assert Asking().from_args(["--options.a.b=1"]).options == {"a": {"b": 1}}


def test_annotations_of_every_kind_are_kept_to() -> None:
    class Mine(BaseParams):
        share: Annotated[float, "from 0 to 1"] = 0.5
        either: int | str = 1
        several: list[int | None] = [1]  # noqa: RUF012
        thing: object = None
        options: Mapping[str, int] = {}
        path: Path | None = None

    argv = [
        "--share=1",
        "--either=x",
        "--several=1,none",
        "--thing=[1]",
        "--options={'a': 1}",
        "--path=/x",
    ]
    made = Mine().from_args(argv)

    assert made.to_dict() == {
        "share": 1.0,
        "either": "x",
        "several": [1, None],
        "thing": [1],
        "options": {"a": 1},
        "path": Path("/x"),
    }
    with pytest.raises(ConfigError, match="`share` must be a number"):
        made.from_args(["--share=x"])


def test_an_annotation_that_cannot_be_resolved_gives_way_to_the_default() -> None:
    class Mine(BaseParams):
        lr: Unheard = 0.1  # type: ignore[name-defined]  # noqa: F821

    assert Mine().from_args(["--lr=1"]).lr == 1.0
    with pytest.raises(ConfigError, match="must be a number"):
        Mine().from_args(["--lr=x"])
