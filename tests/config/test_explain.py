from __future__ import annotations

from assay.config import expand, loads, open_text, parse_dotted
from assay.config.explain import origin_steps

TEXT = """\
[base]
width = 8
deep = { x = 1 }
[model]
type = "a.B"
width = "${base.width}"
copy = "${base}"
seed = "${random:int:0:9}"
home = "${env:HOME}/x"
[variants.big]
model.width = 16
"""


def told(key: str, *overrides: str, variant: str = "") -> list[tuple[str, str, str]]:
    config = loads(TEXT, overrides, source="a.toml")
    (made,) = expand(config, [variant] if variant else [])
    return [
        (step.how, str(step.origin), step.text) for step in origin_steps(made, parse_dotted(key))
    ]


def test_every_place_that_set_a_value_is_named_the_winner_first() -> None:
    assert told("model.width", "model.width=3", variant="big") == [
        ("set", "<cli>:1:13", "model.width=3"),
        ("replaces", "a.toml:11:15 (variant big)", "model.width = 16"),
        ("replaces", "a.toml:6:9", 'width = "${base.width}"'),
    ]


def test_a_copied_value_leads_on_to_where_it_was_written() -> None:
    copied = ("set", "a.toml:6:9", 'width = "${base.width}"')
    assert told("model.width") == [copied, ("copies base.width", "a.toml:2:9", "width = 8")]
    assert told("model.width", "base.width=9") == [
        copied,
        ("copies base.width", "<cli>:1:12", "base.width=9"),
        ("replaces", "a.toml:2:9", "width = 8"),
    ]
    assert told("model.copy.deep.x") == [
        ("set", "a.toml:7:8", 'copy = "${base}"'),
        ("copies base", "a.toml:3:14", "deep = { x = 1 }"),
    ]


def test_what_comes_from_outside_or_is_drawn_says_so() -> None:
    assert [how for how, _, _ in told("model.seed")] == ["set", "drawn anew at each start"]
    assert told("model.home")[1] == ("takes the variable HOME", "the environment (HOME)", "")


def test_a_table_begins_where_its_key_is_written_and_nothing_has_no_place() -> None:
    assert told("model") == [("set", "a.toml:4:2", "[model]")]
    assert told("model.depth") == []


def test_values_in_a_circle_end() -> None:
    config = open_text("a = '${b}'\nb = '${a}'\n", source="a.toml")

    assert [step.how for step in origin_steps(config, ("a",))] == ["set", "copies b", "copies a"]
