from __future__ import annotations

from dataclasses import fields

import pytest

from assay.core.keys import Key, keys_of, read_section
from assay.core.schema import SECTIONS
from assay.core.sections import ParallelSection, StandardSections, TrainSection


def test_an_empty_config_has_the_default_of_every_key() -> None:
    sections = read_section(StandardSections, {})

    def compare(section: object, keys: tuple[Key, ...]) -> int:
        count = 0
        for key in keys:
            value = getattr(section, key.name)
            if key.kind == "table" and value is not None:
                count += compare(value, key.keys)
            elif key.default is not None and value is not None:
                assert value == key.default, key.name
                count += 1
        return count

    assert compare(sections, SECTIONS) > 20


def test_every_field_of_a_section_is_a_key_of_the_schema() -> None:
    assert [each.name for each in fields(TrainSection)] == [
        key.name for key in keys_of(TrainSection)
    ]
    assert [each.name for each in fields(StandardSections)] == [key.name for key in SECTIONS]


def test_none_is_as_good_as_not_given() -> None:
    given = read_section(TrainSection, {"precision": None, "epochs": 2, "accumulate": None})

    assert given == TrainSection(epochs=2)
    assert given.precision == "fp32"


def test_a_text_stands_for_the_path_of_load_weights() -> None:
    sections = read_section(StandardSections, {"load_weights": "a.safetensors"})

    assert sections.load_weights is not None
    assert sections.load_weights.path == "a.safetensors"
    assert read_section(StandardSections, {}).load_weights is None


def test_splits_keep_their_names_and_order() -> None:
    data = {"train": {"batch_size": 4}, "valid": {"batch_size": 2, "workers": 1}}

    sections = read_section(StandardSections, {"data": data})

    assert [(name, split.batch_size) for name, split in sections.data.items()] == [
        ("train", 4),
        ("valid", 2),
    ]
    assert [split.workers for split in sections.data.values()] == [0, 1]


@pytest.mark.parametrize(
    ("given", "axes"), [({}, {}), ({"data": 1}, {"data": 1}), ({"tensor": 2}, {"tensor": 2})]
)
def test_only_axes_that_are_given_count(given: dict[str, int], axes: dict[str, int]) -> None:
    assert ParallelSection(**given).axes == axes
