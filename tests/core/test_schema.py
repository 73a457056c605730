from __future__ import annotations

from fractions import Fraction

import pytest

from assay.core import schema
from assay.core.keys import Key
from assay.core.schema import Period


def every_key(keys: tuple[Key, ...] = schema.SECTIONS, path: str = "") -> list[tuple[str, Key]]:
    return [
        pair
        for key in keys
        for pair in [(f"{path}{key.name}", key), *every_key(key.keys, f"{path}{key.name}.")]
    ]


def test_every_key_says_what_it_is_for_in_one_line() -> None:
    for path, key in every_key():
        assert key.doc.endswith("."), path
        assert "\n" not in key.doc, path


def test_every_default_is_a_value_the_key_would_take() -> None:
    for path, key in every_key():
        match key.kind, key.default:
            case _, None:
                pass
            case "period", str() as text:
                schema.parse_period(text)
            case "steps", str() as text:
                schema.parse_steps(text)
            case "duration", str() as text:
                schema.parse_duration_s(text)
            case ("choice", text) if text in key.choices:
                pass
            case ("int", word) if word in key.choices:
                pass
            case ("int", int() as number):
                assert key.minimum is None or number >= key.minimum, path
            case ("bool" | "switch", bool()) | ("text", str()):
                pass
            case _:
                pytest.fail(f"{path} has the default {key.default!r}")


def test_names_that_must_not_stand_in_a_file_are_no_sections() -> None:
    sections = {key.name for key in schema.SECTIONS}

    assert not sections & schema.LAUNCH.keys()


def test_what_does_not_change_the_weights_is_marked() -> None:
    assert {key.name for key in schema.SECTIONS if not key.weights} == {
        "tag",
        "desc",
        "runner",
        "threads",
        "evaluate",
        "checkpoint",
        "parallel",
        "log",
        "display",
        "trace",
    }


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (["train"], "table"),
        (["train", "epochs"], "int"),
        (["checkpoint", "best", "mode"], "choice"),
        (["data", "anything", "source"], "call"),
        (["data"], "tables"),
    ],
)
def test_a_standard_key_is_found_by_its_path(path: list[str | int], kind: str) -> None:
    found = schema.find(path)

    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    "path",
    [
        [],
        [0],
        ["trian"],
        ["train", "x"],
        ["train", 0],
        ["model", "width"],
        ["data", "train"],
        ["seed", "x"],
    ],
)
def test_what_is_not_standard_is_not_found(path: list[str | int]) -> None:
    assert schema.find(path) is None


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("1 epoch", 1, "epoch"),
        ("2 epochs", 2, "epoch"),
        ("0.25 epoch", Fraction(1, 4), "epoch"),
        ("1.5 epochs", Fraction(3, 2), "epoch"),
        ("2.0 epochs", 2, "epoch"),
        ("100 steps", 100, "step"),
        ("never", 0, "step"),
    ],
)
def test_periods_are_a_count_and_a_unit(text: str, count: int | Fraction, unit: str) -> None:
    period = schema.parse_period(text)

    assert (period.count, period.unit) == (count, unit)
    assert isinstance(period, Period)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "epoch",
        "0 epochs",
        "-1 steps",
        "1.5 steps",
        "0.0 epoch",
        ".5 epoch",
        "1 hour",
        "1 epoch ",
        "Never",
    ],
)
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no period"):
        schema.parse_period(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90 s", 90.0), ("5 min", 300.0), ("2h", 7200.0), ("1.5 d", 129600.0), ("0.5 s", 0.5)],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert schema.parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "90", "0 s", "-1 s", "1 m", "2 hours", "1e3 s", "inf s", "٣ s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        schema.parse_duration_s(text)
