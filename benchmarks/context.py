"""Cost of a run's context: a lookup once resolved, and a handler with injected parameters.

A lookup is the best of several rounds, without the empty loop around it. `event_injected` fires an
event whose handler asked for two objects by type, `event_plain` one that asked for nothing:
injection costs nothing per call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NewType

from figures import Figure, machine, options, show

from assay.build import Context
from assay.compat.alchemy.symbols import sym_tbl
from assay.core.events import Event, Handler

Config = NewType("Config", dict)
LOOKUPS = ("by_type", "by_alias", "by_name", "by_type_from_a_step")


class Model: ...


class State: ...


def best_ns(call: Callable[[], object], calls: int, rounds: int) -> float:
    """Nanoseconds of one call, without those of the empty loop: the best of several rounds."""
    loop, whole = [], []
    for _ in range(rounds):
        begun = perf_counter_ns()
        for _ in range(calls):
            pass
        loop.append(perf_counter_ns() - begun)
        begun = perf_counter_ns()
        for _ in range(calls):
            call()
        whole.append(perf_counter_ns() - begun)
    return (min(whole) - min(loop)) / calls


def measured(calls: int, rounds: int) -> dict[str, float]:
    from assay.engine.loop.bus import Bus

    context = Context()
    context.set("model", Model())
    context.set("config", {"lr": 1}, type=Config)
    for i in range(50):
        context.set(f"other_{i}", type(f"Other{i}", (), {})())
    state = State()
    context.set("state", state)
    step = context.child("epoch").child("step")
    heard = [0]

    def plain() -> None:
        heard[0] += 1

    def injected(state: State, model: Model) -> None:
        heard[0] += 1

    injected.__annotations__ = {"state": State, "model": Model}

    def event(function: Callable[..., None]) -> Callable[[], None]:
        bus = Bus(context.bind)
        bus.add(Handler(event=Event.STEP_END, fn=function))
        point = bus.points[Event.STEP_END]
        return lambda: point.fire(1)

    with context.use():
        found = {
            "by_type": best_ns(lambda: context.get(Model), calls, rounds),
            "by_alias": best_ns(lambda: context.get(Config), calls, rounds),
            "by_name": best_ns(lambda: context.get("model"), calls, rounds),
            "by_type_from_a_step": best_ns(lambda: step.get(Model), calls, rounds),
            "symbol_table": best_ns(lambda: sym_tbl().model, calls, rounds),
            "event_plain": best_ns(event(plain), calls, rounds),
            "event_injected": best_ns(event(injected), calls, rounds),
            "set": best_ns(lambda: context.set("state", state), calls, rounds),
        }
    assert heard[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = options("what the context of a run costs", argv)
    found = measured(*((2_000, 2) if given.quick else (200_000, 7)))
    figures = [
        Figure(
            name=f"context.{name}_us",
            value=value / 1000,
            unit="us",
            at_most=1.0 if name in LOOKUPS else None,
        )
        for name, value in found.items()
    ]
    ratio = found["event_injected"] / found["event_plain"]
    figures.append(Figure(name="context.injected_to_plain", value=ratio, at_most=2.0))
    show("context", figures, machine(), as_json=given.as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
