"""What the context of a run costs: a lookup once resolved, and a handler whose parameters were filled in.

    python benchmarks/context.py [--quick] [--json]

Reach: a lookup by type <= 1 us once resolved; an event with an injected handler <= 2x one with a plain function.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import NewType

from assay.build import Context, sym_tbl
from assay.core.events import Event, Handler

Config = NewType("Config", dict)


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
    from assay.engine.bus import Bus

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
            "by type": best_ns(lambda: context.get(Model), calls, rounds),
            "by alias": best_ns(lambda: context.get(Config), calls, rounds),
            "by name": best_ns(lambda: context.get("model"), calls, rounds),
            "by type, from a step": best_ns(lambda: step.get(Model), calls, rounds),
            "sym_tbl().model": best_ns(lambda: sym_tbl().model, calls, rounds),
            "event, plain function": best_ns(event(plain), calls, rounds),
            "event, injected function": best_ns(event(injected), calls, rounds),
            "set, same type": best_ns(lambda: context.set("state", state), calls, rounds),
        }
    assert heard[0]
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few calls: to see that it works")
    parser.add_argument("--json", action="store_true", help="nanoseconds by name")
    options = parser.parse_args(argv)
    found = measured(*((2_000, 2) if options.quick else (200_000, 7)))
    if options.json:
        print(json.dumps({name: round(value, 1) for name, value in found.items()}))
        return 0
    for name, value in found.items():
        print(f"{name:<26} {value / 1000:>7.3f} us")
    ratio = found["event, injected function"] / found["event, plain function"]
    print(f"{'injected to plain':<26} {ratio:>7.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
