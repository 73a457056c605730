from __future__ import annotations

import gc
import importlib
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.build import RegistryError, register, user_code
from assay.build.registry import Names, registry

Write = Callable[..., Path]


class EvalPipe: ...


class DataPipe: ...


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is not seen by the next one."""
    monkeypatch.setattr(registry, "_process", Names(lambda _: True))


@pytest.mark.row("A03")
def test_names_of_different_kinds_do_not_meet_and_are_automatic_or_written() -> None:
    @register(EvalPipe)
    class Collect: ...

    @register(DataPipe, "Collect")
    class Gather: ...

    @register("small", kind=DataPipe)
    def small() -> None: ...

    @register
    class Alone: ...

    @register()
    def by_itself() -> None: ...

    assert registry.get("Collect", EvalPipe) is Collect
    assert registry.get("Collect", "DataPipe") is Gather
    assert registry.get("small", DataPipe) is registry.get("small") is small
    assert registry.get("Alone") is Alone and registry.get("by_itself") is by_itself
    assert isinstance(Alone(), Alone) and isinstance(Collect(), Collect)
    assert [each.name for each in registry.all(DataPipe)] == ["Collect", "small"]
    assert "small" in registry and "large" not in registry
    with pytest.raises(RegistryError, match="More than one thing is registered as `Collect`"):
        registry.get("Collect")


@pytest.mark.row("A03")
def test_a_name_given_twice_is_told_with_both_places(write: Write) -> None:
    first = "from assay.build import register\n\nclass EvalPipe: ...\n\n@register(EvalPipe)\nclass Collect: ...\n"
    second = "from assay.build import register\nfrom a import EvalPipe\n@register(EvalPipe, 'Collect')\nclass B: ...\n"
    project = write(a=first, b=second)

    with user_code([project]), pytest.raises(RegistryError) as caught:
        importlib.import_module("b")

    assert "`Collect` of kind EvalPipe is registered twice" in str(caught.value)
    assert f"{project / 'a.py'}:5 and {project / 'b.py'}:3" in caught.value.where


@pytest.mark.row("A03")
def test_an_unknown_name_is_told_with_the_three_nearest() -> None:
    for name in ("EvalEpoch", "EvalEpochs", "EvalStep", "EvalSteps", "Display"):
        register(EvalPipe, name)(type(name, (), {}))

    with pytest.raises(RegistryError) as caught:
        registry.get("EvalEpohc", EvalPipe)

    assert "Nothing of kind EvalPipe is registered as `EvalEpohc`" in str(caught.value)
    assert caught.value.fix.count("`") == 6
    assert "`EvalEpoch`" in caught.value.fix and "`Display`" not in caught.value.fix
    with pytest.raises(RegistryError, match="registered are: Display, EvalEpoch"):
        registry.get("zzz")
    with pytest.raises(RegistryError) as caught:
        registry.get("EvalEpoch", DataPipe)
    assert caught.value.fix == ""


def test_names_given_in_the_users_folders_are_forgotten_with_their_run(write: Write) -> None:
    project = write(nets="from assay.build import register\n@register('small')\nclass Small: ...\n")
    other = write(
        "other", nets="from assay.build import register\n@register('small')\nclass Small: ...\n"
    )
    register("mine")(EvalPipe)

    for folder in (project, other):
        with user_code([folder]):
            small = weakref.ref(importlib.import_module("nets").Small)
            assert registry.get("small") is small()
        assert "small" not in registry and "mine" in registry
        gc.collect()
        assert small() is None


def test_two_runs_in_two_threads_see_their_own_names(write: Write) -> None:
    barrier, seen = threading.Barrier(2, timeout=60), {}

    def work(number: int) -> None:
        module = f"nets{number}"
        source = f"from assay.build import register\n@register('net')\nclass Net:\n    number = {number}\n"
        project = write(f"project{number}", **{module: source})
        barrier.wait()
        with user_code([project]):
            importlib.import_module(module)
            barrier.wait()
            seen[number] = registry.get("net").number
            barrier.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {1: 1, 2: 2}


def test_the_same_definition_run_again_takes_the_place_of_the_old_one() -> None:
    def define() -> Any:
        @register("net")
        class Net: ...

        return Net

    old = define()
    new = define()

    assert registry.get("net") is new is not old


@pytest.mark.parametrize("wrong", [3, ["name"]])
def test_what_is_neither_name_nor_kind_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a name or a kind"):
        register(wrong)
    with pytest.raises(TypeError, match="a class or a function"):
        register("name")(wrong)
