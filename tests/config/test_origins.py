"""Origins that are written down, and read again in another OS process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.config import dump, load
from assay.config.freeze import origins_of, with_origins
from assay.config.sources import toml
from assay.config.tree import Leaf, get_at, key_origin_at, same, walk

TEXT = """\
tag = "a"
[model]
type = "net.Net"
sizes = [1, { b = 2.5, c = "@none" }]
"""


def test_a_tree_that_is_read_from_its_dump_has_the_origins_of_its_file_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.toml").write_text(TEXT)
    root = load(tmp_path / "a.toml", ["model.sizes.1.b=3.5"]).root

    told = json.loads(json.dumps(origins_of(root)))
    again = with_origins(toml.read_toml(dump(root), "elsewhere.toml"), told)

    assert same(again, root)
    assert all(node.origin == get_at(root, path).origin for path, node in walk(again))
    assert key_origin_at(again, ("model", "type")) == key_origin_at(root, ("model", "type"))
    changed = get_at(again, ("model", "sizes", 1, "b")).origin
    assert (changed.source, changed.text, changed.replaced.line) == (
        "<cli>", "model.sizes.1.b=3.5", 4
    )  # fmt: skip


def test_a_value_from_outside_is_text_again_where_the_type_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AN_OUTSIDE_NAME", "0123")
    (tmp_path / "a.toml").write_text('[model]\ntype = "net.Net"\nname = "${env:AN_OUTSIDE_NAME}"\n')
    root = load(tmp_path / "a.toml").root

    told = json.loads(json.dumps(origins_of(root)))
    again = with_origins(toml.read_toml(dump(root), "elsewhere.toml"), told)

    name = get_at(again, ("model", "name"))
    assert name is not None
    assert (
        isinstance(name, Leaf)
        and name.typed == "0123"
        and name.origin.note == "from env:AN_OUTSIDE_NAME"
    )
