"""Symbol table of alchemy: names, frames and members of the run that is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from assay.build import Context, ContextError, Promise, register
from assay.build.registry import registry
from assay.compat.alchemy.symbols import AbsentError, NoFrameError, SymbolTable, sym_tbl


@pytest.fixture
def table() -> Iterator[SymbolTable]:
    context = Context()
    with context.use():
        yield sym_tbl()
    context.close()


@pytest.mark.row("A19")
def test_set_try_set_and_force_set_where_nothing_is_and_where_something_is(
    table: SymbolTable,
) -> None:
    table.set("a", 1)
    assert table.try_set("b", 2) is True
    table.force_set("c", 3)
    assert [table.get(name) for name in "abc"] == [1, 2, 3]

    with pytest.raises(ContextError, match="`a` is set already"):
        table.set("a", 10)
    assert table.try_set("b", 20) is False
    table.force_set("c", 30)
    assert [table.get(name) for name in "abc"] == [1, 2, 30]


@pytest.mark.row("A20")
def test_get_raises_with_the_nearest_names_and_what_is_set_and_try_get_gives_the_default(
    table: SymbolTable,
) -> None:
    with pytest.raises(ContextError, match="Nothing is set as `writer`"):
        table.get("writer")
    table.set("writer", None)
    table.set("writes", 3)
    table.set("flag", True)

    assert table.get("writer") is None and table.try_get("writer", 5) is None
    assert table.try_get("nothing") is None and table.try_get("nothing", 5) == 5
    assert "writer" in table and "nothing" not in table
    with pytest.raises(ContextError) as caught:
        table.get("writre")
    assert "Nothing is set as `writre`" in str(caught.value)
    assert "did you mean `writes` or `writer`?" in caught.value.fix
    assert "set are: writer, writes, flag" in caught.value.fix


def test_none_is_a_value_that_conflicts(table: SymbolTable) -> None:
    table.set("accelerator", None)

    assert table.try_set("accelerator", 1) is False


def test_two_threads_that_try_to_set_at_once_do_not_both_succeed(table: SymbolTable) -> None:
    barrier, won = threading.Barrier(8, timeout=60), []

    def work(number: int) -> None:
        barrier.wait()
        if table.try_set("first", number):
            won.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert won == [table.get("first")]


@pytest.mark.row("A23")
def test_only_the_top_frame_is_local_and_it_goes_with_its_block_also_after_an_error(
    table: SymbolTable,
) -> None:
    with table.frame():
        table.set_local("x", 1)
        with pytest.raises(KeyError), table.frame():
            assert table.try_get_local("x") is None
            with pytest.raises(ContextError, match="Nothing is set as `x` in this frame"):
                table.get_local("x")
            table.set_local("x", 2)
            assert table.get_local("x") == 2
            raise KeyError
        assert table.get_local("x") == 1
        assert table.try_get("x") is None

    with pytest.raises(NoFrameError, match="No frame is open in which `x`"):
        table.get_local("x")
    for use in (table.set_local, table.try_set_local, table.force_set_local, table.try_get_local):
        with pytest.raises(NoFrameError):
            use("x", 1)


def test_a_local_name_is_set_like_a_global_one(table: SymbolTable) -> None:
    with table.frame() as local:
        local.set_local("x", 1)
        assert local.try_set_local("x", 2) is False and local.try_set_local("y", 3) is True
        with pytest.raises(ContextError, match="set already in this frame"):
            local.set_local("x", 4)
        local.force_set_local("x", 5)
        assert (local.get_local("x"), local.get_local("y")) == (5, 3)


def test_a_frame_belongs_to_its_run_and_its_thread(table: SymbolTable) -> None:
    other = Context()
    seen: list[Any] = []

    def work() -> None:
        with other.use():
            try:
                sym_tbl().get_local("x")
            except NoFrameError as error:
                seen.append(error)

    with table.frame():
        table.set_local("x", 1)
        with other.use(), pytest.raises(NoFrameError):
            sym_tbl().get_local("x")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert len(seen) == 1


@pytest.mark.row("A25")
def test_two_runs_interleaved_in_two_threads_see_their_own_config() -> None:
    barrier, seen = threading.Barrier(2, timeout=60), {1: set(), 2: set()}

    def work(number: int) -> None:
        context = Context()
        context.set("cfg", {"seed": number})
        with context.use():
            for i in range(20):
                barrier.wait()
                sym_tbl().force_set("mine", (number, i))
                barrier.wait()
                seen[number].add((sym_tbl().cfg["seed"], sym_tbl().get("mine") == (number, i)))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {1: {(1, True)}, 2: {(2, True)}}


def test_a_member_that_is_not_there_says_why(table: SymbolTable) -> None:
    with pytest.raises(AbsentError, match="Nothing is set as `optimizer`"):
        _ = table.optimizer

    context = Context()
    context.promise("model", Promise(paths=(("model",),)))
    context.promise("state", Promise(never="this is a test, which does not train"))
    with context.use():
        with pytest.raises(AbsentError, match="`model` is not there yet: it is made from `model`"):
            _ = sym_tbl().model
        with pytest.raises(
            AbsentError, match="no `state` here: this is a test, which does not train"
        ):
            _ = sym_tbl().train_sched
        with pytest.raises(ContextError, match="which does not train"):
            sym_tbl().get("state")
        assert sym_tbl().try_get("state", 3) == 3
        assert not hasattr(sym_tbl(), "train_sched") and "state" not in sym_tbl()
        sym_tbl().set("state", SimpleNamespace(epoch=2, step=7, loss=0.5))
        sched = sym_tbl().train_sched
        assert (sched.cur_epoch, sched.cur_step, sched.loss) == (2, 7, 0.5)


def test_a_member_that_does_not_exist_is_told_with_the_nearest(table: SymbolTable) -> None:
    with pytest.raises(AttributeError, match="did you mean `optimizer`"):
        _ = table.optimiser
    with pytest.raises(AttributeError, match=r"get\(\"writer\"\)"):
        _ = table.writer


@pytest.mark.row("A03")
def test_the_registry_survives_a_reset_and_the_rest_does_not(table: SymbolTable) -> None:
    names = registry.open(lambda file: file == __file__)
    try:

        @register("kept")
        class Kept: ...

        table.set("writer", object())

        table.reset()

        assert table.names() == []
        assert table.registry.get("kept") is Kept
    finally:
        registry.close(names)


def test_outside_of_a_run_a_script_keeps_names_of_its_own_and_resets_them() -> None:
    assert sym_tbl().try_set("writer", 1)
    assert sym_tbl().get("writer") == 1
    with pytest.raises(ContextError, match="model"):
        _ = sym_tbl().model

    sym_tbl().reset()

    assert sym_tbl().try_get("writer") is None
