from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from assay.build.signatures import check_signatures
from assay.build.targets import find_target, resolve
from assay.config.isolation import is_user_module, roots_of, user_code
from assay.config.tree import Table, from_plain
from assay.core.code_places import lies_under
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

Write = Callable[..., Path]


def test_two_runs_with_different_code_under_one_name_never_share_it(write: Write) -> None:
    one, two = write("one", shared_name="VALUE = 1"), write("two", shared_name="VALUE = 2")

    seen = []
    for folder in (one, two, one):
        with user_code([folder]):
            seen.append(importlib.import_module("shared_name").VALUE)

    assert seen == [1, 2, 1]
    assert "shared_name" not in sys.modules


def test_a_target_is_looked_up_once_while_the_code_is_open_and_anew_afterwards(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write(model="class Net: ...")
    with user_code([project]):
        net = find_target("model.Net", user_dirs=[project])
        with monkeypatch.context() as patch:
            patch.setattr(
                "os.path.realpath", lambda path: pytest.fail(f"{path} is looked at again")
            )
            assert find_target("model.Net", user_dirs=[project]) is net

    write(model="class Net:\n    layers = 2\n")
    importlib.invalidate_caches()
    other = resolve("model.Net", user_dirs=[project])
    assert other is not net and other.layers == 2


def test_packages_and_folders_without_init_leave_too(write: Write) -> None:
    project = write(nets__big="X = 1")
    (project / "loose").mkdir()
    (project / "loose" / "part.py").write_text("Y = 2")

    with user_code([project]):
        importlib.import_module("nets.big")
        importlib.import_module("loose.part")

    assert not {"nets", "nets.big", "loose", "loose.part"} & sys.modules.keys()


def test_a_user_module_named_like_a_loaded_package_wins_and_the_package_comes_back(
    write: Write,
) -> None:
    installed = ModuleType("taken_name")
    sys.modules["taken_name"] = installed
    sys.modules["taken_name.part"] = ModuleType("taken_name.part")
    project = write(taken_name="VALUE = 'mine'")

    try:
        with user_code([project]):
            assert importlib.import_module("taken_name").VALUE == "mine"
            assert "taken_name.part" not in sys.modules
        assert sys.modules["taken_name"] is installed
        assert "taken_name.part" in sys.modules
    finally:
        del sys.modules["taken_name"], sys.modules["taken_name.part"]


def test_what_the_script_had_imported_is_as_it_was_afterwards(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write(scripted="class Net: pass")
    monkeypatch.syspath_prepend(project)
    before = importlib.import_module("scripted")

    with user_code([project]):
        inside = importlib.import_module("scripted")

    assert inside is not before
    assert sys.modules.pop("scripted") is before


def test_opened_again_with_the_same_folders_it_changes_nothing(write: Write) -> None:
    project = write(once="X = 1")

    with user_code([project]):
        first = importlib.import_module("once")
        with user_code([project]):
            assert importlib.import_module("once") is first
        assert sys.modules["once"] is first
        assert str(project) in sys.path

    assert "once" not in sys.modules


def test_sys_path_is_as_before_also_after_an_error(write: Write) -> None:
    project = write(anything="X = 1")
    before = list(sys.path)

    with pytest.raises(ZeroDivisionError), user_code([project]):
        assert sys.path[0] == str(project)
        raise ZeroDivisionError

    assert sys.path == before


def test_user_code_that_takes_its_folder_out_of_the_path_is_no_error(write: Write) -> None:
    project = write(anything="X = 1")

    with user_code([project]):
        sys.path.remove(str(project))

    assert str(project) not in sys.path


def test_the_standard_library_is_never_set_aside(write: Write) -> None:
    project = write(json="dumps = None")

    with user_code([project]):
        assert importlib.import_module("json") is json


def test_two_threads_with_their_own_module_of_one_name_are_told_to_take_turns(write: Write) -> None:
    one, two = write("one", clashing="X = 1"), write("two", clashing="X = 2")
    raised: list[InputError] = []

    def second() -> None:
        try:
            with user_code([two]):
                pass
        except InputError as error:
            raised.append(error)

    with user_code([one]):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    assert "clashing" in str(raised[0])
    assert str(two) not in sys.path


def test_a_venv_inside_the_users_folder_is_not_the_users_code(tmp_path: Path) -> None:
    roots = roots_of([tmp_path])

    assert lies_under(str(tmp_path / "model.py"), roots)
    assert lies_under(str(tmp_path / "src" / "model.py"), roots)
    assert not lies_under(
        str(tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "evil.py"), roots
    )
    assert not lies_under(str(tmp_path) + "-other/model.py", roots)


def test_the_standard_library_torch_and_assay_are_not_the_users_code_even_in_their_folder() -> None:
    roots = roots_of([Path("/")])

    assert not is_user_module(json, roots)
    assert not is_user_module(sys.modules["assay.config.isolation"], roots)
    assert not is_user_module(pytest, roots)


def test_a_config_beside_installed_code_still_has_user_code(tmp_path: Path) -> None:
    inside = tmp_path / "site-packages" / "demo"

    assert lies_under(str(inside / "model.py"), roots_of([inside]))


def test_odd_things_among_the_modules_are_not_asked_anything() -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("do not touch")

    class NoDict:
        __slots__ = ()

    odd = ModuleType("odd")
    odd.__dict__["__path__"] = 3

    assert not is_user_module(Lazy("lazy"), ("/",))
    assert not is_user_module(NoDict(), ("/",))  # type: ignore[arg-type]
    assert not is_user_module(odd, ("/",))


def test_importing_the_room_loads_neither_torch_nor_pydantic() -> None:
    script = "import sys, assay.build; print(sorted({'torch', 'pydantic', 'numpy'} & sys.modules.keys()))"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_user_module_named_like_one_of_pythons_that_nobody_loaded_leaves_too(
    write: Write,
) -> None:
    sys.modules.pop("this", None)
    project = write(this="class Net: pass")

    with user_code([project]):
        assert importlib.import_module("this").Net

    assert "this" not in sys.modules


def test_two_runs_in_one_thread_may_be_inside_each_other(write: Write) -> None:
    one, two = write("one", inner_name="X = 1"), write("two", inner_name="X = 2")

    with user_code([one]):
        first = importlib.import_module("inner_name")
        with user_code([two]):
            assert importlib.import_module("inner_name").X == 2
        assert importlib.import_module("inner_name") is first


def test_an_extension_module_in_the_users_folder_is_loaded_once_only(write: Write) -> None:
    project = write(own="X = 1")
    compiled = ModuleType("own_compiled")
    compiled.__file__ = str(project / f"own_compiled{EXTENSION_SUFFIXES[0]}")
    sys.modules["own_compiled"] = compiled

    try:
        with user_code([project]):
            assert sys.modules["own_compiled"] is compiled
        assert sys.modules["own_compiled"] is compiled
    finally:
        del sys.modules["own_compiled"]


def test_nothing_keeps_the_users_classes_when_the_run_is_over(write: Write) -> None:
    project = write(
        model="class Node:\n    def __init__(self, parent: 'Node | None' = None, size: int = 1): ...\n"
    )
    origin = Origin(source="x.toml")
    root = Table(
        {"model": from_plain({"type": "model.Node", "size": 2, "parent": 3}, origin)}, origin
    )

    with user_code([project]):
        assert [problem.kind for problem in check_signatures(root, user_dirs=[project])] == [
            "wrong-type"
        ]
        node = weakref.ref(importlib.import_module("model").Node)
        assert node() is not None
    gc.collect()

    assert node() is None
