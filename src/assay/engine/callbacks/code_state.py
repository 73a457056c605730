"""Callback that looks for state of the user's code that no checkpoint keeps, in the first steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from assay.core.code_places import is_of_user
from assay.core.events import At, Event, Handler
from assay.core.facts import Warned
from assay.core.formatting import name_some
from assay.core.ports import NullRecorder
from assay.engine.callbacks.evaluate import Evaluate
from assay.engine.checkpoint.hidden_state import (
    Hidden,
    KeptFiles,
    Mark,
    Snapshot,
    compare_snapshots,
    mark_states,
    take_snapshot,
)
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import OwnState, own_parts, stateful
from assay.engine.numerics.structures import tensors_in

LAST = 3
"""Number of steps, and of evaluations, after which nothing is looked at any more."""
NOTHING = "nothing seen that a checkpoint lacks"
MOST_NAMED = 5

Period = Literal["step", "evaluation"]
Report = Callable[[str, list[str]], object]
"""Hears a finding in one line, and the warnings."""

_LOGGER = logging.getLogger("assay.checkpoint")
_NAMES = {
    "number": "a plain value",
    "collection": "a collection",
    "tensor": "a tensor",
    "generator": "a random generator",
    "iterator": "an iterator",
    "cache": "a cache",
    "file": "a file",
    "state": "an object with a state_dict",
}
_FIXES = {
    "generator": "draw from torch, numpy or random: they are keyed by the step",
    "cache": "cache nothing but what the arguments alone determine",
    "file": "keep in no file how far training is",
}
_FIXES_BY_ROOT = {
    "model": "register_buffer keeps a tensor, get_extra_state anything else",
    "criterion": "register_buffer keeps a tensor, get_extra_state anything else",
    "optimizer": "keep it in self.state or in a parameter group",
    "schedule": "compute it from the step",
    "metric": "begin it anew in reset, or keep it in a callback with state_dict and"
    " load_state_dict",
}
_FIX = "keep it in a callback with state_dict and load_state_dict"


class CodeState:
    """Callback that compares the user's objects before and after the first steps.

    Metrics are compared as the first evaluations begin, each after its reset; of a loop by hand
    those variables that have a `state_dict`.

    `report` is called with the finding for the record and the warnings, and again with a state of a
    metric; without it both go to the recorder of the engine. Later steps cost nothing. Of several
    in one run the first looks.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.report = report
        self._snapshots: list[Snapshot] = []
        self._of_metrics: list[Snapshot] = []
        self._found: list[Hidden] = []
        self._is_whole = True
        self._blind = ""
        self._is_over = False
        self._files: KeptFiles | None = None

    def handlers(self) -> list[Handler]:
        # After all others: what they change in a step belongs to it.
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin, priority=_LATE),
            Handler(event=Event.RUN_END, fn=self.finish, priority=_LATE),
            Handler(event=Event.EXCEPTION, fn=self.finish, priority=_LATE),
        ]

    def begin(self, engine: Engine) -> None:
        """Look at everything before the first step, and again after the first and the last."""
        if engine.bus.owners(CodeState)[0] is not self:
            return
        if self.report is None:
            self.report = partial(report_to_recorder, engine)
        self._look(engine)
        step = engine.state.step
        when = At(frozenset({step + 1, step + LAST}))
        look = Handler(event=Event.STEP_END, fn=self.look_again, when=when, priority=_LATE)
        engine.bus.add(look)
        first = At(frozenset(range(LAST)))
        wait = Handler(event=Event.EVAL_BEGIN, fn=self.wait_for_reset, when=first, priority=_LATE)
        engine.bus.add(wait)
        self._files = KeptFiles(lambda: engine.is_loading)
        self._files.start()

    def look_again(self, engine: Engine) -> None:
        """Look at everything after a step; report after the last one."""
        self._look(engine)
        if self._blind or len(self._snapshots) > 2:
            self._finish_steps()

    def wait_for_reset(self, engine: Engine) -> None:
        """Look at the metrics as soon as the evaluation that begins has reset them."""
        engine.bus.add(self._first_batch())

    def look_at_metrics(self, engine: Engine) -> None:
        """Look at the metrics, which now hold what outlives a reset; report after the last time."""
        engine.bus.remove(self._first_batch())
        if self._blind:
            return
        try:
            self._of_metrics.append(_snapshot_metrics(engine))
        except Exception as error:  # of whatever class the user has: it must not end the run
            self._blind = f"unknown: a metric could not be looked at ({_as_line(error)})"
            self._report([], "evaluation")
        if len(self._of_metrics) == LAST:
            self._finish_metrics()

    def _first_batch(self) -> Handler:
        return Handler(event=Event.EVAL_STEP_BEGIN, fn=self.look_at_metrics, priority=_LATE)

    def finish(self) -> None:
        """Report what has changed, unless it was reported."""
        self._finish_steps()
        self._finish_metrics()

    def _finish_metrics(self) -> None:
        looks, self._of_metrics = self._of_metrics, []
        if len(looks) > 1 and (hidden := compare_snapshots(looks[0], looks[1], looks[-1])):
            self._report(hidden, "evaluation")

    def _finish_steps(self) -> None:
        snapshots, self._snapshots = self._snapshots, []
        files, self._files = self._files.stop() if self._files is not None else [], None
        if self._blind and not self._is_over:
            self._report([], "step")
        elif len(snapshots) > 1:
            hidden = [Hidden(path, "file") for path in files]
            hidden += compare_snapshots(snapshots[0], snapshots[1], snapshots[-1])
            self._is_whole = snapshots[-1].is_whole
            self._report(hidden, "step")
        self._is_over = True

    def _report(self, hidden: list[Hidden], period: Period) -> None:
        if self.report is None:
            return
        self._found += hidden
        finding = describe_hidden(self._found, is_whole=self._is_whole)
        if self._blind:
            finding = f"{finding}; {self._blind}" if self._found else self._blind
        self.report(finding, [_warning(each, period) for each in hidden])

    def _look(self, engine: Engine) -> None:
        if self._blind:
            return
        try:
            self._snapshots.append(self._snapshot(engine))
        except Exception as error:  # of whatever class the user has: it must not end the run
            self._blind = f"unknown: it could not be looked at ({_as_line(error)})"

    def _snapshot(self, engine: Engine) -> Snapshot:
        # Each evaluation resets the metrics.
        known = [*_kept_objects(engine), *_metrics_of(engine).values()]
        kept = list(tensors_in(own_parts(engine)))
        snapshot = take_snapshot(roots_of_code(engine), kept=kept, known=known)
        snapshot.marks |= _mark_variables(engine, kept)
        return snapshot


def _mark_variables(engine: Engine, kept: Iterable[Tensor]) -> dict[str, Mark]:
    """Mark the variables of a loop by hand that have a state, but for those of the engine."""
    variables = variables_of_loop()
    if not variables:
        return {}
    process: Any = engine.process
    roots = roots_of_code(engine)
    known = [*_kept_objects(engine), *roots.values(), *engine.kept, *process.model.modules()]
    for holder in (process, roots["schedule"]):
        known += getattr(holder, "__dict__", {}).values()
    ignored = {id(thing) for thing in known}
    own = {
        name: thing
        for name, thing in variables.items()
        if id(thing) not in ignored
        if not type(thing).__module__.startswith("assay.") and _has_state(type(thing))
    }
    optimizers = list(process.backward.optimizers.values())
    marks = mark_states(own, kept)
    for name, thing in own.items():
        if isinstance(thing, LRScheduler) and any(thing.optimizer is each for each in optimizers):
            marks[name] = Mark("state", object())  # it may step after many steps only
    return marks


def _has_state(kind: type) -> bool:
    # Of the class: a proxy of something else answers to any name.
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def variables_of_loop() -> dict[str, Any]:
    """Return the variables where an engine is iterated now, with the attributes of `self` there.

    Empty where `run` trains.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not Engine.__iter__.__code__:
        frame = frame.f_back
    while frame is not None and not is_of_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return {}
    found = {**frame.f_globals, **frame.f_locals}
    attributes = getattr(found.get("self"), "__dict__", {})
    return found | {f"self.{name}": value for name, value in attributes.items()}


def _snapshot_metrics(engine: Engine) -> Snapshot:
    """Mark what the metrics hold beside what is looked at after steps."""
    model = engine.process.model
    return take_snapshot(
        {f"metric {name}": metric for name, metric in _metrics_of(engine).items()},
        kept=[*model.parameters(), *model.buffers()],
        known=[*_kept_objects(engine), *roots_of_code(engine).values()],
    )


def _metrics_of(engine: Engine) -> dict[str, Any]:
    metrics = dict(getattr(engine.process, "metrics", {}))
    for evaluate in engine.bus.owners(Evaluate):
        metrics |= evaluate.metrics
    return metrics


def _kept_objects(engine: Engine) -> list[Any]:
    """Return the objects that have a state of their own in a checkpoint, or none that matters."""
    state = engine.state
    known = [engine, engine.source, engine.recorder, engine.bus, state, state.dataloader]
    known += [*_data_of(engine.source), *stateful(engine).values()]
    return known + [kept.values for kept in engine.kept if isinstance(kept, OwnState)]


def _as_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_LATE = 1_000_000


@runtime_checkable
class _KeepsFindings(Protocol):
    def set_code_state(self, finding: str) -> None: ...


def report_to_recorder(engine: Engine, finding: str, warnings: list[str]) -> None:
    """Tell the recorder of an engine; where there is none, log the warnings."""
    recorder = engine.recorder
    for message in warnings[:MOST_NAMED]:
        if isinstance(recorder, NullRecorder):
            _LOGGER.warning(message)
        recorder.tell(Warned(message=message, step=engine.state.step))
    if isinstance(recorder, _KeepsFindings):
        recorder.set_code_state(finding)


def roots_of_code(engine: Engine) -> dict[str, Any]:
    """Return the objects of a run that the user may have written, by name."""
    process: Any = engine.process
    backward = process.backward
    roots: dict[str, Any] = {
        "model": process.model,
        "criterion": getattr(process, "criterion", None),
    }
    for name, optimizer in backward.optimizers.items():
        roots[f"optimizer {name}".rstrip()] = optimizer
    roots["schedule"] = getattr(getattr(backward, "rate", None), "schedule", None)
    adapted = (getattr(process, name, None) for name in ("thing", "step", "wrapper"))
    roots["process"] = next((thing for thing in adapted if thing is not None), process)
    roots["backward"] = backward
    for evaluate in engine.bus.owners(Evaluate):
        roots |= {f"data {name}": loader for name, loader in evaluate.splits.items()}
    for handler in engine.bus.order():
        owner = getattr(handler.fn, "__self__", handler.fn)
        name = handler.name.partition(".")[0]
        if not any(owner is root for root in roots.values()):
            names = [name, *(f"{name} {number}" for number in range(2, len(roots) + 3))]
            roots[next(each for each in names if each not in roots)] = owner
    return roots


def describe_hidden(hidden: list[Hidden], *, is_whole: bool) -> str:
    """Return the finding in one line, for the record."""
    parts = []
    for is_harmful, name in ((True, "not kept"), (False, "unknown")):
        paths = [each.path for each in hidden if each.is_harmful == is_harmful]
        if paths:
            parts.append(f"{name}: {name_some(paths, MOST_NAMED)}")
    if not is_whole:
        parts.append("unknown: the rest of many objects, which were not all looked at")
    return "; ".join(parts) or NOTHING


def _warning(hidden: Hidden, period: Period) -> str:
    root = hidden.path.partition(".")[0].partition(" ")[0]
    fix = _FIXES.get(hidden.kind) or _FIXES_BY_ROOT.get(root, _FIX)
    if hidden.kind == "state":
        fix = f"engine.keep({hidden.path}) before engine.resume"
    changes = "changes" if hidden.kind == "state" else f"changes with each {period}"
    effect = (
        f"{changes} and is in no checkpoint, so that a resumed run begins it anew"
        if hidden.is_harmful
        else f"was set in {'a step' if period == 'step' else 'an evaluation'} and is in no"
        " checkpoint, and whether a resumed run sets it to the same is unknown"
    )
    return f"state of your code: {hidden.path} ({_NAMES[hidden.kind]}) {effect}: {fix}"


def _data_of(source: Any) -> Iterator[Any]:
    """Yield what the data claim of a run speaks of: the data set, or the batches."""
    for name in ("dataset", "batches", "stream"):
        if (data := getattr(source, name, None)) is not None:
            yield data
