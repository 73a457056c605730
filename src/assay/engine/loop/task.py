"""A task: what is to be learned, apart from who learns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import InputError, choose
from assay.engine.metrics.metric import Metric
from assay.engine.metrics.outputs import as_plain
from assay.formats.json_codec import dumps


class Task:
    """Data sets by split, what is known about them (`meta`), and how models are evaluated on them.

    A data set may be a factory (`_partial_ = true` in a config), which is called when its split is
    needed. `metrics` and `pipes` are those of every evaluation, whatever the model. A class of your
    own may have `dataset(split)` instead, which may return (data, {"collate": function}), and set
    `meta`: classes, a tokenizer's words, vectors. What `meta` holds is kept in the record.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Metric] | None = None,
        pipes: Sequence[Any] = (),
    ) -> None:
        self.datasets = dict(datasets or {})
        self.meta: Mapping[str, Any] = dict(meta or {})
        self.metrics: Mapping[str, Metric] = dict(metrics or {})
        self.pipes: Sequence[Any] = list(pipes)

    def dataset(self, split: str) -> Any:
        """The data set, or the batches, of a split. InputError when there is none."""
        if split not in self.datasets:
            fix = choose(split, self.datasets, "it has")
            raise InputError(f"{type(self).__name__} has no data for the split {split!r}.", fix=fix)
        found = self.datasets[split]
        is_data = hasattr(found, "__getitem__") or hasattr(found, "__iter__")
        if callable(found) and not is_data:
            found = self.datasets[split] = found()
        return found


def meta_of(task: Any) -> bytes:
    """The meta data of a task as JSON; InputError names what cannot be written."""
    meta = getattr(task, "meta", None) or {}
    return (dumps(as_plain(dict(meta), "meta")) + "\n").encode()
