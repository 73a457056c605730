"""When a handler fires, and what a handler is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.events import ALWAYS, NEVER, At, Event, Every, Handler, When

COUNT = st.integers(0, 10**9)
every = st.builds(Every, st.integers(1, 10**6), st.integers(0, 10**6))
at = st.builds(At, st.frozensets(COUNT, max_size=5))
whens = st.one_of(every, at, st.just(ALWAYS))


@given(whens, COUNT)
def test_the_next_count_is_never_in_the_past(when: When, count: int) -> None:
    assert when.next(count) >= count


@given(whens, COUNT)
def test_a_count_at_which_it_fires_is_its_own_next(when: When, count: int) -> None:
    fires = when.next(count)

    assert fires == NEVER or when.next(fires) == fires


@given(whens, COUNT, COUNT)
def test_nothing_is_skipped_between_a_count_and_its_next(
    when: When, count: int, later: int
) -> None:
    low, high = sorted((count, later))

    assert when.next(low) <= when.next(high)
    assert when.next(low) == when.next(high) or when.next(low) < high


@given(every, COUNT)
def test_every_n_fires_at_multiples_from_its_start(when: Every, count: int) -> None:
    fires = when.next(count)

    assert (fires - when.start) % when.n == 0
    assert fires >= max(when.start, 1)


@given(at, COUNT)
def test_at_fires_at_its_counts_and_then_never(when: At, count: int) -> None:
    left = sorted(each for each in when.counts if each >= count)

    assert when.next(count) == (left[0] if left else NEVER)


def test_every_leaves_out_the_beginning_and_always_does_not() -> None:
    assert [Every(2).next(count) for count in range(5)] == [2, 2, 2, 4, 4]
    assert [Every(2, start=1).next(count) for count in range(5)] == [1, 1, 3, 3, 5]
    assert ALWAYS.next(0) == 0


def test_whens_say_what_they_are() -> None:
    assert [str(when) for when in (Every(), Every(3), At(frozenset({9, 5})), ALWAYS)] == [
        "always",
        "every 3",
        "at 5, 9",
        "always",
    ]
    assert Every(3) == Every(3)


class Saver:
    def save(self) -> None: ...

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [(len, "builtins.len"), (Saver().save, "Saver.save"), (Saver(), "Saver"), (Saver.save, "save")],
)
def test_a_handler_is_called_after_what_it_calls(fn: object, name: str) -> None:
    shown = Handler(event=Event.STEP_END, fn=fn).name  # type: ignore[arg-type]

    assert shown.endswith(name.removeprefix("builtins."))
    assert Handler(event=Event.STEP_END, fn=fn, name="mine").name == "mine"  # type: ignore[arg-type]


def test_an_event_is_its_name() -> None:
    assert Event("step_end") is Event.STEP_END
    assert f"{Event.RUN_BEGIN}" == "run_begin"
