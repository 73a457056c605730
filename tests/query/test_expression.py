"""Expressions: their meaning, and errors with their place."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.formats import run_file
from assay.formats.event_log import Edit
from assay.formats.run_file import Best
from assay.query.catalog import open_catalog
from assay.query.expression import (
    MAX_LENGTH,
    MAX_NESTING,
    MAX_TERMS,
    KnownNames,
    mentions,
    parse,
)
from assay.query.table import list_runs
from assay.store.conditions import Both, Condition, Either, Field, FieldComparison, Has, Not, OneOf
from assay.store.index import Moment, open_index
from assay.store.layout import Project
from expression_corpus import texts_of
from run_folders import edit, hold_lease, make_many, make_project, make_run

PARTS = [
    *["lr", "loss", "tag", "note", "model.hidden", "`lr`", "config.lr", "created", "age", "status"],
    *["=", "!=", "<", ">=", "~", "!~", "and", "or", "not", "in", "(", ")", "[", "]", ",", "!"],
    *["1", "1_", ".5", "1e9", "nan", "inf", "-", "none", "true", '"x"', "'", '"', "\\", "7d"],
    *["2026-11-20", "9" * 20, "9" * 5_000, "\ud83d", "\0", " ", " ", " ", "\n", "٣", "[1]"],
]
SRC = Path(__file__).resolve().parents[2] / "src"
NAMES = KnownNames(
    metrics=["train/loss", "valid/acc", "a-b", "weird name!"],
    results=["score"],
    config=["lr", "model.width", "model.type", "flag", "steps[0].type"],
    labels=["good"],
)


def ids(project: Project, where: str = "", **options: object) -> str:
    """The tags of the runs that are listed, in the order of the alphabet."""
    return "".join(sorted(row.tag for row in list_runs(project, where=where, **options).rows))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("four"))
    best = Best(metric="loss", mode="min", value=0.1, step=3)
    make_run(
        project,
        tag="a",
        points={"loss": [3, 0.5]},
        config='lr = 0.1\n[model]\nhidden = 64\ntype = "m.Net"\n',
    )
    make_run(
        project,
        tag="b",
        points={"loss": [2, 0.25]},
        config="lr = 0.01\n[model]\nhidden = 32\n",
        age_s=864_000,
    )
    folder = make_run(
        project,
        tag="c",
        points={"loss": [math.nan]},
        config="flag = true\n",
        status="failed",
        best=best,
    )
    edit(
        folder,
        [Edit(what="label", key="good", new=True), Edit(what="note", new="Look at the ZEBRA")],
    )
    hold_lease(
        make_run(
            project,
            tag="d",
            ran_s=None,
            config='betas = [0.9, 0.99]\nlr = "auto"\n',
            values={"score": 7},
        )
    )
    return project


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ('loss < 0.3 and model.hidden == 32 and status == "finished"', "b"),
        ("loss < 0.3", "b"),
        ("loss.max >= 3", "a"),
        ("loss", "abc"),
        ("not loss", "d"),
        ("loss.count = 2", "ab"),
        ("lr = 0.1", "a"),
        ("lr != 0.1", "bd"),
        ("lr <= 0.1", "ab"),
        ("lr = auto", "d"),
        ("not lr < 0.1", "acd"),
        ("config.lr > 1e-3 and not model.hidden in (32, 1)", "a"),
        ("model.hidden not in [32]", "a"),
        ("model.type ~ net", "a"),
        ("betas ~ 0.99", "d"),
        ("flag = true", "c"),
        ("flag = false", ""),
        ("status = failed or status = running", "cd"),
        ("status in (finished, killed)", "ab"),
        ("age < 7d", "acd"),
        ("age > 1w", "b"),
        ("created > 2020-01-01", "abcd"),
        ("duration < 2min and duration > 70s", "abc"),
        ("tag ~ A", "a"),
        ("tag !~ a", "bcd"),
        ("label = good", "c"),
        ("label", "c"),
        ("note ~ zebra", "c"),
        ("score > 6", "d"),
        ("best < 0.2", "c"),
        ("lr = none", "c"),
        ("a = 1 or b = 2", None),
        ("kind = train", "abcd"),
        ("(tag = a or tag = b) and not (lr > 0.05 or tag = c)", "b"),
        ("tag = a or tag = b and tag = c", "a"),
    ],
)
def test_an_expression_selects_the_runs_that_it_is_true_for(
    four: Project, where: str, expected: str | None
) -> None:
    if expected is None:
        with pytest.raises(InputError):
            ids(four, where)
    else:
        assert ids(four, where) == expected


def test_an_expression_never_becomes_code(four: Project) -> None:
    evil = "x' OR 1=1; DROP TABLE runs; --"

    assert ids(four, f'tag = "{evil}"') == ""
    assert ids(four, f'tag ~ "{evil}"') == ""
    assert ids(four) == "abcd"


def test_runs_are_found_without_an_index_as_well(four: Project, home: Path) -> None:
    (home / ".cache").write_text("a file where a folder should be")

    assert ids(four, "loss < 0.3 and lr < 1") == "b"
    assert ids(four, grep="zebra look") == "c"


@pytest.mark.row("C46")
def test_recent_leaves_out_what_is_older(four: Project) -> None:
    assert ids(four, recent=timedelta(days=1)) == "acd"
    assert ids(four, recent=timedelta(minutes=20)) == ""


@pytest.mark.parametrize(
    ("text", "what", "mark", "fix"),
    [
        (
            "train/los < 1",
            "no run has anything called `train/los`",
            "train/los",
            "did you mean `train/loss`?",
        ),
        (
            "lr < 1 and modle.width = 3",
            "called `modle.width`",
            "modle.width",
            "did you mean `model.width`?",
        ),
        (
            "valid/acc.median > 1",
            "a metric has no `median`",
            "valid/acc.median",
            ".last, .min, .max",
        ),
        (
            "status = finishd",
            "no run can have the status `finishd`",
            "finishd",
            "did you mean `finished`?",
        ),
        ("lr <", "a value is expected here, not the end", " ", ""),
        ("lr < 1 lr", "`lr` is not expected here", "lr", "`and` or `or`"),
        ("(lr < 1", "a `)` is missing before the end", " ", ""),
        ("0.1 < lr", "a name is expected here", "0.1", "write the name first"),
        ("lr > 0 < 1", "only two things are compared", "<", "`x > 0.1 and x < 0.5`"),
        ("lr & 2", "`&` has no meaning here", "&", "`backquotes`"),
        ('tag = "x', "the quotes are not closed", '"', ""),
        ("age < soon", "`age` is a number, `soon` is none", "soon", "30min"),
        ("valid/acc = good", "`valid/acc` is a number", "good", ""),
        ("tag < 3", "`tag` is a text", "3", "~"),
        ("valid/acc ~ 3", "`valid/acc` is a number: `~` looks into texts", "3", ""),
        ("created > yesterday", "`yesterday` is no date", "yesterday", "2026-11-20"),
        ("lr in 3", "a `(` is expected behind `in`", "3", "x in (1, 2)"),
        ("", "the expression is empty", " ", "valid/loss < 0.3"),
    ],
)
def test_a_mistake_is_shown_at_its_place_with_what_to_do(
    text: str, what: str, mark: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, NAMES)

    error = caught.value
    line, carets = error.where.split("\n")
    assert what in error.what[0].lower() + error.what[1:]
    assert line == text
    at = len(carets) - len(carets.lstrip()) - 7
    assert (line + " ")[at : at + carets.count("^")] == mark
    assert fix in error.fix


def test_a_mistake_in_a_long_expression_is_shown_on_one_line() -> None:
    text = " or ".join(["lr < 1"] * 40) + " or nothing < 3 or " + " or ".join(["lr < 1"] * 40)

    with pytest.raises(InputError) as caught:
        parse(text, NAMES)

    line, carets = caught.value.where.split("\n")
    assert len(line) <= 70
    assert line[carets.index("^") - 7 :].startswith("nothing")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("(" * 4000 + "lr", f"more than {MAX_NESTING} `not` and"),
        ("not " * 4000 + "lr", f"more than {MAX_NESTING} `not` and"),
        (" and ".join(["lr"] * 2000), f"more than {MAX_TERMS} parts"),
        ("lr in (" + "1, " * 6000 + "2)", "more than 1,000 values"),
    ],
)
def test_an_expression_without_end_is_refused_and_not_followed(text: str, bound: str) -> None:
    with pytest.raises(InputError, match=bound):
        parse(text, NAMES)


@pytest.mark.parametrize(
    "text", ["lr = 1" + "0" * MAX_LENGTH, "1" * 100_000 + "x", "(" * 100_000, "tag = a " * 20_000]
)
def test_an_expression_that_is_too_long_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(InputError, match="it has more than 20,000 characters") as caught:
        parse(text, NAMES)

    assert len(caught.value.where) < 200


@pytest.mark.parametrize("length", [100, MAX_LENGTH, 100_000])
def test_every_kind_of_text_is_answered_or_refused_in_words_at_once(
    four: Project, length: int
) -> None:
    catalog = open_catalog(four)
    index, names = open_index(four), catalog.names()
    moment = Moment(now_ns=time.time_ns(), states={})
    for kind, text in texts_of(length).items():
        begun = time.process_time()
        for read in (lambda text=text: parse(text, names), lambda text=text: mentions(text)):
            try:
                index.select(read(), moment)
            except InputError as error:
                assert len(str(error)) < 1_000, kind
        # A token that is read again from each of its characters takes ten seconds.
        assert time.process_time() - begun < 2, kind


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_any_row_of_parts_is_an_expression_that_can_be_asked_or_refused(
    four: Project, text: str
) -> None:
    try:
        ids(four, text)
    except InputError as error:
        assert error.what


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("lr < 99999999999999999999", "ab"),
        ("lr = 99999999999999999999", ""),
        ("lr > -1" + "0" * 5_000, "ab"),
        ("loss.count < 1e400", "abc"),
        ("created < 9999-12-31", "abcd"),
        ("created in (2020-01-01, 9999-12-31)", ""),
        ("age < " + "9" * 400 + "d", "abcd"),
        ("lr in (" + "1, " * 1_000 + "0.1)", "a"),
        (" and ".join(["lr < 1"] * MAX_TERMS), "ab"),
        (" or ".join(["lr = 0.1", *["not lr"] * (MAX_TERMS // 2 - 1)]), "ac"),
        ("not (" * (MAX_NESTING // 2) + "lr < 1" + ")" * (MAX_NESTING // 2), "ab"),
        ("lr and (loss or " * MAX_NESTING + "tag" + ")" * MAX_NESTING, "abd"),
    ],
)
def test_large_numbers_and_expressions_up_to_the_bounds_are_answered(
    four: Project, where: str, expected: str
) -> None:
    assert ids(four, where) == expected


@pytest.mark.parametrize("text", ["1__0", "1_", "1_.5", "5.__"])
def test_a_number_that_is_none_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError, match=f"`{text}` is no number"):
        parse(f"lr = {text}", NAMES)


def test_words_are_looked_for_up_to_a_bound(four: Project) -> None:
    assert ids(four, grep="zebra " * MAX_TERMS) == "c"
    with pytest.raises(InputError, match=f"At most {MAX_TERMS} words"):
        ids(four, grep="zebra " * 4_000)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
numeric = st.sampled_from(
    [
        *(Field("metric", name) for name in ("train/loss", "a-b", "weird name!")),
        *(Field("run", name) for name in ("best", "duration", "step")),
        Field("metric", "valid/acc", "max"),
    ]
)
textual = st.sampled_from(
    [Field("run", "tag"), Field("label"), Field("note"), Field("desc"), Field("run", "folder")]
)
anything = st.sampled_from(
    [Field("config", key) for key in NAMES.config] + [Field("result", "score")]
)
orders = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
leaves = (
    st.builds(FieldComparison, numeric, orders, numbers)
    | st.builds(FieldComparison, textual, st.sampled_from(["=", "!=", "~", "!~"]), texts)
    | st.builds(FieldComparison, anything, orders, numbers | texts | st.booleans())
    | st.builds(
        OneOf,
        anything,
        st.lists(numbers | texts | st.booleans(), min_size=1, max_size=3).map(tuple),
    )
    | st.builds(Has, anything | numeric | textual)
)
conditions = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Both, inner, inner) | st.builds(Either, inner, inner) | st.builds(Not, inner)
    ),
    max_leaves=8,
)


def write_name(field: Field) -> str:
    match field.kind:
        case "metric":
            suffix = "" if field.statistic == "last" else f".{field.statistic}"
            return f"`{field.name}{suffix}`"
        case "config":
            return f"`config.{field.name}`"
        case "label" | "note" | "desc":
            return field.kind
        case _:
            return f"`{field.name}`"


def write_value(value: object) -> str:
    return (
        repr(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else json.dumps(value, ensure_ascii=False)
    )


def write(condition: Condition) -> str:
    """Return a condition as an expression with a pair of brackets for each `and` and `or`."""
    match condition:
        case Either(left, right):
            return f"({write(left)} or {write(right)})"
        case Both(left, right):
            return f"({write(left)} and {write(right)})"
        case Not(inner):
            return f"not ({write(inner)})"
        case FieldComparison(field, operator, value):
            return f"{write_name(field)} {operator} {write_value(value)}"
        case OneOf(field, values):
            return f"{write_name(field)} in ({', '.join(map(write_value, values))})"
        case Has(field):
            return write_name(field)
        case _:
            raise AssertionError(condition)


@given(conditions)
def test_a_condition_that_is_written_parses_to_itself(condition: Condition) -> None:
    assert parse(write(condition), NAMES) == condition


@pytest.mark.slow
def test_two_thousand_runs_are_asked_without_opening_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_many(project, 2_000, "[model]\nwidth = {i}\n")
    assert len(list_runs(project).rows) == 2_000
    opened: list[Path] = []
    monkeypatch.setattr(run_file, "read", lambda folder: opened.append(folder))

    found = list_runs(
        project,
        where="loss < 600 and model.width >= 500 and status = finished",
        columns=["model.width"],
    )

    assert sorted(cells["model.width"] for cells in found.cells) == list(range(500, 600))
    assert opened == []


@pytest.mark.slow
def test_runs_are_asked_for_while_sixteen_processes_record_others_and_nothing_is_lost(
    project: Project,
) -> None:
    program = (
        "import sys, assay\n"
        "for i in range(2):\n"
        "    with assay.start('r', config={'i': i}, project=sys.argv[1]) as run:\n"
        "        for step in range(50): run.log({'loss': i + 1 / (step + 1)}, step)\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(SRC)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(project.root)], env=variables)
        for _ in range(16)
    ]
    while any(process.poll() is None for process in processes):
        list_runs(project, where="age < 1d and (status = running or status = finished)")

    assert [process.wait() for process in processes] == [0] * 16
    assert (
        len(list_runs(project, where="i = 1 and loss.count = 50 and status = finished").rows) == 16
    )
