"""Checks of [data] against the classes of its sources: data sets are batched, iterables are not."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from assay.build.graph import expected_type
from assay.config.tree import Leaf, Table
from assay.core import schema
from assay.core.diagnostics import Problem

ORDER_KEYS = ("shuffle", "sampler", "batch_sampler", "randomness")
"""Keys of a split that need items by index."""
SHUFFLE_INSIDE = (
    "leave it out, and shuffle inside of the data set; or make it a stream with streams.Shuffle"
    " (assay.engine.chain)"
)


def check_sources(
    root: Table, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> list[Problem]:
    """Return the problems of all splits whose source is of a known class; inside `user_code`."""
    data = root.items.get("data")
    splits = data.items if isinstance(data, Table) else {}
    problems: list[Problem] = []
    for split, table in splits.items():
        if isinstance(table, Table):
            problems += _clashes(split, table)
        kind = expected_type(root, ("data", split, "source"), user_dirs=user_dirs, trusted=trusted)
        if isinstance(table, Table) and isinstance(kind, type):
            problems += _problems(split, table, kind)
    return problems


def loader_keys(table: Table) -> list[str]:
    """Return the keys of a split that say how batches are made."""
    data = schema.section("data")
    known = {key.name for key in data.keys} if data else set()
    return [key for key in table.items if key in known and key != "source"]


def _clashes(split: str, table: Table) -> Iterator[Problem]:
    """Return keys that say the same thing twice, and keys of workers where there are none."""
    for one, other, why in schema.LOADER_CLASHES:
        if one in table.items and other in table.items:
            yield Problem(
                kind="clash",
                message=f"`{one}` and `{other}` do not go together: {why}",
                origin=table.key_origin(other),
                key=f"data.{split}.{other}",
                fix="leave one of them out",
            )
    if split != "train" and "micro_batch_size" in table.items:
        yield Problem(
            kind="unused-key",
            message="`micro_batch_size` divides a batch of [data.train]; no other is divided",
            origin=table.key_origin("micro_batch_size"),
            key=f"data.{split}.micro_batch_size",
            fix=f"write it as batch_size under [data.{split}]",
        )
    workers = table.items.get("workers")
    if workers is None or (isinstance(workers, Leaf) and workers.value == 0):
        for name in schema.LOADER_OF_WORKERS:
            if name in table.items:
                yield Problem(
                    kind="unused-key",
                    message=f"`{name}` is of worker processes, and there are none",
                    origin=table.key_origin(name),
                    key=f"data.{split}.{name}",
                    fix=f"leave it out, or write workers = 2 under [data.{split}]",
                )


def _problems(split: str, table: Table, kind: type) -> Iterator[Problem]:
    origin = table.items["source"].origin
    key = f"data.{split}"
    if _is_dataset(kind):
        if not {"batch_size", "micro_batch_size", "batch_sampler"} & table.items.keys():
            message = f"[{key}] has no `batch_size`"
            fix = f"write batch_size = 64 under [{key}]"
            yield Problem(kind="missing-key", message=message, origin=origin, key=key, fix=fix)
    elif not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        message = (
            f"a `{kind.__name__}` is no data: it can neither be iterated nor asked for an item"
        )
        fix = "give a data set (__len__ and __getitem__), or an iterable of batches"
        yield Problem(
            kind="wrong-type", message=message, origin=origin, key=f"{key}.source", fix=fix
        )
    elif _gives_samples(kind):
        yield from _of_samples(split, table, kind)
    else:
        yield from _of_batches(key, table, kind)


def _of_samples(split: str, table: Table, kind: type) -> Iterator[Problem]:
    """Yield the problems of an iterable of samples."""
    origin = table.items["source"].origin
    key = f"data.{split}"
    if not {"batch_size", "micro_batch_size"} & table.items.keys():
        message = (
            f"[{key}] has no `batch_size`, and a `{kind.__name__}` gives samples: it is an"
            " IterableDataset"
        )
        yield Problem(
            kind="missing-key", message=message, origin=origin, key=key, fix=batches_of(split)
        )
    for name in ORDER_KEYS:
        if name in table.items:
            message = (
                f"`{name}` is for items by index, but a `{kind.__name__}` gives one sample"
                " after the other"
            )
            place = table.key_origin(name)
            yield Problem(
                kind="unused-key",
                message=message,
                origin=place,
                key=f"{key}.{name}",
                fix=SHUFFLE_INSIDE,
            )


def _of_batches(key: str, table: Table, kind: type) -> Iterator[Problem]:
    """Yield the problems of an iterable of batches."""
    for name in loader_keys(table):
        message = f"`{name}` says how to make batches, but a `{kind.__name__}` gives batches itself"
        fix = (
            "leave it out; or, if it gives samples, derive it from torch.utils.data.IterableDataset"
        )
        yield Problem(
            kind="unused-key",
            message=message,
            origin=table.key_origin(name),
            key=f"{key}.{name}",
            fix=fix,
        )


def batches_of(split: str) -> str:
    """Return the advice on making batches of an IterableDataset."""
    return (
        f"write batch_size = 64 under [data.{split}]; or, if it gives whole batches,"
        ' source = { type = "torch.utils.data.DataLoader", dataset = { ... },'
        ' batch_size = "@none" }'
    )


def _gives_samples(kind: type) -> bool:
    """Return True for an IterableDataset that is no loader; only its items would tell for sure.

    Streams of assay make batches themselves.
    """
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    is_ours = any(each.__module__.startswith("assay.engine.") for each in kind.__mro__)
    return issubclass(kind, stream) and not is_ours and not kind.__name__.endswith("Loader")


def _is_dataset(kind: type) -> bool:
    """Return True for map-style data; torch's IterableDataset inherits `__getitem__` without it."""
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    return (
        hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not issubclass(kind, stream)
    )
