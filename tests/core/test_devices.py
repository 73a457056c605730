"""Lists of devices as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.devices import device_names
from assay.core.errors import InputError


@pytest.mark.row("D27")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("cpu", ["cpu"]),
        ("cuda", ["cuda"]),
        ("cuda:1", ["cuda:1"]),
        ("cuda:0,1", ["cuda:0", "cuda:1"]),
        ("cuda:0, cuda:2", ["cuda:0", "cuda:2"]),
        ("1,0", ["cuda:1", "cuda:0"]),
        ("0", ["cuda:0"]),
        ("cuda:1-3,5", ["cuda:1", "cuda:2", "cuda:3", "cuda:5"]),
        ("cpu,cuda:1", ["cpu", "cuda:1"]),
        ([0, 1], ["cuda:0", "cuda:1"]),
        (["cuda:1", "cpu"], ["cuda:1", "cpu"]),
        (2, ["cuda:2"]),
        ("tpu", ["tpu"]),  # whether there is such a kind is for torch to say
        ("cpu:x", ["cpu:x"]),
    ],
)
def test_a_list_of_devices_is_read(given: str | int | list[str | int], names: list[str]) -> None:
    assert list(device_names(given)) == names


@pytest.mark.row("D27")
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("cuda:0,0", "names cuda:0 twice"),
        ("cuda:0-2,1", "names cuda:1 twice"),
        ("cpu,cpu", "names cpu twice"),
        ("cuda:0,,1", "is no list of devices"),
        ("cuda:0,", "is no list of devices"),
        ("cuda:0,x y", "is no list of devices"),
        ("3-1", "is no list of devices"),
        ("0-99999999999", "is no list of devices"),
        ([0, -1], "is no list of devices"),
    ],
)
def test_what_is_no_list_of_devices_is_refused(given: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        device_names(given)

    assert caught.value.fix


@given(st.text())
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    try:
        assert device_names(text)
    except InputError as error:
        assert error.fix
