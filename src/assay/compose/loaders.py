"""Batches of each split: made of samples by a loader, or given by the source itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.compose.run_scope import (
    RunScope,
    dataset_of,
    make_task,
    open_run_scope,
    promise_no_training,
)
from assay.config.loading import Config
from assay.config.resolver import asks_lengths
from assay.config.tree import Table, get_at
from assay.core.errors import InputError, did_you_mean
from assay.core.schema import parse_duration_s
from assay.core.sections import SplitSection

if TYPE_CHECKING:
    from assay.engine import Loader
    from assay.engine.data.streams import Stream


_CALLS = ("sampler", "batch_sampler", "collate", "worker_init")
_ABOUT_STREAMS = ("source", "workers", "collate")


def splits_of(root: Table) -> list[str]:
    """Return the names of the splits of a config."""
    node = root.items.get("data")
    return list(node.items) if isinstance(node, Table) else []


def make_loader(scope: RunScope, split: str) -> Iterable[Any]:
    """Return the batches of a split, and put them into the context as `SPLIT_loader`."""
    from assay.engine.data.adopt import gives_samples
    from assay.engine.data.loader import is_dataset
    from assay.engine.data.streams import Stream
    from assay.engine.loop.names import LOADERS

    section = scope.sections.data.get(split) or SplitSection()
    source, collate = _make_source(scope, split)
    if section.workers or getattr(source, "num_workers", 0):
        scope.context.check_for_workers(source, f"data.{split}.source")
    loader: Iterable[Any]
    if isinstance(source, Stream):
        loader = _load_stream(scope, split, source, section, collate)
    elif gives_samples(source):
        loader = _load_samples(scope, split, source, section, collate)
    elif is_dataset(source):
        loader = _load_dataset(scope, split, source, section, collate)
    else:
        _check_batches(scope, split, source, collate)
        loader = source
    scope.context.set(f"{split}_loader", loader, type=LOADERS.get(split))
    return loader


def _make_source(scope: RunScope, split: str) -> tuple[Any, Any]:
    """Return the source of a split, and the collate that the task gave with it, None for none."""
    made_by_task: Any
    if get_at(scope.root, ("data", split, "source")) is not None:
        source = scope.build_at(("data", split, "source"))
        # A task of an older style loads what it is given: its word is the last.
        load = getattr(make_task(scope), "load_source", None)
        if load is None:
            return source, None
        made_by_task = load(split, source)
    else:
        made_by_task = dataset_of(scope, split)
    if not (
        isinstance(made_by_task, tuple)
        and len(made_by_task) == 2
        and isinstance(made_by_task[1], Mapping)
    ):
        return made_by_task, None
    data, options = made_by_task
    unknown = [str(name) for name in options if name not in ("collate", "collate_fn")]
    if unknown:
        raise InputError(
            f"The task gave `{unknown[0]}` with the data of the split {split!r}.",
            fix=f"It may give `collate`; the rest is written under [data.{split}].",
        )
    return data, options.get("collate", options.get("collate_fn"))


def _split_table(scope: RunScope, split: str) -> Table:
    """Return the table of a split as it is written, for the places of its keys."""
    table = get_at(scope.root, ("data", split))
    assert isinstance(table, Table)
    return table


def _source_place(table: Table) -> str:
    return str(table.items.get("source", table).origin)


def _load_dataset(
    scope: RunScope, split: str, dataset: Any, section: SplitSection, collate: Any
) -> Loader:
    """Return the loader of a map-style dataset; InputError for one without a batch size."""
    from assay.engine import Loader

    sizes = (section.batch_size, section.micro_batch_size, section.batch_sampler)
    if all(size is None for size in sizes):
        raise InputError(
            f"[data.{split}] has no batch_size.", fix=f"Write batch_size = 64 under [data.{split}]."
        )
    arguments = {
        **_worker_arguments(scope, split, section, collate),
        **_order_arguments(scope, section),
    }
    arguments |= _size_arguments(scope, split, section)
    if split == "train" and section.sampler is None and section.batch_sampler is None:
        arguments["shuffle"] = True if section.shuffle is None else section.shuffle
    loader = Loader(dataset, seed=scope.seed, split=split, **arguments)
    scope.closing.callback(loader.close)
    if not loader.steps_per_epoch:
        _refuse_empty(scope, split, loader)
    return loader


def _worker_arguments(
    scope: RunScope, split: str, section: SplitSection, collate: Any
) -> dict[str, Any]:
    """Return the arguments that every loader takes; `collate` unless the config has one."""
    pin_memory = section.pin_memory
    arguments: dict[str, Any] = {
        "drop_last": section.drop_last,
        "workers": section.workers,
        "prefetch": section.prefetch,
        "persistent_workers": section.persistent_workers,
        "pin_memory": scope.device.type == "cuda" if pin_memory is None else pin_memory,
        "start_method": section.start_method,
        "collate": collate,
    }
    if section.timeout is not None:
        arguments["timeout_s"] = parse_duration_s(section.timeout)
    return arguments | _build_calls(scope, split, section)


def _build_calls(scope: RunScope, split: str, section: SplitSection) -> dict[str, Any]:
    built = {}
    for name in _CALLS:
        if getattr(section, name) is not None:
            built[name] = scope.build_at(("data", split, name))
            if section.workers:
                scope.context.check_for_workers(built[name], f"data.{split}.{name}")
    return built


def _order_arguments(scope: RunScope, section: SplitSection) -> dict[str, Any]:
    """Return the arguments for the order of samples, and this rank's share of it."""
    arguments: dict[str, Any] = {"shuffle": section.shuffle, "randomness": section.randomness}
    if scope.ranks is not None:
        arguments |= {"rank": scope.ranks.rank, "ranks": scope.ranks.size}
    return arguments


def _size_arguments(scope: RunScope, split: str, section: SplitSection) -> dict[str, Any]:
    """Return the sizes of batches: of train over all ranks, of any other split for each rank."""
    if split == "train":
        return {
            "batch_size": section.batch_size,
            "micro_batch_size": section.micro_batch_size,
            "accumulate": scope.sections.train.accumulate,
        }
    if scope.ranks is not None and section.micro_batch_size is None:
        return {"micro_batch_size": section.batch_size}
    return {"batch_size": section.batch_size, "micro_batch_size": section.micro_batch_size}


def _refuse_empty(scope: RunScope, split: str, loader: Loader) -> None:
    """Raise InputError for a split without a batch: now, not at an evaluation an hour later."""
    table = _split_table(scope, split)
    size = len(loader.dataset)
    batch = loader.batch_size
    if not size:
        kind = type(loader.dataset).__name__
        raise InputError(
            f"data.{split} is empty: the {kind} has no samples.",
            where=_source_place(table),
            fix="Look at its arguments: a path, a name of a split, a filter that lets nothing"
            " through.",
        )
    raise InputError(
        f"data.{split} has {size} samples, fewer than one batch of {batch}, and drop_last leaves"
        " them out.",
        where=str(table.key_origin("batch_size")),
        fix=f"batch_size = {size} at most, or drop_last = false.",
    )


def _load_stream(
    scope: RunScope, split: str, stream: Stream, section: SplitSection, collate: Any
) -> Iterable[Any]:
    """Return the batches of a stream, which makes them itself; `collate` unless the config has one.

    InputError for keys of items by index.
    """
    from assay.engine.data.stream_loader import StreamLoader

    if section.collate:
        collate = scope.build_at(("data", split, "collate"))
    table = get_at(scope.root, ("data", split))
    written = table.items if isinstance(table, Table) else {}
    for name in written:
        if name not in _ABOUT_STREAMS:
            _refuse_index_key(_split_table(scope, split), split, name)
    accumulate = scope.sections.train.accumulate if split == "train" else None
    return StreamLoader(
        stream,
        seed=scope.seed,
        split=split,
        accumulate=accumulate or 1,
        workers=section.workers,
        collate=collate,
    )


def _refuse_index_key(table: Table, split: str, name: str) -> None:
    fix = "streams.Batch and streams.Bucket, among its pipes, make its batches."
    if name == "shuffle":
        fix = 'Add the pipe { type = "assay.engine.data.streams.Shuffle", buffer = 500 }.'
    what = f"data.{split}: `{name}` is for items by index, but this is a stream."
    raise InputError(what, where=str(table.key_origin(name)), fix=fix)


def _load_samples(
    scope: RunScope, split: str, dataset: Any, section: SplitSection, collate: Any
) -> Iterable[Any]:
    """Return batches of an IterableDataset; InputError for keys of items by index."""
    from assay.build.sources import ORDER_KEYS, SHUFFLE_INSIDE, batches_of
    from assay.engine.data.adopt import batch_stream
    from assay.engine.data.batch_size import batch_size

    table = _split_table(scope, split)
    kind = type(dataset).__name__
    if section.batch_size is None and section.micro_batch_size is None:
        raise InputError(
            f"data.{split}: {kind} is an IterableDataset, which gives samples, and there is no"
            " batch_size.",
            where=_source_place(table),
            fix=batches_of(split),
        )
    for name in ORDER_KEYS:
        if name in table.items:
            raise InputError(
                f"data.{split}: `{name}` is for items by index, but a {kind} gives one sample"
                " after the other.",
                where=str(table.key_origin(name)),
                fix=SHUFFLE_INSIDE,
            )
    accumulate = scope.sections.train.accumulate if split == "train" else None
    micro = section.micro_batch_size
    sizes = batch_size(section.batch_size, micro=micro, accumulate=accumulate, split=split)
    arguments = _worker_arguments(scope, split, section, collate)
    if "persistent_workers" not in table.items:
        # A worker that stays has its copy of the dataset from the epoch before, and its state.
        arguments["persistent_workers"] = False
    return batch_stream(dataset, batch_size=sizes.micro, **arguments)


def _check_batches(scope: RunScope, split: str, source: Any, collate: Any) -> None:
    """Raise InputError when `source`, which is no dataset, cannot give the batches of a split."""
    from assay.build import loader_keys

    if collate is not None:
        raise InputError(f"The task gave a collate with data.{split}, which gives whole batches.")
    table = _split_table(scope, split)
    name = type(source).__name__
    where = _source_place(table)
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        raise InputError(
            f"data.{split}: a {name} can neither be iterated nor asked for an item.",
            where=where,
            fix="Give a data set (__len__ and __getitem__), or an iterable of batches.",
        )
    if keys := loader_keys(table):
        raise InputError(
            f"data.{split}: a {name} has no length or no items by index, so it gives batches"
            f" itself; {keys[0]} would have to make them.",
            where=str(table.key_origin(keys[0])),
            fix="Leave it out, or give a data set (__len__ and __getitem__).",
        )
    if split != "train" and isinstance(source, Iterator):
        raise InputError(
            f"data.{split}: a {name} can be gone through once only.",
            where=where,
            fix="Give something that can be iterated again: a class with __iter__, a DataLoader.",
        )


def lengths_of(config: Config, splits: Sequence[str]) -> dict[str, int]:
    """Return the optimizer steps of an epoch of each split, or its batches if not trained on.

    Builds the dataset of each.
    """
    data = config.root.items.get("data")
    if isinstance(data, Table) and (asked := asks_lengths(data)):
        raise InputError(
            f"The data cannot depend on how long data.{asked[0]} is.", fix="Write the number."
        )
    lengths = {}
    with open_run_scope(config, Launch()) as scope:
        promise_no_training(scope.context)
        for split in splits:
            known = splits_of(scope.root)
            if split not in known:
                fix = did_you_mean(split, known) or f"There are: {', '.join(known)}."
                raise InputError(
                    f"`${{length:data.{split}}}`: there is no [data.{split}].", fix=fix
                )
            length = _length(scope, split)
            if length is None:
                raise InputError(
                    f"`${{length:data.{split}}}`: nobody knows how long data.{split} is.",
                    fix="Write it.",
                )
            lengths[split] = length
    return lengths


def _length(scope: RunScope, split: str) -> int | None:
    from assay.engine.data.adopt import as_source
    from assay.engine.data.source import Source

    data = make_loader(scope, split)
    if isinstance(data, Source):
        return data.steps_per_epoch
    accumulate = (scope.sections.train.accumulate or 1) if split == "train" else 1
    return as_source(data, accumulate=accumulate).steps_per_epoch
