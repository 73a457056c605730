"""Outputs of an evaluation: pipes that change, collect and save them, and the merge over ranks.

What a pipe or a handler keeps in the record never ends the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time
from enum import Enum
from itertools import islice, zip_longest
from os import PathLike, fspath
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import AssayError, InputError, choose, did_you_mean
from assay.core.facts import Warned
from assay.core.ports import NullRecorder, Recorder
from assay.engine.metrics.metric import Adapted, Matrix, result_parts
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import LOSS
from assay.formats.json_codec import dumps


def try_keep_artifact(recorder: Recorder, data: bytes, name: str, *, step: int) -> None:
    """Keep `data` as a file of the run; warn when that fails."""
    with _warn_of_failure(recorder, name, step):
        recorder.artifact(data, name)


def keep_matrix(recorder: Recorder, matrix: Matrix, name: str, *, step: int) -> None:
    """Keep a matrix as the table `name.csv` and the picture `name.png`; warn when that fails."""
    with _warn_of_failure(recorder, name, step):
        columns, rows = matrix.rows()
        recorder.table(f"{name}.csv", rows, step, columns=columns)
        recorder.image(f"{name}.png", matrix.picture(), step)


@contextmanager
def _warn_of_failure(recorder: Recorder, name: str, step: int) -> Iterator[None]:
    try:
        yield
    except AssayError as error:
        recorder.tell(Warned(message=f"{name} was not kept: {error.what}", step=step))


_MISSING = object()


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """One split while it is evaluated, for its pipes to share.

    `step` is that of the weights. `batch` is the newest and holds `size` samples; `samples` counts
    all so far. `metrics` is filled after the last batch. `data` is for what pipes leave each other.
    """

    split: str
    step: int = 0
    recorder: Recorder = field(default_factory=NullRecorder)
    batch: Any = None
    size: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Add a result: numbers become metrics; a matrix is kept as a table and as a picture."""
        for key, part in result_parts(f"{self.split}/{name}", value).items():
            if isinstance(part, Matrix):
                keep_matrix(self.recorder, part, key, step=self.step)
            else:
                self.metrics[key] = part


class Pipe(Protocol):
    """Callable that maps a batch's output to the input of the next pipe, at last of the metrics.

    It may also have `begin_eval(evaluation)`, called before the first batch of a split, and
    `end_eval(evaluation)`, called after the last one: a mapping that this returns becomes metrics
    of the split. With one of these two it need not be callable.
    """

    def __call__(self, output: Any, /) -> Any: ...


class Pipes:
    """Pipes one after another. InputError for what is none, and for one that loses the output."""

    def __init__(self, pipes: Iterable[Any] = ()) -> None:
        self.pipes = list(pipes)
        for place, pipe in enumerate(self.pipes):
            if not (callable(pipe) or hasattr(pipe, "begin_eval") or hasattr(pipe, "end_eval")):
                raise InputError(
                    f"Pipe {place} of the evaluation is a {type(pipe).__name__}, which does"
                    " nothing with outputs.",
                    fix="A pipe is called with the output of each batch, or has begin_eval and"
                    " end_eval.",
                )
        self._called = [pipe for pipe in self.pipes if callable(pipe)]

    def begin(self, evaluation: Evaluation) -> None:
        for pipe in self.pipes:
            if hasattr(pipe, "begin_eval"):
                pipe.begin_eval(evaluation)

    def __call__(self, output: Any) -> Any:
        for pipe in self._called:
            output = pipe(output)
            if output is None:
                raise InputError(
                    f"The pipe {_name(pipe)} returned nothing.",
                    fix="Return the output, changed or as it was.",
                )
        return output

    def end(self, evaluation: Evaluation) -> None:
        """Let each pipe finish; what it measured joins the metrics, which those after it see."""
        for pipe in self.pipes:
            found = pipe.end_eval(evaluation) if hasattr(pipe, "end_eval") else None
            for name, value in found.items() if isinstance(found, Mapping) else ():
                full = f"{evaluation.split}/{name}"
                if full in evaluation.metrics:
                    raise InputError(
                        f"The pipe {_name(pipe)} gives {full!r}, which is there already."
                    )
                evaluation.add(name, value)


class Collect:
    """Pipe that collects the outputs of a whole split on the CPU, for metrics of all samples.

    `fields`: the parts of the output to collect; by default all that hold one value for each
    sample. A later pipe finds this object as `evaluation.data[name]`: it has a length, and fields
    by name.
    """

    def __init__(self, fields: Sequence[str] | None = None, *, name: str = "outputs") -> None:
        self.fields = None if fields is None else tuple(fields)
        self.name = name
        self._forget()

    def begin_eval(self, evaluation: Evaluation) -> None:
        self._forget()
        self._evaluation = evaluation
        evaluation.data[self.name] = self

    def __call__(self, output: Any) -> Any:
        size = self._evaluation.size
        for name, value in per_sample(output, size, self.fields, by="Collect").items():
            self._parts.setdefault(name, []).append(_copy_to_host(value))
        self._count += size
        return output

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Any:
        """Return a field of all samples, in order: a tensor, or a list.

        It is a list if its values differ in shape or are no tensors. InputError for an unknown
        field.
        """
        if name not in self._parts:
            fix = choose(name, self._parts)
            raise InputError(f"Collect has no field {name!r}.", fix=fix)
        parts = self._parts[name]
        if (
            all(isinstance(part, Tensor) for part in parts)
            and len({part.shape[1:] for part in parts}) == 1
        ):
            return torch.cat(parts)
        return [item for part in parts for item in part]

    def items(self) -> Iterator[dict[str, Any]]:
        """The samples one by one, each as its fields."""
        fields = {name: self[name] for name in self._parts}
        for place in range(self._count):
            yield {name: values[place] for name, values in fields.items()}

    def share(self) -> Any:
        """Return what the other ranks need of the outputs kept on this one."""
        return self._count, self._parts

    def join(self, shares: Sequence[Any]) -> None:
        """Merge the outputs of all ranks, whose batches were dealt out in turn, in split order."""
        self._forget()
        for count, parts in shares:
            self._count += count
            for name in parts:
                if name not in self._parts:
                    self._parts[name] = _in_turn([each.get(name, []) for _, each in shares])

    def _forget(self) -> None:
        self._parts: dict[str, list[Any]] = {}
        self._count = 0
        self._evaluation = Evaluation(split="")


class SaveOutputs:
    """Pipe that saves outputs as an artifact `valid/outputs_step100.jsonl`, one line a sample.

    A line holds `step`, `split`, `index` (the place in the split) and the `fields` of the output,
    or all that have one value for each sample. At most the first `limit` samples are kept.
    """

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        name: str = "outputs",
    ) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"SaveOutputs(limit={limit}): it must be at least 1.")
        self.fields = None if fields is None else tuple(fields)
        self.limit = limit
        self.name = name
        self._batches: list[list[Any]] = []
        self._evaluation = Evaluation(split="")

    def begin_eval(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._batches = []

    def __call__(self, output: Any) -> Any:
        left = None if self.limit is None else self.limit - sum(map(len, self._batches))
        if left is not None and left <= 0:
            return output
        found = per_sample(output, self._evaluation.size, self.fields, by="SaveOutputs")
        columns = {name: as_plain(value, name) for name, value in found.items()}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        self._batches.append(list(islice(rows, left)))
        return output

    def share(self) -> Any:
        """Return what the other ranks need of the outputs kept on this one."""
        return self._batches

    def join(self, shares: Sequence[Any]) -> None:
        """Merge the outputs of all ranks, whose batches were dealt out in turn, in split order."""
        self._batches = _in_turn(shares)

    def end_eval(self, evaluation: Evaluation) -> None:
        rows = islice((row for batch in self._batches for row in batch), self.limit)
        where = {"step": evaluation.step, "split": evaluation.split}
        data = "".join(
            f"{dumps({**where, 'index': index, **row})}\n" for index, row in enumerate(rows)
        ).encode()
        name = f"{evaluation.split}/{self.name}_step{evaluation.step}.jsonl"
        try_keep_artifact(evaluation.recorder, data, name, step=evaluation.step)
        self._batches = []


def per_sample(output: Any, size: int, fields: Sequence[str] | None, *, by: str) -> dict[str, Any]:
    """Return the parts of an output with one value for each of `size` samples.

    A lone tensor or list is named `output`. InputError if one of `fields` is no such part, or if
    there is none.
    """
    parts = dict(output) if isinstance(output, Mapping) else {"output": output}
    if fields is None:
        found = {
            name: value for name, value in parts.items() if name != LOSS and _count(value) == size
        }
        if not found:
            raise InputError(
                f"{by} finds nothing in the output that holds one value for each of the {size}"
                " samples.",
                fix="Return a mapping of tensors or lists whose first dim is the batch.",
            )
        return found
    for name in fields:
        if name not in parts:
            fix = did_you_mean(name, parts) or f"There are: {', '.join(map(str, parts))}."
            raise InputError(f"{by}: the output has no part {name!r}.", fix=fix)
        if _count(parts[name]) != size:
            raise InputError(
                f"{by}: {name!r} does not hold one value for each of the {size} samples."
            )
    return {name: parts[name] for name in fields}


def as_plain(value: Any, what: str) -> Any:
    """Return tensors, arrays and other values as JSON types; InputError names `what` if it cannot.

    >>> as_plain({"a": torch.tensor([1, 2]), "b": np.float32(0.5)}, "x")
    {'a': [1, 2], 'b': 0.5}
    """
    match value:
        case None | bool() | str():
            return value
        case Enum():
            return as_plain(value.value, what)
        case int() | float():
            return value.item() if isinstance(value, np.generic) else value
        case Tensor():
            return as_plain(value.detach().cpu().tolist(), what)
        case np.ndarray() | np.generic():
            return as_plain(value.tolist(), what)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case complex():
            return [value.real, value.imag]
        case date() | time():
            return value.isoformat()
        case PathLike():
            return as_plain(fspath(value), what)
        case Mapping():
            return {str(key): as_plain(item, f"{what}.{key}") for key, item in value.items()}
        case list() | tuple():
            return [as_plain(item, what) for item in value]
        case set() | frozenset():
            return sorted((as_plain(item, what) for item in value), key=repr)
    raise InputError(
        f"{what!r} holds a {type(value).__name__}, which cannot be written as JSON.",
        fix="Give numbers, text, tensors, arrays, lists or mappings of these.",
    )


def _in_turn(shares: Sequence[Sequence[Any]]) -> list[Any]:
    """Interleave the ranks' items: the first of each, the second of each, and so on.

    >>> _in_turn([[0, 2, 4], [1, 3]])
    [0, 1, 2, 3, 4]
    """
    return [
        each
        for row in zip_longest(*shares, fillvalue=_MISSING)
        for each in row
        if each is not _MISSING
    ]


def _count(value: Any) -> int:
    """Return the number of samples in a part of an output; -1 when it is not about samples."""
    if isinstance(value, Tensor | np.ndarray):
        return len(value) if value.ndim else -1
    return len(value) if isinstance(value, list | tuple) else -1


def _copy_to_host(value: Any) -> Any:
    """A copy that later batches cannot write into."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return (
        torch.from_numpy(value.copy())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        else value
    )


def _name(pipe: Any) -> str:
    return getattr(pipe, "__name__", type(pipe).__name__)


def check_mergeable(
    pipes: Sequence[Any], metrics: Mapping[str, Any], *, is_staged: bool = False
) -> None:
    """Raise InputError for a pipe or metric whose results cannot be merged over ranks."""
    for pipe in pipes:
        can_merge = hasattr(pipe, "share") and hasattr(pipe, "join")
        if callable(pipe) and hasattr(pipe, "end_eval") and not can_merge:
            name = type(pipe).__name__
            raise InputError(
                f"The pipe {name} sees the outputs of one rank, and ends as if they were all.",
                fix=f"Give {name} share(), which returns its state, and join(shares), which gets"
                " the states of all ranks in their order; or read what Collect gathered in"
                " end_eval.",
            )
    for name, metric in metrics.items():
        # Its `sync` would add over all processes, not over the last stage only.
        adds_up = hasattr(getattr(metric, "metric", None), "sync") and not is_staged
        if not hasattr(metric, "merge") and not adds_up:
            kind = type(metric.metric if isinstance(metric, Adapted) else metric).__name__
            raise InputError(
                f"The metric {name!r} is a {kind}, which cannot be added up over ranks.",
                fix="Give it a method merge(other): what another one has counted is added.",
            )


def gather_evaluation(
    ranks: DataParallelGroup,
    evaluation: Evaluation,
    pipes: Sequence[Any],
    metrics: Mapping[str, Any],
) -> None:
    """Merge counts, metrics and outputs of all ranks on the CPU, in rank order. Collective."""
    evaluation.samples = int(ranks.all_reduce_values([evaluation.samples])[0])
    for metric in metrics.values():
        if not hasattr(metric, "merge"):
            continue  # one of torchmetrics, which adds up by itself when it computes
        others = ranks.all_gather(metric)
        metric.reset()
        for other in others:
            metric.merge(other)
    for pipe in pipes:
        if hasattr(pipe, "join"):
            pipe.join(ranks.all_gather(pipe.share()))
