"""What a run is made of: model, optimizer, process and the batches of each split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from assay.compose.make_optimizer_step import make_optimizer_step
from assay.compose.run_scope import RunScope
from assay.compose.tasks import dataset_of, make_task
from assay.config.tree import Table, get_at, plain
from assay.core.errors import InputError
from assay.core.schema import parse_duration_s

if TYPE_CHECKING:
    from assay.build import Context
    from assay.engine import Loader, Process
    from assay.engine.data.streams import Stream
    from assay.engine.loop.process import Model


def make_process(scope: RunScope, *, training: bool) -> Process:
    """Task, model, optimizer, backward, criterion and process, in the order in which they need each
    other."""
    from assay.engine import as_process, seed_all
    from assay.engine.checkpoint.optimizer_state import idle_optimizer
    from assay.engine.loop.device import channels_last, move, place, use_threads
    from assay.engine.model.lazy_modules import refuse_lazy
    from assay.engine.numerics.precision import in_precision
    from assay.engine.numerics.seed import INIT, key
    from assay.engine.parallel.partition import partition_model

    context, settings = scope.context, scope.values("train")
    seed_all(key(scope.seed, INIT))
    if make_task(scope) is not None:
        seed_all(key(scope.seed, INIT))  # whatever it drew, the model begins the same
    model = scope.build("model")
    refuse_lazy(model)
    use_threads(plain(scope.root).get("threads", "auto"), model, ranks=scope.ranks_here)
    move(model, scope.device)
    if settings.get("channels_last"):
        channels_last(model)
    is_split = scope.mesh is not None and scope.mesh.layout.pipeline > 1
    if is_split and training:
        _speed_up(
            model, settings, is_split=True
        )  # it looks at blocks, of which each process is about to have a few
    if scope.mesh is not None:
        partition_model(model, scope.mesh, scope.values("parallel"))
    context.set("model", model)
    context.set("params", list(model.parameters()))
    if training:
        backward = make_optimizer_step(scope, model)
        context.set("backward", backward)
    else:
        backward = None
        context.set("optimizer", idle_optimizer())
    if "criterion" in scope.root.items:
        context.set("criterion", scope.build("criterion"))
    elif not training:
        context.set("criterion", None)
    written = scope.build("process")
    process: Process = as_process(written, model=model, backward=backward)
    for owner in {id(written): written, id(process): process}.values():
        place(owner, scope.device)
    evaluate = scope.values("evaluate").get("precision", "fp32")
    precision = settings.get("precision", "fp32")
    forward = in_precision(precision, scope.device, process.forward_step, evaluate=evaluate)
    process.forward_step = forward  # type: ignore[method-assign]
    context.set("process", process)
    if training and not is_split:
        _speed_up(model, settings)
    elif not training:
        promise_no_training(context)
    return process


def _speed_up(model: Model, settings: dict[str, Any], *, is_split: bool = False) -> None:
    """Last of all: what is built with the model sees it as it was written."""
    from assay.engine.model.compiling import compiled
    from assay.engine.model.recompute import recompute

    if is_split and settings.get("compile") is True:
        fix = 'Write compile = "blocks", or patterns of names.'
        raise InputError(
            "[train] compile = true is for a whole model; a pipeline has parts of it.", fix=fix
        )
    recompute(model, settings.get("activation_checkpoint", False))
    compiled(model, settings.get("compile", False))


def promise_no_training(context: Context) -> None:
    """What a test does without; asking for it says so."""
    from assay.build import Promise

    for name in ("optimizer", "schedule", "backward", "engine", "state"):
        context.promise(name, Promise(never="this is a test, which does not train"))


def make_loader(scope: RunScope, split: str) -> Iterable[Any]:
    """The batches of a split: those of its source, or made of its samples."""
    from assay.engine import Loader
    from assay.engine.data.adopt import gives_samples
    from assay.engine.data.loader import is_dataset
    from assay.engine.data.streams import Stream
    from assay.engine.loop.names import LOADERS

    settings = scope.values("data", split)
    source, collate = _source(scope, split)
    if settings.get("workers") or getattr(source, "num_workers", 0):
        scope.context.check_for_workers(source, f"data.{split}.source")
    if isinstance(source, Stream):
        others = {key: settings[key] for key in settings if key != "source"}
        return _stream_loader(scope, split, source, others, collate)
    if gives_samples(source):
        return _batches_of_samples(scope, split, source, settings, collate)
    if not is_dataset(source):
        if collate is not None:
            raise InputError(
                f"The task gave a collate with data.{split}, which gives whole batches."
            )
        _check_batches(scope, split, source)
        scope.context.set(f"{split}_loader", source, type=LOADERS.get(split))
        return source  # type: ignore[no-any-return]
    if not {"batch_size", "micro_batch_size", "batch_sampler"} & settings.keys():
        raise InputError(
            f"[data.{split}] has no batch_size.", fix=f"Write batch_size = 64 under [data.{split}]."
        )
    given = _loader_settings(scope, split, settings)
    if collate is not None:
        given.setdefault("collate", collate)
    loader = Loader(source, seed=scope.seed, split=split, **given)
    scope.closing.callback(loader.close)
    if not loader.steps_per_epoch:
        _refuse_empty(scope, split, loader)
    scope.context.set(f"{split}_loader", loader, type=LOADERS.get(split))
    return loader


def _source(scope: RunScope, split: str) -> tuple[Any, Any]:
    """What the data of a split come from, and the collate that a task gave with them, None for
    none."""
    if get_at(scope.root, ("data", split, "source")) is not None:
        return scope.build_at(("data", split, "source")), None
    found = dataset_of(scope, split)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        return found, None
    data, options = found
    unknown = [str(name) for name in options if name not in ("collate", "collate_fn")]
    if unknown:
        what = f"The task gave `{unknown[0]}` with the data of the split {split!r}."
        raise InputError(
            what, fix=f"It may give `collate`; the rest is written under [data.{split}]."
        )
    return data, options.get("collate", options.get("collate_fn"))


def _loader_settings(scope: RunScope, split: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The table of a split as arguments of a `Loader`."""
    calls = ("sampler", "batch_sampler", "collate", "worker_init")
    given = {
        name: value for name, value in settings.items() if name not in ("source", "timeout", *calls)
    }
    for name in calls:
        if name in settings:
            given[name] = scope.build_at(("data", split, name))
            if settings.get("workers"):
                scope.context.check_for_workers(given[name], f"data.{split}.{name}")
    if "timeout" in settings:
        given["timeout_s"] = parse_duration_s(settings["timeout"])
    given.setdefault("pin_memory", scope.device.type == "cuda")
    if scope.ranks is not None:
        given |= {"rank": scope.ranks.rank, "ranks": scope.ranks.size}
    if split == "train":
        if "sampler" not in settings and "batch_sampler" not in settings:
            given.setdefault("shuffle", True)
        accumulate = scope.values("train").get("accumulate")
        if accumulate is not None:
            given["accumulate"] = accumulate
    elif scope.ranks is not None and "micro_batch_size" not in given and "batch_size" in given:
        given["micro_batch_size"] = given.pop("batch_size")  # that of each rank
    return given


def _refuse_empty(scope: RunScope, split: str, loader: Loader) -> None:
    """At the start, not at the first evaluation an hour later."""
    table = get_at(scope.root, ("data", split))
    assert isinstance(table, Table)
    written = table.items.get("source", table)
    size, batch = len(loader.dataset), loader.batch_size
    if not size:
        kind = type(loader.dataset).__name__
        raise InputError(
            f"data.{split} is empty: the {kind} has no samples.",
            where=str(written.origin),
            fix="Look at its arguments: a path, a name of a split, a filter that lets nothing through.",
        )
    raise InputError(
        f"data.{split} has {size} samples, fewer than one batch of {batch}, and drop_last leaves them out.",
        where=str(table.key_origin("batch_size")),
        fix=f"batch_size = {size} at most, or drop_last = false.",
    )


def _stream_loader(
    scope: RunScope, split: str, stream: Stream, settings: dict[str, Any], collate: Any
) -> Iterable[Any]:
    """The batches of a stream, which makes them itself; `collate` unless the config says
    another."""
    from assay.engine.data.stream_loader import StreamLoader
    from assay.engine.loop.names import LOADERS

    workers = settings.pop("workers", 0)
    if settings.pop("collate", None):
        collate = scope.build_at(("data", split, "collate"))
    table = get_at(scope.root, ("data", split))
    if settings and isinstance(table, Table):
        name = next(iter(settings))
        fix = (
            "streams.Shuffle shuffles a stream."
            if name == "shuffle"
            else "streams.Batch and streams.Bucket make its batches."
        )
        what = f"data.{split}: `{name}` is for items by index, but this is a stream."
        raise InputError(what, where=str(table.key_origin(name)), fix=fix)
    accumulate = scope.values("train").get("accumulate", 1) if split == "train" else 1
    loader = StreamLoader(
        stream,
        seed=scope.seed,
        split=split,
        accumulate=accumulate,
        workers=workers,
        collate=collate,
    )
    scope.context.set(f"{split}_loader", loader, type=LOADERS.get(split))
    return loader


def _batches_of_samples(
    scope: RunScope, split: str, dataset: Any, settings: dict[str, Any], collate: Any
) -> Iterable[Any]:
    """Return batches of what an IterableDataset gives; InputError for keys of items by index."""
    from assay.build.sources import ORDER_KEYS, SHUFFLE_INSIDE, batches_of
    from assay.engine.data.adopt import batched
    from assay.engine.data.batch_size import batch_size
    from assay.engine.loop.names import LOADERS

    table = get_at(scope.root, ("data", split))
    assert isinstance(table, Table)
    node, kind = table.items.get("source"), type(dataset).__name__
    if "batch_size" not in settings:
        what = f"data.{split}: {kind} is an IterableDataset, which gives samples, and there is no batch_size."
        raise InputError(
            what,
            where=str(node.origin if node is not None else table.origin),
            fix=batches_of(split),
        )
    for name in ORDER_KEYS:
        if name in settings:
            what = f"data.{split}: `{name}` is for items by index, but a {kind} gives one sample after the other."
            raise InputError(what, where=str(table.key_origin(name)), fix=SHUFFLE_INSIDE)
    given = _loader_settings(scope, split, settings)
    sizes = batch_size(settings["batch_size"], accumulate=given.get("accumulate"), split=split)
    for name in ("batch_size", "micro_batch_size", "accumulate", "shuffle", "rank", "ranks"):
        given.pop(name, None)
    if collate is not None:
        given.setdefault("collate", collate)
    loader = batched(dataset, batch_size=sizes.micro, **given)
    scope.context.set(f"{split}_loader", loader, type=LOADERS.get(split))
    return loader


def _check_batches(scope: RunScope, split: str, source: Any) -> None:
    """InputError when `source`, which is no data set, cannot give the batches of a split as the
    config asks for."""
    from assay.build import loader_keys

    table = get_at(scope.root, ("data", split))
    assert isinstance(table, Table)
    node = table.items.get("source")
    name, where = type(source).__name__, str(node.origin if node is not None else table.origin)
    if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
        fix = "Give a data set (__len__ and __getitem__), or an iterable of batches."
        raise InputError(
            f"data.{split}: a {name} can neither be iterated nor asked for an item.",
            where=where,
            fix=fix,
        )
    keys = loader_keys(table)
    if keys:
        raise InputError(
            f"data.{split}: a {name} has no length or no items by index, so it gives batches itself; {keys[0]} would"
            " have to make them.",
            where=str(table.key_origin(keys[0])),
            fix="Leave it out, or give a data set (__len__ and __getitem__).",
        )
    if split != "train" and isinstance(source, Iterator):
        fix = "Give something that can be iterated again: a class with __iter__, a DataLoader."
        raise InputError(
            f"data.{split}: a {name} can be gone through once only.", where=where, fix=fix
        )


def splits_of(root: Table) -> list[str]:
    node = root.items.get("data")
    return list(node.items) if isinstance(node, Table) else []
