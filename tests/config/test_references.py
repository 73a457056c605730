from __future__ import annotations

import re
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.config.references import Uses, escape, objects_used, outside_used, run_of
from assay.config.resolver import (
    Draws,
    asks_machine,
    draw_random,
    resolve_references,
    with_external_values,
    with_machine,
)
from assay.config.sources.toml import read_toml
from assay.config.tree import (
    Leaf,
    Table,
    dotted,
    from_plain,
    get_at,
    literal,
    plain,
    reference_of,
    same,
)
from assay.core.diagnostics import Origin, Problem

HERE = Origin(source="<test>", line=1, column=1)


def tree(value: dict[str, Any]) -> Table:
    node = from_plain(value, HERE)
    assert isinstance(node, Table)
    return node


def made(value: dict[str, Any]) -> Any:
    root, problems = resolve_references(tree(value))
    assert [problem.message for problem in problems] == []
    return plain(root)


def wrong(text: str) -> list[Problem]:
    return resolve_references(read_toml(text, "<test>", excerpt=True))[1]


def test_a_string_that_is_one_reference_takes_the_value_with_its_type() -> None:
    value = {"a": {"n": 3, "f": 0.5, "t": True, "none": None, "list": [1, 2]}}

    assert made({**value, "x": "${a.n}", "y": "${ a.f }"}) == {**value, "x": 3, "y": 0.5}
    assert made({**value, "x": "${a.t}", "y": "${a.none}"}) == {**value, "x": True, "y": None}
    assert made({**value, "x": "${a.list}", "y": "${a.list[1]}"}) == {**value, "x": [1, 2], "y": 2}
    assert made({**value, "x": "${a}", "y": "${a.list.0}"}) == {**value, "x": value["a"], "y": 1}


def test_a_reference_inside_text_becomes_text() -> None:
    value = {"n": 3, "f": inf, "t": False, "s": "x", "none": None}
    text = "${s}-${n}, ${f} ${t} ${none}!"

    assert made({**value, "text": text})["text"] == "x-3, inf false none!"


def test_references_lead_on_to_other_references() -> None:
    assert (
        made({"a": "${b}", "b": "${c.d}", "c": {"d": "${e}", "e": 0}, "e": "x${f}", "f": 1})["a"]
        == "x1"
    )
    assert made({"a": "${t}", "t": {"x": "${b}"}, "b": 2})["a"] == {"x": 2}


def test_the_escapes_mean_the_characters() -> None:
    kept = {"a": "$${HOME}", "b": "@@home", "c": "cost: $5", "d": "a}"}

    assert made(kept) == kept
    assert {key: literal(value) for key, value in kept.items()} == {
        "a": "${HOME}",
        "b": "@home",
        "c": "cost: $5",
        "d": "a}",
    }
    assert literal(3) == 3


@given(st.text(st.sampled_from("@${}a"), max_size=8))
def test_what_is_escaped_means_itself_and_refers_to_nothing(text: str) -> None:
    root = tree({"a": escape(text)})

    again, problems = resolve_references(root)

    assert problems == []
    assert same(again, root)
    assert literal(plain(again)["a"]) == text


def test_text_put_together_never_becomes_a_reference_nobody_wrote() -> None:
    root, problems = resolve_references(
        tree({"a": "$", "x": "${a}{b}", "y": "${a}${c}", "b": 1, "c": "{b}", "@": "@@q"})
    )

    assert problems == []
    assert (literal(plain(root)["x"]), literal(plain(root)["y"])) == ("${b}", "${b}")
    assert made({"a": "@@q", "x": "mail: ${a}"})["x"] == "mail: @q"
    assert made({"n": "none", "x": "@${n}"})["x"] is None


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.text(st.sampled_from("$@{}ab"), max_size=8)
        | st.integers()
        | st.sampled_from(["${a}", "${b}", "${c}x", "y${a}", "@a", "@b.c", "$${a}", "${env:A}"]),
    )
)
def test_resolving_twice_is_resolving_once(value: dict[str, Any]) -> None:
    root, problems = resolve_references(tree(value))
    again, more = resolve_references(root)

    if not problems:
        assert more == []
        assert same(again, root)


def test_a_value_remembers_where_it_was_asked_for_and_where_it_came_from() -> None:
    root, _ = resolve_references(read_toml("a = 3\n[b]\nc = '${a}'\n", "<test>", excerpt=True))
    node = get_at(root, ("b", "c"))

    assert node is not None
    assert str(node.origin) == "<test>:3:5 (from a)"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            "abc = 1\nx = '${abd}'",
            "`${abd}` refers to nothing: there is no `abd`",
            "did you mean `abc`?",
        ),
        (
            "[m]\nwidth = 1\n[x]\ny = '${m.widht}'",
            "`${m.widht}` refers to nothing: there is no `widht` in `m`",
            "did you mean `width`?",
        ),
        ("a = [1]\nx = '${a[3]}'", "`${a[3]}` refers to nothing: there is no `3` in `a`", ""),
        ("a = 1\nx = '${a.b}'", "`${a.b}` refers to nothing: there is no `b` in `a`", ""),
        (
            "x = '${glob:datasets}'",
            "`${glob:datasets}` is no reference",
            "did you mean `${global:datasets}`?",
        ),
        (
            "x = 'a ${} b'",
            "`${}` is no reference",
            "write ${path.to.a.key}, ${.beside}, ${env:NAME}, ${env:NAME,default}, ${global:NAME}, ${random:int:0:9}, ${device:count} or"
            " ${length:data.train}, or $${ for the two characters",
        ),
        ("x = '${a'", "`${` is not closed", "write $${ for the two characters"),
        (
            "a = 1\nx = '${env:X,${a}}'",
            "a reference cannot stand inside another",
            "write the value in its place",
        ),
        (
            "[model]\n[x]\ny = '@modle'",
            "`@modle` refers to nothing: there is no `modle`",
            "did you mean `model`?",
        ),
        (
            "x = '@a b.'",
            "`@a b.` is no reference to an object",
            "write @path.of.a.section, or @@ for text that starts with @",
        ),
        ("t = {}\nx = 'a${t}'", "`t` is a table and cannot stand inside text", ""),
        ("t = []\nx = 'a${t}'", "`t` is a list and cannot stand inside text", ""),
    ],
)
def test_a_reference_that_leads_nowhere_is_told_with_what_was_meant(
    text: str, message: str, fix: str
) -> None:
    problems = wrong(text)

    assert [(problem.message, problem.fix) for problem in problems] == [(message, fix)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = '${a}'", "a value needs itself: a -> a"),
        ("a = '${b}'\nb = '${a}'", "a value needs itself: a -> b -> a"),
        ("a = 'x${b}'\nb = '${c}'\nc = 'y${a}'", "a value needs itself: a -> b -> c -> a"),
        ("[a]\nb = '${a}'", "a value needs itself: a.b -> a"),
        ("x = '${a}'\n[a]\nb = '${x}'", "a value needs itself: x -> a.b -> x"),
    ],
)
def test_values_that_need_themselves_are_told_once_with_the_whole_way(
    text: str, message: str
) -> None:
    assert [(problem.kind, problem.message) for problem in wrong(text)] == [
        ("reference-cycle", message)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nx = '@a'", "an object needs itself: a.x = @a -> a.x"),
        ("[a]\nx = '@b'\n[b]\ny = '@a'", "an object needs itself: a.x = @b -> b.y = @a -> a.x"),
        (
            "[a]\nx = ['@b.c']\n[b.c]\ny = '@a'",
            "an object needs itself: a.x.0 = @b.c -> b.c.y = @a -> a.x.0",
        ),
        ("a = '@a'", "an object needs itself: a = @a -> a"),
    ],
)
def test_objects_that_need_themselves_are_told_once_with_the_whole_way(
    text: str, message: str
) -> None:
    assert [(problem.kind, problem.message) for problem in wrong(text)] == [
        ("reference-cycle", message)
    ]


def test_an_object_used_twice_is_no_circle() -> None:
    assert wrong("[a]\nx = '@b'\ny = '@b'\nz = '@a.w'\nw = {}\n[b]\n[c]\nx = '@a'\ny = '@b'") == []


def test_two_circles_are_two_problems() -> None:
    assert len(wrong("a = '${b}'\nb = '${a}'\nc = '${c}'\n[d]\nx = '@d'\n[e]\nx = '@e'")) == 4


def test_a_long_chain_of_references_is_refused_and_not_a_crash() -> None:
    chain = {f"k{i}": f"${{k{i + 1}}}" for i in range(5000)}
    _, problems = resolve_references(tree({**chain, "k5000": 1}))

    assert problems
    assert {problem.kind for problem in problems} == {"reference-cycle"}


def test_a_few_lines_cannot_ask_for_a_billion_values() -> None:
    rows = {f"k{i:02}": [f"${{k{i + 1:02}}}"] * 10 for i in range(12)}
    _, problems = resolve_references(tree({**rows, "k12": 1}))
    assert "too-large" in {problem.kind for problem in problems}

    texts = {f"k{i:02}": f"${{k{i + 1:02}}}" * 10 for i in range(12)}
    _, problems = resolve_references(tree({**texts, "k12": "0123456789"}))
    assert "too-large" in {problem.kind for problem in problems}


def test_an_object_reference_is_recognised() -> None:
    assert reference_of(Leaf("@model.encoder", HERE)) == ("model", "encoder")
    assert reference_of(Leaf("@@model", HERE)) is None
    assert reference_of(Leaf("model", HERE)) is None
    assert reference_of(Leaf(3, HERE)) is None
    assert reference_of(tree({})) is None
    with pytest.raises(ValueError, match="not a path"):
        reference_of(Leaf("@", HERE))


def test_names_in_use_are_known() -> None:
    root = tree(
        {
            "a": "${base.x} ${env:Y} $${no}",
            "base": {"x": "${base.y}", "y": 1},
            "m": ["@model", "@", "@@n"],
        }
    )

    assert Uses().names(root) == {"base"}
    assert [(dotted(path), dotted(target)) for path, target, _ in objects_used(root)] == [
        ("m.0", "model")
    ]


def test_the_environment_is_read_like_an_override_and_is_never_a_reference() -> None:
    root = tree(
        {
            "n": "${env:N}",
            "s": "${env:S}",
            "p": "${env:S}/x",
            "l": "${env:L}",
            "at": "${env:AT}",
            "k": ["${env:N}"],
        }
    )
    environ = {"N": "8", "S": "/data", "L": "[1, 2]", "AT": "@model"}

    made, problems = with_external_values(root, environ, {})

    assert problems == []
    values = plain(made)
    assert {key: values[key] for key in ("n", "s", "p", "l", "k")} == {
        "n": 8,
        "s": "/data",
        "p": "/data/x",
        "l": [1, 2],
        "k": [8],
    }
    assert literal(values["at"]) == "@model"
    assert (
        literal(plain(with_external_values(tree({"a": "${env:AT}!"}), environ, {})[0])["a"])
        == "@model!"
    )
    assert plain(resolve_references(root)[0]) == plain(root)
    assert (
        plain(with_external_values(tree({"a": "${b} $${env:N}${env:N}"}), environ, {})[0])["a"]
        == "${b} $${env:N}8"
    )


@pytest.mark.parametrize(
    ("reference", "unset"),
    [
        ("${env:X,64}", 64),
        ("${env:X, 64 }", 64),
        ("${env:X,'64'}", "64"),
        ("${env:X,none}", None),
        ("${env:X,}", ""),
        ("${env:X,a, b}", "a, b"),
        ("at ${env:X,64} of it", "at 64 of it"),
        ("${global:X,false}", False),
    ],
)
def test_a_variable_that_is_not_set_has_its_default(reference: str, unset: object) -> None:
    root = tree({"a": reference})

    kept, problems = with_external_values(root, {}, {})
    is_set = with_external_values(root, {"X": "7"}, {"X": 7})[0]

    assert problems == [] and plain(kept) == {"a": unset}
    assert plain(is_set) == {"a": "at 7 of it" if "of it" in reference else 7}
    assert plain(resolve_references(root)[0]) == plain(root)


def test_a_default_for_a_key_that_is_a_text_stays_one() -> None:
    root = tree({"tag": "${env:X,12}", "desc": "${env:X,'12'}"})

    assert plain(with_external_values(root, {}, {})[0]) == {"tag": "12", "desc": "12"}


WORDS = ("env", "evn", "global", "globl", "random", "randm", "length", "device", "oc.env", "", "a")
RESTS = (
    ":",
    ":X",
    ":1X",
    ":X,",
    ":X,{",
    ":int:0",
    ":int:0:9",
    ":data.train",
    ":data",
    ":count",
    ".",
)


@given(st.sampled_from(WORDS), st.sampled_from(RESTS), st.sampled_from(["", " ", "x", ",y", ":"]))
@settings(max_examples=300, deadline=None)
def test_what_is_suggested_for_a_malformed_reference_is_another_one_and_is_right(
    word: str, rest: str, more: str
) -> None:
    text = f"${{{word}{rest}{more}}}"

    for problem in resolve_references(tree({"x": text}))[1]:
        suggested = re.findall(r"did you mean `([^`]*)`", problem.fix)
        assert text not in suggested
        for other in suggested:
            if other.startswith("${"):
                again = resolve_references(draw_random(tree({"x": other}), Draws())[0])[1]
                assert again == []


def test_a_missing_environment_variable_is_named() -> None:
    _, problems = with_external_values(
        tree({"a": "${env:DATAS}", "b": "x${env:Q}"}), {"DATA": "x"}, {}
    )

    assert [(problem.message, problem.fix) for problem in problems] == [
        ("the environment variable `DATAS` is not set", "did you mean `DATA`?"),
        ("the environment variable `Q` is not set", "export Q=..."),
    ]


def test_a_global_keeps_its_type_and_is_never_a_reference() -> None:
    variables = {
        "n": 8,
        "root": "/data",
        "at": "@model",
        "rows": ["a", "${x}"],
        "when": {"b": "@c"},
    }
    root = tree(
        {
            "n": "${global:n}",
            "p": "${ global:root }/x",
            "at": "${global:at}",
            "rows": "${global:rows}",
            "when": "${global:when}",
            "in": "x${global:n}",
        }
    )

    made, problems = with_external_values(root, {}, variables)

    assert problems == []
    values = plain(made)
    assert (values["n"], values["p"], values["in"]) == (8, "/data/x", "x8")
    assert literal(values["at"]) == "@model"
    assert [literal(each) for each in values["rows"]] == ["a", "${x}"]
    assert literal(values["when"]["b"]) == "@c"
    assert resolve_references(made)[1] == []
    assert outside_used(root) == [
        "global:n",
        "global:root",
        "global:at",
        "global:rows",
        "global:when",
    ]


def test_a_global_that_is_not_set_says_how_to_set_it() -> None:
    root = tree({"a": "${global:datasets}", "b": "${global:rot}", "c": "x${global:rows}"})

    _, problems = with_external_values(root, {}, {"root": 1, "rows": []})

    assert [(problem.message, problem.fix) for problem in problems] == [
        ("the global `datasets` is not set", "assay config set --global datasets VALUE"),
        ("the global `rot` is not set", "did you mean `root`?"),
        ("the global `rows` is a list or table and cannot stand inside text", ""),
    ]


def test_a_random_number_lies_between_its_ends_and_is_drawn_once_for_each_place() -> None:
    spec = {
        "a": "${random:int:3:5}",
        "b": ["${random:float:0.5:1}"],
        "t": "run-${random:int:0:9}",
        "c": "${a}",
    }
    draws = Draws()

    first, problems = draw_random(tree(spec), draws)
    again, _ = draw_random(tree(spec), draws)

    assert problems == []
    assert same(first, again)
    values = plain(resolve_references(first)[0])
    assert values["a"] in (3, 4, 5) and isinstance(values["a"], int)
    assert 0.5 <= values["b"][0] <= 1 and isinstance(values["b"][0], float)
    assert values["t"] in {f"run-{i}" for i in range(10)}
    assert values["c"] == values["a"]
    assert {plain(draw_random(tree(spec), Draws())[0])["a"] for _ in range(200)} == {3, 4, 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${random:int:5:3}", "`${random:int:5:3}` has its least above its greatest"),
        ("${random:int:0:1.5}", "`${random:int:0:1.5}` does not stand between two whole numbers"),
        ("${random:float:0:inf}", "`${random:float:0:inf}` has its least above its greatest"),
        ("x${random:choice:a:b}", "`${random:choice:a:b}` asks for no random number"),
    ],
)
def test_a_random_number_that_cannot_be_drawn_is_told_once(text: str, message: str) -> None:
    root, problems = draw_random(tree({"a": text}), Draws())

    assert [problem.message for problem in problems] == [message]
    assert resolve_references(root)[1] == []


def test_the_address_of_a_run_is_data() -> None:
    assert run_of("run:last@best") == "last@best"
    assert run_of("@run") is run_of("last") is run_of(3) is None
    assert made({"weights": "run:best:valid/acc"}) == {"weights": "run:best:valid/acc"}


def test_what_only_the_machine_knows_waits_for_it() -> None:
    root = tree(
        {
            "n": "${device:count}",
            "tag": "on-${device:count}$${device:count}",
            "copy": "${n}",
            "m": 1,
        }
    )

    waiting, problems = resolve_references(root)
    known = with_machine(waiting, {"device:count": 4})

    assert problems == []
    assert plain(waiting) == {**plain(root), "copy": "${device:count}"}
    assert (
        asks_machine(waiting)
        and not asks_machine(known)
        and not asks_machine(tree({"a": "$${device:count}"}))
    )
    assert plain(known) == {"n": 4, "tag": "on-4$${device:count}", "copy": 4, "m": 1}
    assert known.items["n"].origin.note == "known by ${device:count}"
    assert known.items["m"] is waiting.items["m"]
    (problem,) = resolve_references(tree({"a": "${device:cout}"}))[1]
    assert problem.message == "`${device:cout}` is no reference"
    assert "${device:count}" in problem.fix


def test_a_list_from_outside_is_read_like_an_override() -> None:
    root = tree({"a": "${env:A}", "evaluate": {"splits": "${env:B}"}, "d": "${env:C,[x,'y,z']}"})

    made, problems = with_external_values(root, {"A": "[@model,'a,b']", "B": "valid,test"}, {})

    assert problems == []
    assert plain(made) == {
        "a": ["@@model", "a,b"],
        "evaluate": {"splits": ["valid", "test"]},
        "d": ["x", "y,z"],
    }


def test_half_a_list_from_outside_is_refused_unless_it_is_a_secret() -> None:
    root = tree({"a": "${env:A}", "b": "${env:API_TOKEN}", "c": "of ${env:A}"})

    made, problems = with_external_values(root, {"A": "[a", "API_TOKEN": "(x"}, {})

    assert plain(made) == {"a": "${env:A}", "b": "(x", "c": "of [a"}
    (problem,) = problems
    assert problem.message == "`[a` has no `]` at its end, the value of `A`"
    assert problem.fix.startswith("write [a], or in quotes for a text")


def test_a_variable_is_text_where_text_is_wanted() -> None:
    root = tree(
        {
            "tag": "${env:N}",
            "evaluate": {"every": "${env:N}"},
            "seed": "${env:N}",
            "model": {"name": "${env:N}"},
        }
    )

    made, _ = with_external_values(root, {"N": "123"}, {})

    assert plain(made) == {
        "tag": "123",
        "evaluate": {"every": "123"},
        "seed": 123,
        "model": {"name": 123},
    }
    name = get_at(made, ("model", "name"))
    assert isinstance(name, Leaf) and name.typed == "123"
