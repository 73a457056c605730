"""The event bus of an engine: who is called at which moment, at no cost where nobody listens.

Also handlers by periods as people write them: "1 epoch", "100 steps", "never".
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from assay.core.errors import InputError, did_you_mean
from assay.core.events import NEVER, Event, Every, EveryShare, Handler, When
from assay.core.ports import Bind
from assay.core.schema import parse_period

T = TypeVar("T")


@dataclass(slots=True)
class _Listener:
    handler: Handler
    call: Callable[[], Any]
    due: int


_FOR_OTHERS = "assay.compat."
"""Room whose handlers call what others have written."""


class Stage:
    """Calls that are made once all handlers of the outermost event were called: the saves.

    After an error in a handler they are not made, and `has_failed` stays True: what stands behind
    that handler was not called, so the state is none to resume from.
    """

    __slots__ = ("has_failed", "is_under_way", "waiting")

    def __init__(self) -> None:
        self.is_under_way = False
        self.has_failed = False
        self.waiting: list[Callable[[], Any]] = []

    def ask(self, call: Callable[[], Any]) -> None:
        """Make a call after all handlers of the event under way; at once between two events."""
        if self.is_under_way:
            self.waiting.append(call)
        else:
            call()

    def fail(self) -> None:
        """End an event whose handlers were not all called."""
        self.has_failed, self.waiting = True, []

    def make_calls(self) -> None:
        """Make the calls that wait, in their order, and those that they ask for."""
        self.is_under_way = True
        try:
            while self.waiting:
                self.waiting.pop(0)()
        finally:
            self.is_under_way, self.waiting = False, []


class Point:
    """One event with its listeners.

    The loop runs `if point.due <= count: point.fire(count)`: one comparison when nothing is due.
    """

    __slots__ = ("due", "event", "listeners", "stage")

    def __init__(self, event: Event, stage: Stage) -> None:
        self.event = event
        self.stage = stage
        self.listeners: list[_Listener] = []
        self.due = NEVER

    def add(self, handler: Handler, call: Callable[[], Any]) -> None:
        # Stable: equal ones in order of adding. A new list: one that is being called stays as it
        # is.
        added = [*self.listeners, _Listener(handler, call, handler.when.next(0))]
        self.listeners = sorted(added, key=lambda listener: listener.handler.priority)
        self.due = min(listener.due for listener in self.listeners)

    def remove(self, handler: Handler) -> None:
        """Remove a handler, even the one being called; InputError if it is unknown."""
        left = [listener for listener in self.listeners if listener.handler != handler]
        if len(left) == len(self.listeners):
            raise InputError(f"The handler {handler.name} does not listen to {self.event}.")
        self.listeners = left
        self.due = min((listener.due for listener in left), default=NEVER)

    def start_at(self, count: int) -> None:
        """The run goes on from `count`: what was due before it has been done."""
        for listener in self.listeners:
            listener.due = listener.handler.when.next(count)
        self.due = min((listener.due for listener in self.listeners), default=NEVER)

    def is_due_for_few(self, count: int) -> bool:
        """Return whether a handler is due at `count` that is not called every time."""
        return self.due <= count and any(
            listener.due <= count and listener.handler.when.next(count + 1) > count + 1
            for listener in self.listeners
        )

    def fire(self, count: int) -> None:
        """Call all handlers that are due, in order; an exception gains a note of handler and event.

        What was asked of the stage is done after those of the outermost event.
        """
        listeners, due = self.listeners, NEVER
        stage = self.stage
        is_outermost, stage.is_under_way = not stage.is_under_way, True
        try:
            for listener in listeners:
                if listener.due < count:  # added while the run was under way
                    listener.due = listener.handler.when.next(count)
                if listener.due == count:
                    listener.due = listener.handler.when.next(count + 1)
                    try:
                        listener.call()
                    except BaseException as error:  # whatever it is goes up as it came, with a note
                        name = listener.handler.name
                        error.add_note(f"in handler {name} at {self.event} {count}")
                        raise
                due = min(due, listener.due)
            self.due = due if self.listeners is listeners else 0  # 0: ask what was just added
        except BaseException:
            if is_outermost:
                stage.fail()
            raise
        finally:
            if is_outermost:
                stage.is_under_way = False
        if is_outermost and stage.waiting:
            stage.make_calls()


class Listens(Protocol):
    """Object with handlers, as those that come with assay are."""

    def handlers(self) -> Iterable[Handler]: ...


class Bus:
    """All points of one engine."""

    def __init__(self, bind: Bind, epoch_length: int | None = None) -> None:
        self._bind = bind
        self._epoch_length = epoch_length
        self._num_fired: Counter[Event] = Counter()
        self.stage = Stage()
        self.points = {event: Point(event, self.stage) for event in Event}

    def start_at(self, counts: Mapping[Event, int]) -> None:
        """Begin or resume a run: events before these counts were fired before."""
        self.stage.has_failed = False
        for event, count in counts.items():
            self.points[event].start_at(count)

    def fire(self, event: Event) -> None:
        """Fire `event`, counted by how often it was fired."""
        before = self._num_fired[event]
        self._num_fired[event] += 1
        self.fire_at(event, before if event.endswith("_begin") else before + 1)

    def fire_at(self, event: Event, count: int) -> None:
        """Call the handlers of `event` that are due at `count`."""
        point = self.points[event]
        if point.due <= count:
            point.fire(count)

    def add(self, handler: Handler) -> None:
        handler = self._with_length(handler)
        self.points[handler.event].add(handler, self._bind(handler.fn))

    def _with_length(self, handler: Handler) -> Handler:
        """Return the handler of a share of an epoch with the length of one; others unchanged."""
        if not isinstance(handler.when, EveryShare):
            return handler
        if not self._epoch_length:
            raise InputError(
                f"A handler fires {handler.when}, and nobody knows how long an epoch is.",
                fix='Write steps, as in "100 steps".',
            )
        return replace(handler, when=replace(handler.when, epoch_length=self._epoch_length))

    def on(
        self, event: str, *, when: When, priority: int
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that adds a function as a handler of `event`."""

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.add(Handler(event=event_named(event), fn=fn, when=when, priority=priority))
            return fn

        return add

    def extend(self, handlers: Iterable[Handler | Listens]) -> None:
        """Add handlers, and those of objects that have several."""
        each: Any
        for each in handlers:
            if isinstance(each, Handler):
                self.add(each)
            elif callable(getattr(each, "handlers", None)) and not isinstance(each, type):
                self.extend(each.handlers())
            else:
                fix = (
                    "Give a Handler, or an object with a method `handlers()`, such as"
                    " EarlyStop(...)."
                )
                raise InputError(f"{each!r} is no handler, and has none.", fix=fix)

    def remove(self, handler: Handler) -> None:
        """Call it no more, from the next time on."""
        self.points[handler.event].remove(self._with_length(handler))

    def order(self) -> list[Handler]:
        """Every handler, in the order in which those of one event are called."""
        return [listener.handler for point in self.points.values() for listener in point.listeners]

    def has_others(self) -> bool:
        """Return whether a handler is of somebody else, who may read whatever a run has."""
        modules = [getattr(handler.fn, "__module__", None) or "" for handler in self.order()]
        return any(
            not name.startswith("assay.") or name.startswith(_FOR_OTHERS) for name in modules
        )

    def owners(self, kind: type[T]) -> list[T]:
        """Return the objects of a class that have a handler here, each once, in their order."""
        owners = [getattr(handler.fn, "__self__", None) for handler in self.order()]
        return list({id(owner): owner for owner in owners if isinstance(owner, kind)}.values())


def on(
    event: str, *, when: When | None = None, priority: int = 0
) -> Callable[[Callable[..., Any]], Handler]:
    """Make a handler of a function: `@on("step_end", when=Every(100))`."""

    def wrap(fn: Callable[..., Any]) -> Handler:
        kind = event_named(event)
        return (
            Handler(event=kind, fn=fn, priority=priority)
            if when is None
            else Handler(event=kind, fn=fn, when=when, priority=priority)
        )

    return wrap


def event_named(name: str) -> Event:
    """The event of that name; InputError with the nearest one otherwise."""
    try:
        return Event(name)
    except ValueError:
        fix = did_you_mean(name, list(Event)) or f"Events: {', '.join(Event)}."
        raise InputError(f"There is no event {name!r}.", fix=fix) from None


def roles_of(engine: Any) -> dict[str, Any]:
    """Return what handlers may ask for by the names of their parameters."""
    process = engine.process
    return {
        "engine": engine,
        "process": process,
        "model": getattr(process, "model", None),
        "state": engine.state,
        "recorder": engine.recorder,
        "backward": getattr(process, "backward", None),
    }


def bind_by_name(roles: Mapping[str, Any]) -> Bind:
    """A `Bind` that fills parameters from `roles` by name; one with a default may be left out."""

    def bind(fn: Callable[..., Any]) -> Callable[[], Any]:
        filled: dict[str, Any] = {}
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.name in roles:
                filled[parameter.name] = roles[parameter.name]
            elif parameter.default is parameter.empty:
                name = getattr(fn, "__qualname__", repr(fn))
                fix = did_you_mean(parameter.name, roles) or f"There are: {', '.join(roles)}."
                raise InputError(
                    f"The handler {name} asks for {parameter.name!r}, which nothing provides.",
                    fix=fix,
                )
        return (lambda: fn(**filled)) if filled else fn

    return bind


def every(
    period: str, fn: Callable[..., Any], *, priority: int = 0, name: str = ""
) -> Handler | None:
    """Return a handler that calls `fn` once per period of training; None for "never".

    >>> every("2 epochs", print).event
    <Event.EPOCH_END: 'epoch_end'>
    """
    try:
        parsed = parse_period(period)
    except ValueError as error:
        raise InputError(f"{error}.") from None
    if not parsed.count:
        return None
    is_part = isinstance(parsed.count, Fraction)
    event = Event.EPOCH_END if parsed.unit == "epoch" and not is_part else Event.STEP_END
    when = EveryShare(parsed.count) if isinstance(parsed.count, Fraction) else Every(parsed.count)
    return Handler(event=event, fn=fn, when=when, priority=priority, name=name)


def steps(period: str) -> Every | None:
    """When a period of steps is completed; None for "never". InputError for a period of epochs.

    >>> steps("100 steps")
    Every(n=100, start=0)
    """
    handler = every(period, print)
    if handler is not None and not (
        handler.event == Event.STEP_END and isinstance(handler.when, Every)
    ):
        raise InputError(
            f"{period!r} counts epochs; here steps are counted.",
            fix='Write "100 steps", for example.',
        )
    return handler.when if handler is not None and isinstance(handler.when, Every) else None


@dataclass(frozen=True, slots=True)
class Before:
    """For `step_begin`: the step is about to begin with whose `step_end` another one fires.

    >>> [Before(Every(100)).next(count) for count in (0, 99, 100)]
    [99, 99, 199]
    """

    when: When

    def next(self, count: int) -> int:
        later = self.when.next(count + 1)
        return NEVER if later == NEVER else later - 1

    def __str__(self) -> str:
        return str(self.when)
