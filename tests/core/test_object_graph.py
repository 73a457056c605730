from __future__ import annotations

import functools
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from assay.core import object_graph
from assay.core.errors import InputError


class Model:
    """What must be found."""


class Slots:
    __slots__ = ("deep", "empty")

    def __init__(self, deep: Any) -> None:
        self.deep = deep


@dataclass
class Pipe:
    stages: list[Any] = field(default_factory=list)
    by_name: dict[str, Any] = field(default_factory=dict)
    owner: Any = None

    def stage(self) -> None: ...


def closure(inner: Any) -> Any:
    return lambda: inner


MODEL = Model()


@pytest.mark.parametrize(
    ("thing", "way"),
    [
        (MODEL, ""),
        (Pipe(stages=[1, Pipe(owner=MODEL)]), ".stages[1].owner"),
        (Pipe(by_name={"a": (1, MODEL)}), ".by_name['a'][1]"),
        (Pipe(owner=Slots(deque([MODEL]))), ".owner.deep[0]"),
        (Pipe(owner={MODEL}), ".owner{...}"),
        (Pipe(owner=Pipe(owner=MODEL).stage), ".owner.__self__.owner"),
        (Pipe(owner=closure(MODEL)), ".owner(inner)"),
        (Pipe(owner=functools.partial(print, 1, MODEL)), ".owner.args[1]"),
        (Pipe(owner=functools.partial(print, end=MODEL)), ".owner.keywords['end']"),
        (Pipe(owner=lambda x=MODEL: x), ".owner.__defaults__[0]"),
    ],
)
def test_what_is_held_is_found_with_the_shortest_way_to_it(thing: Any, way: str) -> None:
    assert object_graph.path_to(thing, {"model": MODEL}) == object_graph.Held(name="model", way=way)


def uses_a_global() -> Model:
    return MODEL


@pytest.mark.parametrize(
    "thing", [Pipe(), [1, "a", None], Model(), uses_a_global, Pipe(owner=uses_a_global)]
)
def test_what_is_not_held_or_only_named_is_not_found(thing: Any) -> None:
    assert object_graph.path_to(thing, {"model": MODEL}) is None


def test_a_logger_is_sent_by_its_name_and_holds_nothing() -> None:
    handler = logging.NullHandler()
    handler.model = MODEL  # type: ignore[attr-defined]
    logger = logging.getLogger("test_reach")
    logger.addHandler(handler)
    try:
        assert object_graph.path_to(Pipe(owner=logger), {"model": MODEL}) is None
    finally:
        logger.removeHandler(handler)


def test_things_in_circles_end_and_so_do_endless_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = Pipe()
    circle.stages = [circle, Pipe(owner=circle)]
    assert object_graph.path_to(circle, {"model": MODEL}) is None

    monkeypatch.setattr(object_graph, "MAX_OBJECTS", 100)
    many = Pipe(stages=[Pipe() for _ in range(1000)], owner=Slots(MODEL))
    assert object_graph.path_to(many, {"model": MODEL}) is None


def test_nothing_of_the_objects_own_code_is_run() -> None:
    class Angry:
        def __init__(self) -> None:
            self.inner = MODEL

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __iter__(self) -> Any:
            raise AssertionError

    assert object_graph.path_to(Angry(), {"model": MODEL}) == object_graph.Held(
        name="model", way=".inner"
    )


def test_the_error_names_the_path_and_what_is_held() -> None:
    with pytest.raises(InputError) as caught:
        object_graph.check_for_workers(
            Pipe(stages=[Pipe(owner=MODEL)]), "data.train.source", {"model": MODEL}
        )

    assert "`data.train.source.stages[0].owner` holds the model of the run" in str(caught.value)
    object_graph.check_for_workers(Pipe(), "data.train.source", {"model": MODEL})
