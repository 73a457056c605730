from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import user_modules
from assay.config.user_modules import TargetLocation, UserModules


def modules(folder: Path, **files: str) -> UserModules:
    for name, text in files.items():
        path = folder / (name.replace("__", "/", 1) if name.startswith("pack__") else name)
        path = path.with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return UserModules((folder, folder / "src"))


def names(found: TargetLocation | None) -> set[str]:
    assert found is not None
    assert found.module is not None
    assert found.module.names is not None
    return set(found.module.names)


def test_every_way_to_bind_a_name_at_top_level_is_seen(tmp_path: Path) -> None:
    text = """
import os, torch.nn as nn
import numpy.linalg
from x import y, z as w
def f(): inner = 1
async def g(): ...
class C:
    inside = 1
a = b = 1
c, (d, *e) = 1, (2, 3)
h: int = 1
f.attribute = 2
if a:
    i = 1
else:
    j = 1
try:
    k = 1
except ImportError:
    l = 1
finally:
    m = 1
for n in ():
    o = 1
with open("x") as q:
    p = 1
match a:
    case 1:
        r = 1
"""
    found = modules(tmp_path, user=text).find("user.C")

    assert names(found) == set("fgCabcdehijklmnopryw") | {"os", "nn", "numpy"}
    assert found is not None
    assert found.rest == ("C",)


@pytest.mark.parametrize(
    "text",
    [
        "from x import *",
        "def __getattr__(name): ...",
        "globals()['C'] = 1",
        "globals().update(C=1)",
    ],
)
def test_a_module_that_cannot_be_known_is_not_judged(tmp_path: Path, text: str) -> None:
    found = modules(tmp_path, user=text).find("user.C")

    assert found is not None
    assert found.module is not None
    assert found.module.names is None


def test_packages_and_their_modules_are_followed(tmp_path: Path) -> None:
    found = modules(tmp_path, pack____init__="A = 1", pack__net="class Net: ...", space="x = 1")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "inner.py").write_text("class In: ...")
    (tmp_path / "empty").mkdir()

    assert names(found.find("pack.A")) == {"A"}
    assert names(found.find("pack.net.Net")) == {"Net"}
    assert names(found.find("pack.net:Net.make")) == {"Net"}
    assert names(found.find("bare.inner.In")) == {"In"}
    lost = found.find("bare.iner.In")
    assert lost is not None
    assert (lost.module, lost.folder, lost.rest) == (None, tmp_path / "bare", ("iner", "In"))
    whole = found.find("bare")
    assert whole is not None
    assert whole.rest == ()
    assert found.find("empty.X") is None
    assert found.find("nothing.X") is None
    assert found.names() == ["pack", "space"]


def test_the_first_folder_wins_and_later_ones_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "user.py").write_text("second = 1")
    (tmp_path / "src" / "other.py").write_text("only = 1")
    found = modules(tmp_path, user="first = 1")

    assert names(found.find("user.x")) == {"first"}
    assert names(found.find("other.x")) == {"only"}


@pytest.mark.parametrize(
    ("text", "error"),
    [("def f(:\n", "invalid syntax"), ("x = '\x00'", "null bytes"), ("x = " + "(" * 5000, "")],
)
def test_a_file_that_cannot_be_parsed_says_why(tmp_path: Path, text: str, error: str) -> None:
    found = modules(tmp_path, user=text).find("user.C")

    assert found is not None
    assert found.module is not None
    assert error in found.module.syntax_error
    assert found.module.syntax_error
    assert found.module.line >= 1


def test_a_huge_file_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_modules, "MAX_BYTES", 10)
    found = modules(tmp_path, user="x = 1  # and more").find("user.C")

    assert found is not None
    assert found.module is not None
    assert found.module.names is None
    assert not found.module.syntax_error


def test_user_code_is_parsed_and_never_run(tmp_path: Path) -> None:
    found = modules(tmp_path, user=f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: ...").find(
        "user.C"
    )

    assert names(found) == {"C"}
    assert not (tmp_path / "ran").exists()
