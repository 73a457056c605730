"""Pipelines of alchemy: of data, of outputs, of an evaluation, and of an epoch or a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from inspect import signature
from typing import Any, ClassVar

from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import ENDING, sym_tbl
from assay.compat.fitting_call import call_fitting
from assay.compat.plain_state import PlainState
from assay.engine import Evaluate


def _takes_names(call: Callable[..., Any]) -> bool:
    """Return whether a method takes keyword arguments, whichever there are, or by name alone."""
    _, *others = signature(call).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in others) or all(
        each.kind is each.KEYWORD_ONLY for each in others
    )


def _call_with_fields(call: Callable[..., Any], pipe: Any, output: Any) -> Any:
    """Call a pipe with the fields of an output, or with the whole where it names none of them."""
    named = [
        each.name
        for each in signature(call).parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    first = named[1:2]  # after the pipe itself
    if isinstance(output, Mapping) and all(name in output for name in first):
        return call(pipe, **output)
    return call(pipe, output)


class DataPipeline(Registrable):
    """Base class of stages of data: `__iter__` reads `self.datapipe`, the stage before it."""

    def __init__(self, datapipe: Any = None) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        return iter(self.datapipe)


class OutputPipeline(Registrable, PlainState):
    """Base class of pipes that change the output of each batch of an evaluation.

    A call takes the output, or its fields by name, and returns the next.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and _takes_names(own):
            # By setattr, as mypy forbids to assign a method.

            def call(self: Any, output: Any) -> Any:
                return _call_with_fields(own, self, output)

            setattr(cls, "__call__", call)  # noqa: B010


class EvalPipeline(Registrable, PlainState):
    """Base class of the stages of an evaluation, called once after the last batch.

    A call takes and returns keyword arguments: the numbers that it adds, or that stand in a mapping
    `metrics` among them, are metrics of the split. At first they are `split`, `step`, `evaluation`
    and what pipes before have left in its `data`, as `Collect` does in `outputs`. A class whose
    call takes nothing but an output is called with that of each batch, and returns it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__call__")
        if own is not None and _takes_names(own):
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
        left = {name: value for name, value in evaluation.data.items() if name != "pipeline"}
        given = evaluation.data.setdefault(
            "pipeline", {**left, "split": evaluation.split, "step": evaluation.step}
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


class SchedPipeline(Registrable, PlainState):
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
    def call_until_end(self: Any, **kwargs: Any) -> Mapping[str, Any]:
        table = sym_tbl()
        table.force_set(ENDING, ends)
        try:
            return call(self, **kwargs)
        finally:
            table.force_set(ENDING, "")

    return call_until_end


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
