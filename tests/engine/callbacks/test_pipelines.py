"""Pipelines: items called one after another at the begin and end of run, epoch and step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import InputError
from assay.engine import Pipelines, Save, Saver
from engine.toys import engine, loader

MOMENTS = ("begin_run", "begin_epoch", "begin_step", "end_step", "end_epoch", "end_run")


def noting(notes: list[Any], name: str) -> Callable[..., dict[str, Any]]:
    def item(**kwargs: Any) -> dict[str, Any]:
        notes.append((name, kwargs["state"].step, kwargs.get("handed")))
        return {**kwargs, "handed": name}

    return item


@pytest.mark.row("A62")
def test_items_are_called_in_order_and_each_gets_what_the_one_before_it_returned() -> None:
    notes: list[Any] = []
    pipelines = Pipelines(
        begin_epoch=[noting(notes, "one"), noting(notes, "two")],
        begin_step=[noting(notes, "three")],
        end_epoch=[noting(notes, "four")],
    )

    engine(train=loader(16, 8), epochs=2, handlers=pipelines.handlers()).run()

    assert notes == [
        *[
            ("one", 0, None),
            ("two", 0, "one"),
            ("three", 0, None),
            ("three", 1, None),
            ("four", 2, None),
        ],
        *[
            ("one", 2, None),
            ("two", 2, "one"),
            ("three", 2, None),
            ("three", 3, None),
            ("four", 4, None),
        ],
    ]


@pytest.mark.row("A62")
def test_there_is_one_at_each_begin_and_end() -> None:
    notes: list[Any] = []
    pipelines = Pipelines(**{moment: [noting(notes, moment)] for moment in MOMENTS})

    engine(train=loader(8, 8), epochs=1, handlers=pipelines.handlers()).run()

    assert [name for name, *_ in notes] == list(MOMENTS)


def test_the_arguments_of_an_item_need_not_be_those_of_the_first() -> None:
    seen: list[Any] = []

    class Narrows:
        def __call__(self, engine: Any, state: Any) -> dict[str, int]:
            return {"epoch": state.epoch}

    def last(epoch: int) -> dict[str, int]:
        seen.append(epoch)
        return {"epoch": epoch}

    engine(epochs=3, handlers=Pipelines(end_epoch=[Narrows(), last]).handlers()).run()

    assert seen == [1, 2, 3]


def test_an_exception_ends_the_run_and_names_the_item_and_its_pipeline() -> None:
    notes: list[Any] = []

    def fails(**kwargs: Any) -> Any:
        raise ZeroDivisionError("boom")

    pipelines = Pipelines(end_step=[noting(notes, "before"), fails, noting(notes, "after")])

    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        engine(handlers=pipelines.handlers()).run()

    assert caught.value.__notes__[0] == "in fails of the pipeline at step_end"
    assert notes == [("before", 1, None)]


@pytest.mark.parametrize("returned", [None, 3])
def test_an_item_that_returns_no_arguments_is_named(returned: Any) -> None:
    def forgets(**kwargs: Any) -> Any:
        return returned

    with pytest.raises(
        InputError, match="forgets of the pipeline at epoch_end returned a"
    ) as caught:
        engine(handlers=Pipelines(end_epoch=[forgets]).handlers()).run()

    assert "return kwargs" in caught.value.fix


def test_what_cannot_be_called_is_refused_when_it_is_given() -> None:
    with pytest.raises(InputError, match="The pipeline at run_end holds a int"):
        Pipelines(end_run=[3])  # type: ignore[list-item]


class Counting:
    """Item that counts its calls, with a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        self.calls += 1
        return kwargs

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_a_resumed_run_gives_the_items_their_state_back(tmp_path: Path) -> None:
    saver, first, second = Saver(tmp_path), Counting(), Counting()
    began = engine(train=loader(16, 8), epochs=2, handlers=Pipelines(end_step=[first]).handlers())
    began.bus.extend(Save(saver).handlers())
    began.run()

    resumed = engine(
        train=loader(16, 8), epochs=3, handlers=Pipelines(end_step=[second]).handlers()
    )
    resumed.resume(saver)
    resumed.run()

    assert (first.calls, second.calls) == (4, 6)
