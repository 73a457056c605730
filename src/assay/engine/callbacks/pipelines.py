"""Pipelines of callables, run at the begin or end of a run, an epoch or a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.engine.loop.engine import Engine

Item = Callable[..., Mapping[str, Any]]


class Pipelines:
    """Callback that runs pipelines: each item's result is the keyword arguments of the next.

    The first item gets `engine` and `state`. At every event the items run in the order in which
    they are listed, and begin with fresh arguments. Checkpoints keep the state of an item that has
    one.
    """

    def __init__(
        self,
        *,
        begin_run: Sequence[Item] = (),
        begin_epoch: Sequence[Item] = (),
        begin_step: Sequence[Item] = (),
        end_step: Sequence[Item] = (),
        end_epoch: Sequence[Item] = (),
        end_run: Sequence[Item] = (),
    ) -> None:
        self.items = {
            Event.RUN_BEGIN: begin_run,
            Event.EPOCH_BEGIN: begin_epoch,
            Event.STEP_BEGIN: begin_step,
            Event.STEP_END: end_step,
            Event.EPOCH_END: end_epoch,
            Event.RUN_END: end_run,
        }
        for event, items in self.items.items():
            for item in items:
                if not callable(item):
                    raise InputError(
                        f"The pipeline at {event} holds a {type(item).__name__}, which cannot"
                        " be called.",
                        fix="Give functions, or objects with __call__(**kwargs).",
                    )

    def handlers(self) -> list[Handler]:
        """One for each pipeline with items."""
        return [
            Handler(event=event, fn=_Pipeline(self, event), name=f"Pipelines.{_join_names(items)}")
            for event, items in self.items.items()
            if items
        ]


class _Pipeline:
    """Items of one event, as a handler calls them."""

    def __init__(self, owner: Pipelines, event: Event) -> None:
        self.__self__ = owner  # the bus reads it, as of a method, to find whose state is kept
        self.event = event

    def __call__(self, engine: Engine) -> None:
        run(self.__self__.items[self.event], self.event, engine)


def run(items: Sequence[Item], event: Event, engine: Engine) -> dict[str, Any]:
    """Run all items; return the result of the last.

    An exception ends the pipeline, with a note that names the item.
    """
    kwargs: dict[str, Any] = {"engine": engine, "state": engine.state}
    for item in items:
        try:
            returned: Any = item(**kwargs)
        except BaseException as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"in {_name(item)} of the pipeline at {event}")
            raise
        if not isinstance(returned, Mapping):
            raise InputError(
                f"{_name(item)} of the pipeline at {event} returned a {type(returned).__name__}.",
                fix="Return the keyword arguments for the next one: `return kwargs`.",
            )
        kwargs = dict(returned)
    return kwargs


def _join_names(items: Sequence[Item]) -> str:
    return "+".join(map(_name, items))


def _name(item: Item) -> str:
    return getattr(item, "__name__", type(item).__name__)
