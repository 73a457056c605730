"""One content is one tree, one canonical form and one hash, whichever way it was written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assay.config import (
    canonical,
    config_hash,
    dump,
    from_plain,
    load,
    loads,
    plain,
    same,
    seedless_hash,
)
from assay.config.loading import READERS
from assay.config.sources import objects, python
from assay.config.tree import Table
from assay.core.diagnostics import Origin
from languages import WRITERS

TRAPS = """@none @model ${a.b} null true yes 1 1e-3 .5 2024-01-31 50% %(x)s [1 ' " \\ ~ << größe"""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    [
        *TRAPS.split(),
        "",
        "a # b",
        "a ; b",
        "a: b",
        "- x",
        "x\ny",
        "\t",
        "\x00",
        "\x85",
        "\U0001f600",
    ]
)
KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True) | st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6
)
ZONES = st.none() | st.builds(
    timezone, st.integers(-14 * 60, 14 * 60).map(lambda m: timedelta(minutes=m))
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    TEXT,
    st.dates(),
    st.times(),
    st.datetimes(timezones=ZONES),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
SECTIONS = ["tag", "seed", "model", "data", "process", "optimizer", "schedule", "train"]
CONTENTS = st.dictionaries(st.sampled_from(SECTIONS) | KEYS, VALUES, max_size=5)


def trees(content: Mapping[str, Any]) -> dict[str, Table]:
    """The tree of every front end, each of them without a problem."""
    found: dict[str, Table] = {}
    for suffix, write in WRITERS.items():
        text = write(content)
        if suffix in READERS:
            found[suffix], problems = READERS[suffix](text, f"a{suffix}", excerpt=True)
        else:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"a{suffix}"
                read = python.read_all(text, f"a{suffix}", path=file, user_dirs=[Path(folder)])
                found[suffix], problems = read.root, read.problems
        assert problems == [], (suffix, text)
    found["mapping"], problems = objects.read_object(content, "<python>")
    assert problems == []
    return found


@pytest.mark.thorough
@given(CONTENTS)
@example(
    {"a": {"DEFAULT": 1}, "DEFAULT": {"x": 1}, "z": {"none": None, "off": "off", "zero": -0.0}}
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_front_end_reads_one_content_as_one_tree(content: dict[str, Any]) -> None:
    wanted = from_plain(content, Origin(source="<content>"))
    assert isinstance(wanted, Table)

    for suffix, tree in trees(content).items():
        assert same(tree, wanted), suffix
        assert canonical(tree) == canonical(wanted), suffix
        assert config_hash(tree) == config_hash(wanted), suffix
        assert seedless_hash(tree) == seedless_hash(wanted), suffix


DIGITS: dict[str, Any] = {
    "tag": "digits-cnn",
    "seed": 0,
    "model": {"type": "model.Net", "width": 32, "when": None},
    "data": {
        "train": {
            "source": {"type": "data.Digits", "split": "train", "shift": 2},
            "batch_size": 64,
            "shuffle": True,
        },
        "valid": {"source": {"type": "data.Digits", "split": "valid"}, "batch_size": 250},
    },
    "process": {
        "type": "assay.engine.Supervised",
        "criterion": {"type": "torch.nn.CrossEntropyLoss"},
    },
    "optimizer": {"type": "torch.optim.AdamW", "lr": 3e-3, "betas": [0.9, 0.999]},
    "train": {"epochs": 12, "clip_norm": float("inf")},
}


@pytest.mark.row("A06", "B02")
def test_one_config_in_five_languages_has_one_hash(tmp_path: Path) -> None:
    hashes = set()
    for suffix, write in WRITERS.items():
        file = tmp_path / f"digits{suffix}"
        file.write_text(write(DIGITS), encoding="utf-8")
        config = load(file)
        assert plain(config.root) == DIGITS
        hashes.add(config_hash(config.root))

    assert len(hashes) == 1


@pytest.mark.row("A07")
@pytest.mark.parametrize("suffix", list(WRITERS))
def test_none_infinity_and_dates_are_the_same_after_saving_and_loading(
    tmp_path: Path, suffix: str
) -> None:
    from datetime import UTC, date, datetime, time

    values = {
        "none": None,
        "inf": float("inf"),
        "minus": float("-inf"),
        "day": date(2024, 1, 31),
        "now": datetime(2024, 1, 31, 7, 32, 0, 5, tzinfo=UTC),
        "at": time(7, 32),
    }
    file = tmp_path / f"a{suffix}"
    file.write_text(WRITERS[suffix]({"model": {"type": "model.Net", **values}}))

    read = load(file).root
    again = loads(dump(read)).root

    assert plain(read)["model"] == {"type": "model.Net", **values}
    assert {key: type(value) for key, value in plain(again)["model"].items() if key != "type"} == {
        key: type(value) for key, value in values.items()
    }
    assert same(read, again)
