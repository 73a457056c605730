"""Short names are found by parsing: no module of the user's runs, and every name has its place."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from assay.build import user_code
from assay.build.targets import TargetError, find_target
from assay.config import check_shape, open_text
from assay.config.user_modules import UserModules

NETS = """
import sys
sys.modules["imported"] = 1
import assay.build as b
from assay.build import register
from assay.build import register as named
from elsewhere import register as other

class Pipe: ...

@register
class Plain: ...

@register("tiny")
class Tiny: ...

@named(Pipe, "cut")
def cut_pipe(): ...

@b.register(name="small", kind=Pipe)
class Small:
    @staticmethod
    @register("inner")
    def made(): ...

if True:
    @register(Pipe)
    class Branch: ...

@other("foreign")
class Foreign: ...

def outer():
    @register("hidden")
    class Hidden: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path, text in {
        "nets.py": NETS,
        "src/deep/part.py": 'from assay.build import register\n@register("resnet18")\ndef resnet(): ...\n',
        "venv/pyvenv.cfg": "",
        "venv/lib.py": 'from assay.build import register\n@register("of_an_environment")\ndef f(): ...\n',
        "broken.py": "from assay.build import register\ndef f(:\n",
    }.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(textwrap.dedent(text))
    return tmp_path


def modules(project: Path) -> UserModules:
    return UserModules((project, project / "src"))


def test_every_way_of_registering_is_found_and_nothing_else(project: Path) -> None:
    found = modules(project).registered

    assert {name: [(one.kind, one.target) for one in same] for name, same in found.items()} == {
        "Plain": [("", "nets.Plain")],
        "tiny": [("", "nets.Tiny")],
        "cut": [("Pipe", "nets.cut_pipe")],
        "small": [("Pipe", "nets.Small")],
        "inner": [("", "nets:Small.made")],
        "Branch": [("Pipe", "nets.Branch")],
        "resnet18": [("", "deep.part.resnet")],
    }
    assert str(found["tiny"][0].origin) == f"{project / 'nets.py'}:15:7"


def test_a_file_that_changes_is_read_again(project: Path) -> None:
    before = modules(project).registered
    (project / "nets.py").write_text(
        'from assay.build import register\n@register("another")\ndef f(): ...\n'
    )

    assert "tiny" in before
    assert sorted(modules(project).registered) == ["another", "resnet18"]


def test_a_registered_name_is_a_target_and_only_its_module_is_imported(project: Path) -> None:
    (project / "raises.py").write_text("raise RuntimeError\n")
    config = open_text('[model]\ntype = "resnet18"\n')

    assert check_shape(config) == []
    with user_code(config.user_dirs):
        assert find_target("resnet18", user_dirs=config.user_dirs).__module__ == "deep.part"


def test_an_unknown_name_gets_the_three_nearest(project: Path) -> None:
    text = "".join(f'@register("resnet{n}")\ndef f{n}(): ...\n' for n in (34, 50, 101))
    (project / "more.py").write_text(f"from assay.build import register\n{text}")

    (problem,) = check_shape(open_text('[model]\ntype = "resnet1"\n'))

    assert problem.message == "nothing is registered as `resnet1`, and it names no module"
    assert problem.fix == "did you mean `resnet18`, `resnet101` or `resnet50`?"
    with pytest.raises(TargetError, match="did you mean `resnet18`, `resnet101` or `resnet50`"):
        find_target("resnet1", user_dirs=(project, project / "src"))


def test_a_name_that_is_given_twice_is_refused_with_both_places(project: Path) -> None:
    (project / "again.py").write_text(
        'from assay.build import register\n@register("tiny")\nclass Second: ...\n'
    )

    (problem,) = check_shape(open_text('[model]\ntype = "tiny"\n'))

    assert problem.message == "`tiny` is registered twice: again.py:3:7 and nets.py:15:7"
    assert problem.fix == 'write "again.Second" or "nets.Tiny"'
    assert [str(note.origin) for note in problem.related] == ["again.py:3:7", "nets.py:15:7"]
    with pytest.raises(TargetError, match="registered more than once"):
        find_target("tiny", user_dirs=(project, project / "src"))


def test_a_name_under_two_kinds_is_told_with_the_kinds_and_how_to_say_which(project: Path) -> None:
    (project / "more.py").write_text(
        "from assay.build import register\nclass Net: ...\n@register(Net, 'small')\nclass Slim: ...\n"
    )

    (problem,) = [
        each
        for each in check_shape(open_text('[model]\ntype = "small"\n'))
        if each.kind == "duplicate-name"
    ]

    assert (
        "registered twice, as" in problem.message
        and "Net" in problem.message
        and "Pipe" in problem.message
    )
    assert "a config cannot tell which is meant" in problem.message
    assert "more.Slim" in problem.fix and "nets.Small" in problem.fix


@pytest.mark.parametrize(
    ("imported", "mark"),
    [
        ("import alchemy", "alchemy.AlchemyTask"),
        ("import alchemy.task", "alchemy.task.AlchemyTask"),
        ("from alchemy import task as tasks", "tasks.AlchemyTask"),
    ],
)
def test_a_class_is_registered_through_the_module_of_its_kind(
    tmp_path: Path, imported: str, mark: str
) -> None:
    text = f"{imported}\n\n\n@{mark}.register('Tagging')\nclass Tagging: pass\n"
    (tmp_path / "task.py").write_text(text, encoding="utf-8")

    assert [*UserModules([tmp_path]).registered] == ["Tagging"]
