"""The route of a config through its room: a file that it comes back to again is one too many."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import assay
from assay.build import Context, build, check_signatures, user_code
from assay.config import Config, Leaf, List, Table, check_shape, load
from assay.config.tree import Setting

HOME = str(Path(assay.__file__).parent / "config")
PARTS = (Config, Table, List, Leaf, Setting)
ENTRIES = ("load", "read_all")
"""Functions that are handed a config as a path or a text."""

CONFIG = """\
[model]
type = "torch.nn.Linear"
in_features = 4
out_features = 2

[data.train]
source = { type = "data.Rows", count = 8 }
batch_size = 4

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }

[optimizer]
type = "torch.optim.SGD"
lr = 0.1

[train]
epochs = 1
"""


def stays(work: Callable[[], object]) -> list[str]:
    """Return the files of the room in which `work` hands a part of a config to a function.

    Calls in one file after the other are one stay. The tree is what is handed on, not a place.
    """
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        if event != "call" or not file.startswith(HOME) or file.endswith("tree.py"):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names if name != "self"]
        first = [item for item in given if isinstance(item, list | tuple) for item in item[:1]]
        is_entry = code.co_name in ENTRIES
        if is_entry or any(isinstance(each, PARTS) for each in [*given, *first]):
            name = Path(file).stem
            if not code.co_name.startswith("<") and found[-1:] != [name]:
                found.append(name)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_a_config_gets_from_its_file_to_a_constructor_in_two_dozen_stays(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("class Rows:\n    def __init__(self, count): ...\n")
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)

    def go() -> None:
        config = load(file, ["optimizer.lr=0.5"])
        problems = check_shape(config)
        problems += check_signatures(config.root, user_dirs=config.user_dirs)
        assert [problem for problem in problems if problem.severity == "error"] == []
        path = ("data", "train", "source")
        with user_code(config.user_dirs):
            source = config.root.items["data"].items["train"].items["source"]  # type: ignore[union-attr, index]
            build(source, Context(), root=config.root, path=path, user_dirs=config.user_dirs)

    go()  # what is read once, such as modules, is no part of the route
    route = stays(go)

    assert len(route) <= 24, " -> ".join(route)
    assert route.count("translation") <= 3, " -> ".join(route)
