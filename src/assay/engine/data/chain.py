"""Chains of data stages; in a config: `{ type = "assay.engine.chain", pipes = [...] }`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data import map_style, streams
from assay.engine.data.streams.stream import FunctionStream, Stream, as_stream


def chain(pipes: Sequence[Any], *, collate: Callable[[list[Any]], Any] | None = None) -> Any:
    """Return the data that a list of pipes makes: a sequence or a stream, by the kind of the last.

    The first pipe is the source: a sequence, a stream, or any iterable that can be iterated again.
    Each further one is a stage of `map_style` or `streams`, a function from an iterator to an
    iterator, or an object with `__iter__` whose `datapipe` is what is before it. A sequence before
    a stage of `streams` becomes a stream. `collate` makes a batch from a list of samples.

    Raises ArgumentError for a stage that does not fit the one before it.
    """
    if not pipes:
        raise ArgumentError(
            "there are no pipes", inside=("pipes",), fix="begin with SequenceWrapper"
        )
    made: Any = pipes[0]
    if isinstance(made, map_style.SequenceStage | streams.StreamStage):
        raise ArgumentError(
            f"{type(made).__name__} needs something before it",
            inside=("pipes", 0),
            fix="begin with SequenceWrapper, or with something that can be iterated",
        )
    for number, pipe in enumerate(pipes[1:], 1):
        try:
            made = _over(made, pipe)
        except ArgumentError as error:
            raise ArgumentError(
                error.said, inside=("pipes", number, *error.inside), fix=error.fix
            ) from None
    if collate is not None:
        made.collate_fn = collate
    return made


@dataclass(frozen=True, slots=True)
class DatapipeStage:
    """Stage whose object iterates its `datapipe`: a factory that takes it, or an object to set."""

    pipe: Any

    def __call__(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return an object of this pass, over the items of the stage before."""
        if isinstance(self.pipe, partial):
            return self.pipe(datapipe=items)  # type: ignore[no-any-return]
        pipe = copy(self.pipe)
        pipe.datapipe = items
        return pipe  # type: ignore[no-any-return]


def _reads_datapipe(pipe: Any) -> bool:
    if isinstance(pipe, partial):
        return hasattr(pipe.func, "__iter__") and "datapipe" in signature(pipe.func).parameters
    return hasattr(pipe, "datapipe") and hasattr(pipe, "__iter__")


def _name_of(pipe: Any) -> str:
    return str(pipe.func.__name__) if isinstance(pipe, partial) else type(pipe).__name__


def _over(source: Any, pipe: Any) -> Any:
    name = type(pipe).__name__
    if isinstance(pipe, map_style.StreamToSequence):
        return pipe.over(as_stream(source))
    if isinstance(pipe, map_style.SequenceStage):
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise ArgumentError(
                f"map_style.{name} needs items by index, but what is before it is a stream",
                inside=(),
                fix="put map_style.StreamToSequence between them, or use a stage of streams",
            )
        return pipe.over(source)
    if isinstance(pipe, streams.StreamStage):
        return pipe.over(as_stream(source))
    if isinstance(pipe, Stream | map_style.SequenceWrapper):
        raise ArgumentError(
            f"{name} is a source: nothing can be before it",
            inside=(),
            fix="put it first, or in a Concat",
        )
    if _reads_datapipe(pipe):
        return FunctionStream(as_stream(source), DatapipeStage(pipe), _name_of(pipe))
    if callable(pipe):
        return FunctionStream(as_stream(source), pipe, getattr(pipe, "__name__", name))
    raise ArgumentError(
        f"a {name} is no pipe",
        inside=(),
        fix="give a stage of map_style or streams, or a function of an iterator to an iterator",
    )
