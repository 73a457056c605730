from __future__ import annotations

import inspect
from collections import UserDict
from typing import Any

from assay.build import configurable, instantiate
from assay.build.marks import is_configurable


class Net:
    @configurable
    def __init__(self, num_classes: int = 10, width: int = 8) -> None:
        self.all = (num_classes, width)


class FromConfig:
    @configurable
    def __init__(self, size: int, name: str = "") -> None:
        self.all = (size, name)

    @classmethod
    def from_config(cls, cfg: Any) -> dict[str, Any]:
        return {"size": cfg.sizes.hidden * 2 if "sizes" in cfg else cfg["hidden"] * 2}


def test_a_mapping_stands_for_keyword_arguments_and_those_beside_it_win() -> None:
    assert Net({"num_classes": 3}).all == Net(num_classes=3).all == Net(3).all == (3, 8)
    assert (
        Net(UserDict(num_classes=3), width=4).all
        == Net(cfg={"num_classes": 3}, width=4).all
        == (3, 4)
    )
    assert Net().all == (10, 8)


def test_from_config_says_what_a_mapping_means() -> None:
    assert FromConfig({"hidden": 2}).all == FromConfig(4).all == (4, "")
    assert FromConfig({"hidden": 2}, name="x").all == (4, "x")
    assert FromConfig({"sizes": {"hidden": 2}}).all == (4, "")


def test_a_configurable_class_keeps_its_signature_and_is_built_like_any_other() -> None:
    assert list(inspect.signature(Net).parameters) == ["num_classes", "width"]
    assert is_configurable(Net) and not is_configurable(dict)
    assert instantiate(Net, {"num_classes": 3}).all == instantiate(Net, num_classes=3).all == (3, 8)
