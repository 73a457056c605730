"""Pipelines of alchemy: of data, of outputs, of an evaluation, and of an epoch or a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any, ClassVar

from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import ENDING, sym_tbl
from assay.engine import Evaluate

logger = logging.getLogger("assay")
"""Logger whose lines are in the record."""


def call_fitting(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call a function with the arguments that it takes: by position, or by name, or none."""
    parameters = signature(function).parameters.values()
    takes = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, _EITHER)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    by_name = {each.name for each in takes} & named.keys()
    if by_name:
        return function(**{name: named[name] for name in named if takes_any or name in by_name})
    return function(*positional[: len(takes)], **(named if takes_any else {}))


_EITHER = Parameter.POSITIONAL_OR_KEYWORD


def _takes_names_alone(call: Callable[..., Any]) -> bool:
    """Return whether a method takes keyword arguments, and nothing by position but itself."""
    _, *others = signature(call).parameters.values()
    return all(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in others)


class DataPipeline(Registrable):
    """Base class of stages of data: `__iter__` reads `self.datapipe`, the stage before it."""

    def __init__(self, datapipe: Any = None) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        return iter(self.datapipe)


class OutputPipeline(Registrable):
    """Base class of pipes that change the output of each batch of an evaluation.

    A call takes the output, or its fields by name, and returns the next.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and _takes_names_alone(own):
            # By setattr, as mypy forbids to assign a method.
            setattr(cls, "__call__", lambda self, output: own(self, **output))  # noqa: B010


class EvalPipeline(Registrable):
    """Base class of the stages of an evaluation, called once after the last batch.

    A call takes and returns keyword arguments: the numbers that it adds, or that stand in a mapping
    `metrics` among them, are metrics of the split. At first they are `split`, `step` and
    `evaluation`, whose `data` holds what pipes before have left, as `Collect` does. A class whose
    call takes the output by position is called with that of each batch, and returns it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and _takes_names_alone(own):
            setattr(cls, "run_at_end", own)  # noqa: B010 - mypy forbids to assign it
            setattr(cls, "__call__", _pass_on)  # noqa: B010
        for name in ("begin_eval", "end_eval"):
            moment = cls.__dict__.get(name)
            if moment is not None:
                setattr(cls, name, _fitting(moment, and_run=name == "end_eval"))

    def begin_eval(self, evaluation: Any) -> None:
        """Do what is needed before the first batch."""

    def __call__(self, output: Any) -> Any:
        return output

    def run_at_end(self, **kwargs: Any) -> Mapping[str, Any]:
        """Return the keyword arguments of the next pipe; a class writes it as `__call__`."""
        return kwargs

    def end_eval(self, evaluation: Any) -> Mapping[str, Any]:
        """Run the pipe, and return the metrics that it added."""
        given = evaluation.data.setdefault(
            "pipeline", {"split": evaluation.split, "step": evaluation.step}
        )
        returned = self.run_at_end(**{**given, "evaluation": evaluation})
        evaluation.data["pipeline"] = kept = {**given, **(returned or {})}
        kept.pop("evaluation", None)
        before = {**given, **_numbers(given.get("metrics"))}
        found = {**_numbers(kept), **_numbers(kept.get("metrics"))}
        return {name: value for name, value in found.items() if name not in before}


def _pass_on(self: Any, output: Any) -> Any:
    return output


def _fitting(moment: Callable[..., Any], *, and_run: bool) -> Callable[..., Any]:
    """Return a moment of an evaluation that takes the evaluation, whatever its method takes."""

    @wraps(moment)
    def call(self: Any, evaluation: Any) -> Any:
        returned = call_fitting(partial(moment, self), evaluation, split=evaluation.split)
        if not and_run:
            return None
        of_call = EvalPipeline.end_eval(self, evaluation)
        return {**of_call, **(returned if isinstance(returned, Mapping) else {})}

    return call


def _numbers(values: Any) -> dict[str, Any]:
    """Return the numbers of a mapping by name."""
    return {
        name: value
        for name, value in (values.items() if isinstance(values, Mapping) else ())
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class SchedPipeline(Registrable):
    """Base class of the callbacks of a training; a call takes and returns keyword arguments."""

    ends: ClassVar[str] = ""
    """Whatever has just ended when the callback is called: `epoch`, `step`, or nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and cls.ends:
            setattr(cls, "__call__", _at_end(own, cls.ends))  # noqa: B010 - mypy forbids to assign it


def _at_end(call: Callable[..., Mapping[str, Any]], ends: str) -> Callable[..., Mapping[str, Any]]:
    """Return `call` with the counters of `train_sched` still at what ends."""

    @wraps(call)
    def called(self: Any, **kwargs: Any) -> Mapping[str, Any]:
        table = sym_tbl()
        table.force_set(ENDING, ends)
        try:
            return call(self, **kwargs)
        finally:
            table.force_set(ENDING, "")

    return called


class BeginEpochPipeline(SchedPipeline):
    """Callback at the beginning of an epoch."""


class EndEpochPipeline(SchedPipeline):
    """Callback at the end of an epoch; `train_sched.cur_epoch` is the epoch that ends."""

    ends = "epoch"


class BeginStepPipeline(SchedPipeline):
    """Callback before a step."""


class EndStepPipeline(SchedPipeline):
    """Callback after a step; `train_sched.cur_step` is the step that ends."""

    ends = "step"


def evaluate(split: str = "dev") -> None:
    """Evaluate a split of the run now, through the pipes and metrics of all its evaluations.

    The metrics go to the record, and decide which checkpoint is the best.
    """
    table = sym_tbl()
    evaluation: Evaluate = table.get("evaluation")
    evaluation.for_splits({split: table.get(f"{split}_loader")}).run(table.get("engine"))
