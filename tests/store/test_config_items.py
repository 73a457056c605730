"""The items of a config are those of the whole file, however it is parsed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from assay.store.cells import to_cell
from assay.store.config_items import config_items

scalars = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            for i, each in enumerate(value):
                found |= leaves(
                    each if isinstance(each, dict) else {"": each}, f"{prefix}{key}[{i}]."
                )
        else:
            found[f"{prefix}{key}".rstrip(".")] = to_cell(value)
    return found


def items(text: str) -> dict[str, Any]:
    return {item.name: item.value for item in config_items(text)}


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_every_config_that_can_be_written_has_the_items_of_the_whole_file(
    config: dict[str, Any],
) -> None:
    text = tomli_w.dumps(config)

    assert items(text) == leaves(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        'text = """\n[table]\nkey = 1\n"""\nlast = 2\n',
        "a = [\n1,\n2,\n]\nb = 3\n",
        "[[list]]\na = 1\n[list.inner]\nb = 2\n[[list]]\na = 3\n",
        "# comment\n\n[a.'b.c']  # comment\nd.e = 1\n\n[f]\n",
        "[a]\nb = [\n    1,\n    2,\n]\nc = {d = 1}",
        "a = 1\r\n[b]\r\nc = 2\r\n",
    ],
)
def test_a_config_that_somebody_wrote_by_hand_has_the_items_of_the_whole_file(text: str) -> None:
    assert items(text) == leaves(tomllib.loads(text))


@pytest.mark.parametrize("text", ["a = ", "a = 1\n[b", 'a = """\nb = 1\n', "a = [\n1\n", "[]\n"])
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        items(text)


def test_a_key_that_values_were_copied_from_is_a_key_with_their_value() -> None:
    text = """
a = 1  # from env:X
text = "b  # from cv.text"
[data.train]
fold = 2  # from cv.fold
[[list]]
fold = 3  # from cv.other
[data.valid]
fold = 2  # from cv.fold
rate = 0.5  # from data.rate
rows = [
    1,  # from cv.row
]
"""

    found = list(config_items(text))

    configs = {item.name: item.value for item in found if item.kind == "config"}
    assert configs == leaves(tomllib.loads(text)) | {"cv.fold": 2, "data.rate": 0.5}
    assert {item.name: item.value for item in found if item.kind == "copy"} == {
        "data.train.fold": "cv.fold",
        "data.valid.fold": "cv.fold",
        "data.valid.rate": "data.rate",
    }
