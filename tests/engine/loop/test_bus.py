"""The event bus: who is called, when, in which order, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.core.events import NEVER, Always, At, Event, Every, Handler, When
from assay.engine import BatchDigest, EarlyStop, Evaluate
from assay.engine.loop.bus import Bus, Point, Stage, bind_by_name, event_named, on
from engine.toys import engine, loader


@pytest.fixture
def bus() -> Bus:
    return Bus(bind_by_name({"state": "the state", "engine": "the engine"}))


def fire(bus: Bus, event: Event, counts: range) -> None:
    """As the loop does: only when something is due."""
    point = bus.points[event]
    for count in counts:
        if point.due <= count:
            point.fire(count)


def noting(heard: list[Any], what: Any, **options: Any) -> Handler:
    """A handler of `step_end` that writes `what` down."""
    return Handler(event=Event.STEP_END, fn=lambda: heard.append(what), **options)


# --------------------------------------------------------------------------------------------------------------- order


def test_the_lower_priority_goes_first_then_whoever_came_earlier(bus: Bus) -> None:
    heard: list[str] = []
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", 5), ("f", -1)]:
        bus.add(noting(heard, name, priority=priority, name=name))

    fire(bus, Event.STEP_END, range(1, 3))

    assert heard == ["c", "f", "a", "d", "b", "e"] * 2
    assert [handler.name for handler in bus.order()] == ["c", "f", "a", "d", "b", "e"]


def test_the_order_lists_every_handler_event_by_event(bus: Bus) -> None:
    events = [Event.EXCEPTION, Event.STEP_END, Event.RUN_BEGIN, Event.STEP_END]
    handlers = [Handler(event=event, fn=print, name=str(i)) for i, event in enumerate(events)]

    bus.extend(handlers)

    assert bus.order() == [handlers[2], handlers[1], handlers[3], handlers[0]]


def test_only_the_event_that_a_handler_asked_for_calls_it(bus: Bus) -> None:
    heard: list[str] = []
    bus.add(noting(heard, "step"))

    for event in Event:
        if event is not Event.STEP_END:
            fire(bus, event, range(5))

    assert heard == []


# ---------------------------------------------------------------------------------------------------------------- when


@pytest.mark.row("D23")
@pytest.mark.parametrize(
    ("when", "counts"),
    [
        (Always(), list(range(13))),
        (Every(1), list(range(1, 13))),
        (Every(4), [4, 8, 12]),
        (Every(4, start=2), [2, 6, 10]),
        (At(frozenset({0, 3, 5})), [0, 3, 5]),
        (At(frozenset()), []),
    ],
)
def test_a_handler_is_called_at_its_counts_and_no_others(
    bus: Bus, when: When, counts: list[int]
) -> None:
    heard: list[int] = []
    now = [0]
    bus.add(Handler(event=Event.STEP_END, fn=lambda: heard.append(now[0]), when=when))
    point = bus.points[Event.STEP_END]

    for now[0] in range(13):
        if point.due <= now[0]:
            point.fire(now[0])

    assert heard == counts


@given(
    st.lists(
        st.one_of(
            st.just(Always()),
            st.builds(Every, st.integers(1, 6), st.integers(0, 5)),
            st.builds(At, st.frozensets(st.integers(0, 30))),
        ),
        max_size=4,
    ),
    st.integers(0, 20),
)
def test_asking_only_when_something_is_due_misses_nothing(whens: list[When], start: int) -> None:
    heard: list[tuple[int, int]] = []
    point, now, asked = Point(Event.STEP_END, Stage()), [0], []
    for number, when in enumerate(whens):
        handler = Handler(event=Event.STEP_END, fn=print, when=when)
        point.add(handler, lambda number=number: heard.append((now[0], number)))  # type: ignore[misc]
    point.start_at(start)

    for now[0] in range(start, 31):
        if point.due <= now[0]:
            asked.append(now[0])
            point.fire(now[0])

    expected = [
        (count, i)
        for count in range(start, 31)
        for i, when in enumerate(whens)
        if when.next(count) == count
    ]
    assert heard == expected
    assert asked == sorted({count for count, _ in expected})


def test_an_event_that_nobody_listens_to_is_never_due(bus: Bus) -> None:
    bus.add(Handler(event=Event.STEP_END, fn=print, when=At(frozenset({0}))))
    fire(bus, Event.STEP_END, range(1))

    assert {point.due for point in bus.points.values()} == {NEVER}


def test_a_run_that_goes_on_does_not_repeat_what_was_due_before(bus: Bus) -> None:
    heard: list[int] = []
    bus.add(noting(heard, 10, when=Every(10)))
    bus.add(noting(heard, 7, when=At(frozenset({7}))))
    bus.points[Event.STEP_END].start_at(25)

    fire(bus, Event.STEP_END, range(25, 41))

    assert heard == [10, 10]


# -------------------------------------------------------------------------------------------- added while under way


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_a_handler_added_by_another_one_is_called_from_the_next_time_on(
    bus: Bus, priority: int
) -> None:
    heard: list[Any] = []
    now = [0]

    def add() -> None:
        bus.add(noting(heard, "late", priority=priority, when=Every(2)))
        heard.append("add")

    bus.add(Handler(event=Event.STEP_END, fn=add, when=At(frozenset({4}))))
    bus.add(Handler(event=Event.STEP_END, fn=lambda: heard.append(now[0])))

    for now[0] in range(3, 8):
        fire(bus, Event.STEP_END, range(now[0], now[0] + 1))

    assert (
        heard
        == {
            -1: [3, "add", 4, 5, "late", 6, 7],
            0: [3, "add", 4, 5, 6, "late", 7],
            1: [3, "add", 4, 5, 6, "late", 7],
        }[priority]
    )


def test_a_handler_added_by_the_only_one_there_is_called_as_well(bus: Bus) -> None:
    heard: list[int] = []

    def add() -> None:
        bus.add(noting(heard, 1, priority=-1))

    bus.add(Handler(event=Event.STEP_END, fn=add, when=At(frozenset({4}))))
    fire(bus, Event.STEP_END, range(3, 8))

    assert heard == [1, 1, 1]


def test_a_handler_added_in_the_middle_of_a_run_keeps_to_its_counts(bus: Bus) -> None:
    heard: list[Any] = []
    fire(bus, Event.STEP_END, range(150))

    bus.add(noting(heard, 100, when=Every(100)))
    bus.add(noting(heard, 5, when=At(frozenset({5, 170}))))
    fire(bus, Event.STEP_END, range(150, 160))
    assert heard == []

    fire(bus, Event.STEP_END, range(160, 201))
    assert heard == [5, 100]


def test_lists_that_were_given_can_be_used_again(bus: Bus) -> None:
    heard: list[str] = []
    handlers = [noting(heard, "a", priority=1, when=Every(2)), noting(heard, "b")]
    other = Bus(bind_by_name({}))

    bus.extend(handlers)
    other.extend(reversed(handlers))
    fire(bus, Event.STEP_END, range(1, 3))
    handlers.clear()

    assert heard == ["b", "b", "a"]
    fire(other, Event.STEP_END, range(1, 3))
    assert heard == ["b", "b", "a"] * 2


# ------------------------------------------------------------------------------------------------------------- removed


@pytest.mark.row("A62", "C60")
def test_a_handler_that_was_removed_is_called_no_more(bus: Bus) -> None:
    heard: list[str] = []
    first, second = noting(heard, "first"), noting(heard, "second", when=Every(2))
    bus.extend([first, second])

    fire(bus, Event.STEP_END, range(1, 3))
    bus.remove(first)
    fire(bus, Event.STEP_END, range(3, 5))
    bus.remove(second)
    fire(bus, Event.STEP_END, range(5, 9))

    assert heard == ["first", "first", "second", "second"]
    assert bus.order() == [] and bus.points[Event.STEP_END].due == NEVER


def test_a_handler_may_remove_itself_and_the_others_stay(bus: Bus) -> None:
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        bus.remove(handler)

    handler = Handler(event=Event.STEP_END, fn=once)
    bus.extend([handler, noting(heard, "stays")])
    fire(bus, Event.STEP_END, range(1, 4))

    assert heard == ["once", "stays", "stays", "stays"]


def test_what_was_not_added_cannot_be_removed(bus: Bus) -> None:
    bus.add(noting([], "there"))

    with pytest.raises(InputError, match="does not listen to step_end"):
        bus.remove(noting([], "another"))


# -------------------------------------------------------------------------------------------------------------- failing


def test_an_error_stays_what_it_is_and_names_handler_and_moment(bus: Bus) -> None:
    heard: list[str] = []

    def explode() -> None:
        raise ZeroDivisionError("boom")

    bus.add(noting(heard, "before"))
    bus.add(Handler(event=Event.STEP_END, fn=explode, when=Every(3)))
    bus.add(noting(heard, "after"))

    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        fire(bus, Event.STEP_END, range(1, 5))

    assert caught.value.__notes__ == ["in handler explode at step_end 3"]
    assert heard == ["before", "after", "before", "after", "before"]


def test_after_an_error_the_next_moment_is_as_if_nothing_had_happened(bus: Bus) -> None:
    heard: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    bus.add(Handler(event=Event.STEP_END, fn=interrupt, when=At(frozenset({1}))))
    bus.add(noting(heard, "after"))

    with pytest.raises(KeyboardInterrupt) as caught:
        fire(bus, Event.STEP_END, range(1, 2))
    assert caught.value.__notes__ == ["in handler interrupt at step_end 1"]

    fire(bus, Event.STEP_END, range(2, 4))
    assert heard == ["after", "after"]


# -------------------------------------------------------------------------------------------------------------- binding


def test_a_handler_gets_what_it_asks_for_by_name(bus: Bus) -> None:
    heard: list[Any] = []

    def handler(state: str, extra: int = 3, *rest: Any, engine: str = "none", **more: Any) -> None:
        heard.append((state, extra, rest, engine, more))

    class Owner:
        def method(self, engine: str) -> None:
            heard.append(engine)

    bus.add(Handler(event=Event.STEP_END, fn=handler))
    bus.add(Handler(event=Event.STEP_END, fn=Owner().method))
    fire(bus, Event.STEP_END, range(1, 2))

    assert heard == [("the state", 3, (), "the engine", {}), "the engine"]
    assert [handler.name for handler in bus.order()] == ["handler", "Owner.method"]


def test_a_handler_that_asks_for_what_is_not_there_is_refused_when_it_is_added(bus: Bus) -> None:
    def misspelt(stat: Any) -> None: ...

    def strange(zzz: Any) -> None: ...

    with pytest.raises(
        InputError, match=r"misspelt asks for 'stat', which nothing provides"
    ) as caught:
        bus.add(Handler(event=Event.STEP_END, fn=misspelt))
    assert caught.value.fix == "did you mean `state`?"
    with pytest.raises(InputError) as caught:
        bus.add(Handler(event=Event.STEP_END, fn=strange))
    assert caught.value.fix == "There are: state, engine."
    assert bus.order() == []


def test_what_is_called_without_arguments_is_called_directly() -> None:
    def fn() -> None: ...

    assert bind_by_name({"state": 1})(fn) is fn


# ------------------------------------------------------------------------------------------------------------- by name


@pytest.mark.parametrize("event", Event)
def test_every_event_has_a_name_that_finds_it(event: Event) -> None:
    assert event_named(event.value) is event


@pytest.mark.parametrize(
    "find", [event_named, lambda name: on(name)(print)], ids=["event_named", "on"]
)
def test_an_event_that_does_not_exist_is_refused_with_the_nearest(
    find: Callable[[str], Any],
) -> None:
    with pytest.raises(InputError, match="no event 'step_ends'") as caught:
        find("step_ends")
    assert caught.value.fix == "did you mean `step_end`?"
    with pytest.raises(InputError) as caught:
        find("zzz")
    assert "run_begin, run_end" in caught.value.fix


def test_a_function_becomes_a_handler_by_decoration(bus: Bus) -> None:
    @on("step_end", when=Every(2), priority=3)
    def half(state: str) -> None: ...

    @on("epoch_end")
    def always() -> None: ...

    bus.extend([half, always])

    assert (half.event, half.when, half.priority, half.name) == (
        Event.STEP_END,
        Every(2),
        3,
        "half",
    )
    assert (always.event, always.when, always.priority) == (Event.EPOCH_END, Always(), 0)
    assert sorted(handler.name for handler in bus.order()) == ["always", "half"]


def test_objects_that_have_handlers_are_taken_as_they_are() -> None:
    stop = EarlyStop("valid/loss", "min", patience=1, min_delta=100.0)
    runs = engine(handlers=[Evaluate({"valid": loader(6, 4)}), stop], epochs=5)
    runs.bus.extend([BatchDigest()])

    state = runs.run()

    assert (state.epoch, state.stop.reason.partition(":")[0]) == (2, "early stop")
    assert any(
        isinstance(getattr(each.fn, "__self__", None), BatchDigest) for each in runs.bus.order()
    )


@pytest.mark.parametrize("wrong", [EarlyStop, print, "EarlyStop"])
def test_what_is_no_handler_and_has_none_is_refused_with_what_to_give(wrong: object) -> None:
    with pytest.raises(InputError, match="is no handler, and has none") as caught:
        engine(handlers=[wrong])

    assert "`handlers()`" in caught.value.fix


def test_what_is_asked_of_the_stage_is_done_after_all_handlers_of_the_outermost_event(
    bus: Bus,
) -> None:
    heard: list[str] = []

    def ask() -> None:
        bus.stage.ask(lambda: bus.stage.ask(lambda: heard.append("last")))
        bus.stage.ask(lambda: heard.append("asked"))
        bus.fire(Event.EVAL_END)

    bus.add(Handler(event=Event.STEP_END, fn=ask))
    bus.add(Handler(event=Event.EVAL_END, fn=lambda: heard.append("inner")))
    bus.add(noting(heard, "late", priority=10**6))

    fire(bus, Event.STEP_END, range(1, 2))
    assert heard == ["inner", "late", "asked", "last"]

    bus.stage.ask(lambda: heard.append("at once"))
    assert heard[-1] == "at once"


def test_after_a_handler_that_failed_nothing_is_done_and_the_state_is_known_to_be_none(
    bus: Bus,
) -> None:
    heard: list[str] = []
    bus.add(Handler(event=Event.STEP_END, fn=lambda: bus.stage.ask(lambda: heard.append("no"))))
    bus.add(Handler(event=Event.STEP_END, fn=lambda: 1 / 0))

    with pytest.raises(ZeroDivisionError):
        fire(bus, Event.STEP_END, range(1, 2))

    assert (heard, bus.stage.has_failed) == ([], True)
    bus.stage.ask(lambda: heard.append("between"))
    assert heard == ["between"]
    bus.start_at({})
    assert not bus.stage.has_failed


def test_an_error_in_what_was_asked_leaves_the_bus_between_two_events(bus: Bus) -> None:
    bus.add(Handler(event=Event.STEP_END, fn=lambda: bus.stage.ask(lambda: 1 / 0)))

    with pytest.raises(ZeroDivisionError):
        fire(bus, Event.STEP_END, range(1, 2))

    assert not bus.stage.is_under_way
    assert not bus.stage.waiting
