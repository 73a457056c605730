from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from assay.build import as_plugin, entered, provides
from assay.core.errors import InputError
from assay.core.events import Event, Every, Handler


class Noted:
    """Writes down when it is entered and left; fails where it is told to."""

    def __init__(self, log: list[str], name: str, fails: str = "") -> None:
        self.log, self.name, self.fails = log, name, fails

    def __enter__(self) -> None:
        self.log.append(self.name)
        if self.fails == "enter":
            raise KeyError(self.name)

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        self.log.append(f"-{self.name}{f' {kind.__name__}' if kind else ''}")
        if self.fails == "exit":
            raise ValueError(self.name)
        return True


def run(*things: Any, error: BaseException | None = None) -> None:
    with entered([as_plugin(f"plugins.{i}", thing) for i, thing in enumerate(things)]):
        if error is not None:
            raise error


@pytest.mark.row("A28")
def test_plugins_are_entered_in_order_and_left_in_reverse_also_after_an_error() -> None:
    log: list[str] = []
    run(*(Noted(log, name) for name in "abc"))
    assert log == ["a", "b", "c", "-c", "-b", "-a"]

    log.clear()
    with pytest.raises(ZeroDivisionError):
        run(*(Noted(log, name) for name in "abc"), error=ZeroDivisionError("step 3"))
    assert log == ["a", "b", "c", *(f"-{name} ZeroDivisionError" for name in "cba")]


@pytest.mark.row("A28")
def test_a_plugin_that_fails_on_leaving_hides_neither_the_error_of_the_run_nor_other_plugins() -> (
    None
):
    log: list[str] = []
    plugins = (Noted(log, "a", "exit"), Noted(log, "b"), Noted(log, "c", "exit"))

    with pytest.raises(ZeroDivisionError) as caught:
        run(*plugins, error=ZeroDivisionError("step 3"))
    assert [line[:2] for line in log] == ["a", "b", "c", "-c", "-b", "-a"]
    told = "".join(traceback.format_exception(caught.value))
    assert "then another error: ValueError: c" in told and "plugins.2 (Noted)" in told
    assert "then another error: ValueError: a" in told and "plugins.0 (Noted)" in told

    with pytest.raises(BaseExceptionGroup) as group:
        run(*plugins)
    assert [str(error) for error in group.value.exceptions] == ["c", "a"]
    with pytest.raises(ValueError, match="a"):
        run(*plugins[:2])


def test_one_that_cannot_be_entered_ends_those_before_it_and_no_other() -> None:
    log: list[str] = []

    with pytest.raises(KeyError) as caught:
        run(Noted(log, "a"), Noted(log, "b", "enter"), Noted(log, "c"))

    assert log == ["a", "b", "-a KeyError"]
    assert caught.value.__notes__ == ["while entering the plugin plugins.1 (Noted)"]


def test_a_generator_is_a_plugin_and_cannot_swallow_an_error() -> None:
    log: list[str] = []

    @contextmanager
    def plugin(swallow: bool) -> Iterator[None]:
        log.append("enter")
        try:
            yield
        except ZeroDivisionError:
            log.append("seen")
            if not swallow:
                raise

    for swallow in (True, False):
        with pytest.raises(ZeroDivisionError) as caught:
            run(plugin(swallow), error=ZeroDivisionError())
        assert not hasattr(caught.value, "__notes__")
    assert log == ["enter", "seen", "enter", "seen"]


class Listens:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def epoch(self, state: int) -> None:
        self.heard.append(f"epoch {state}")

    told = Handler(event=Event.EPOCH_END, fn=epoch, when=Every(2), priority=3)

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.RUN_END, fn=self.heard.clear)]


def test_the_handlers_of_a_plugin_are_called_with_its_object() -> None:
    thing = Listens()

    first, second = as_plugin("plugins.0", thing).handlers()

    assert (first.event, first.when, first.priority, first.name) == (
        Event.EPOCH_END,
        Every(2),
        3,
        "Listens.epoch",
    )
    assert second.event == Event.RUN_END
    first.fn(1)
    assert thing.heard == ["epoch 1"]
    run(thing)


def test_what_does_nothing_is_no_plugin() -> None:
    class Provides:
        @provides
        def net(self) -> Listens:
            return Listens()

    run(Provides())
    for nothing in (object(), 3, {"type": "x"}):
        with pytest.raises(InputError, match=r"`plugins\.0` is a \w+, which is no plugin"):
            run(nothing)
