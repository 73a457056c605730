"""Translation of a config of LiBai, `dataloader`, `train`, `optim`, `graph`, to our sections.

Keys of `train` that have an alias stay for it: `train_iter`, `train_epoch`, `eval_period`,
`log_period`, `amp`, `recompute_grad`, `zero_optimization` and those of NCCL. A key that means
nothing here is left where it is, so that the check of the config reports it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from assay.compat.tables import SCHEDULES, rename_arguments
from assay.config.tree import (
    CLI,
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    dotted,
    fit_path,
    from_plain,
    get_at,
    is_reference,
    key_origin_at,
    parse_dotted,
    plain,
    problem_at,
    reference_of,
    set_at,
    transform,
    walk,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import InputError

_OF_LIBAI = "assay.compat.libai.loaders"
_PLACES = ("libai.data.build", "libai.data", _OF_LIBAI)
_SPLITTING = [f"{place}.build_nlp_train_val_test_loader" for place in _PLACES]
"""Loaders of which one call makes train, validation and test."""

_LOADERS = [
    *(f"{place}.build_{kind}_train_loader" for place in _PLACES for kind in ("image", "nlp")),
    *_SPLITTING,
]
_ENDLESS = 10**8
"""An `eval_iter` from here on means all batches: LiBai's default is 1e9."""

DEFAULT_OPTIMIZER = {"type": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.01}
"""Optimizer of LiBai's `common/optim.py`, for a config that has no `optim`."""

SECTIONS = ("dataloader", "graph", "optim", "tokenization")
"""Sections of a config of LiBai that have another name here."""

TRAIN_KEYS = frozenset(
    {
        *("output_dir", "train_micro_batch_size", "test_micro_batch_size", "global_batch_size"),
        *("num_accumulation_steps", "train_iter", "train_epoch", "iter_per_epoch", "start_iter"),
        *("consumed_train_samples", "consumed_valid_samples", "train_samples", "warmup_ratio"),
        *("amp", "nccl_fusion_threshold_mb", "nccl_fusion_max_ops", "zero_optimization"),
        *("checkpointer", "evaluation", "eval_period", "topk", "recompute_grad", "load_weight"),
        *("log_period", "scheduler", "dist", "seed"),
    }
)
"""Keys of `train` in LiBai that are other keys here."""


def translate_libai(root: Table) -> tuple[Table, list[Problem]]:
    """Return a config of LiBai with the sections of assay, and notes; others as they are."""
    loader = get_at(root, ("dataloader", "train", "type"))
    if not isinstance(loader, Leaf) or loader.value not in _LOADERS:
        return root, []
    made = _Translation(_with_copies(root))
    _drop_doubles(made)
    _move_tokenizer(made)
    tests = _move_data(made)
    _move_batch_sizes(made, tests)
    _move_length(made)
    _move_evaluation(made, tests)
    _move_optimizer(made)
    _move_schedule(made)
    _move_checkpoints(made)
    _move_parallel(made)
    _move_rest(made)
    note = "a config of LiBai: `dataloader` is `data` here, `optim` is `optimizer`"
    made.note(("dataloader",), note, root.key_origin("dataloader"))
    return made.root, made.notes


_DOUBLES: tuple[tuple[KeyPath, KeyPath], ...] = (
    (("train", "evaluation", "eval_period"), ("train", "eval_period")),
    (("train", "evaluation", "evaluator", "topk"), ("train", "topk")),
)
"""Keys of which LiBai's texts know two places, the more exact one first."""


def _drop_doubles(made: _Translation) -> None:
    """Leave one of two keys for the same thing: the later one, else the more exact one.

    The command line is later than the config, which is later than what it imports.
    """

    def rank(path: KeyPath) -> int:
        source = key_origin_at(made.root, path).source
        return 2 if source == CLI else 1 if source == made.root.origin.source else 0

    for pair in _DOUBLES:
        if any(get_at(made.root, path) is None for path in pair):
            continue
        loser, winner = sorted(reversed(pair), key=rank)
        origin = key_origin_at(made.root, loser)
        made.root = delete_at(made.root, loser)
        made.note(loser, f"`{dotted(winner)}` is given too and counts", origin)


_MOST_REFERENCES = 16
"""References that may lead on to one another: a longer chain is a circle."""


def _with_copies(root: Table) -> Table:
    """Return `root` with each reference to a part of `dataloader` replaced by that part.

    Its sections are about to get other names. Sets that were built from one another share a node.
    """

    def follow(node: Node, _: KeyPath) -> Node:
        for _step in range(_MOST_REFERENCES):
            path = reference_of(node) if is_reference(node) else None
            if path is None or path[0] != "dataloader":
                break
            found = get_at(root, fit_path(root, path))
            if found is None:
                break
            node = found
        return node

    for _step in range(_MOST_REFERENCES):
        copied = transform(root, follow)
        if copied is root:
            break
        assert isinstance(copied, Table)
        root = copied
    return root


class _Translation:
    """Config that is being translated: keys are taken from the old places and put to new ones."""

    def __init__(self, root: Table) -> None:
        self.root = root
        self.notes: list[Problem] = []
        self.origin = root.origin

    def take(self, path: str) -> Node | None:
        """Remove a node and return it; None if there is none."""
        parts = parse_dotted(path)
        node = get_at(self.root, parts)
        if node is not None:
            if not (isinstance(node, Leaf) and node.value is None):  # nothing follows from that
                self.origin = key_origin_at(self.root, parts)
            self.root = delete_at(self.root, parts)
        return node

    def value(self, path: str) -> Any:
        """Remove a value and return it as plain data; None if there is none."""
        node = self.take(path)
        return None if node is None else plain(node)

    def number(self, path: str) -> Any:
        """Remove a number and return it; None if there is none, or another value, which is told."""
        node = self.take(path)
        value = None if node is None else plain(node)
        if value is None or (type(value) in (int, float) and math.isfinite(value)):
            return value
        assert node is not None
        message = f"`{path}` of a config of LiBai must be a number"
        self.notes.append(problem_at("wrong-type", message, node, path))
        return None

    def drop(self, path: str, *empty: Any) -> None:
        """Remove a value that says nothing, such as `load_weight=""`; keep any other."""
        node = get_at(self.root, parse_dotted(path))
        if node is not None and plain(node) in (None, *empty):
            self.take(path)

    def put(self, path: str, value: Any) -> None:
        """Set a node or plain data unless the config has the key; its origin is what was taken."""
        parts = parse_dotted(path)
        if value is None or get_at(self.root, parts) is not None:
            return
        is_node = isinstance(value, Table | List | Leaf)
        node = value if is_node else from_plain(value, self.origin)
        with contextlib.suppress(KeyError):  # a value where a table is needed: the check reports it
            self.root = set_at(self.root, parts, node, self.origin)

    def note(self, path: KeyPath, message: str, origin: Origin) -> None:
        """Say once what became of a key."""
        key = ".".join(map(str, path))
        self.notes.append(
            Problem(
                kind="alias", severity="note", message=f"`{key}`: {message}", origin=origin, key=key
            )
        )


def _move_data(made: _Translation) -> list[str]:
    """Make the splits; return the names of those that are for tests."""
    train = made.take("dataloader.train")
    assert isinstance(train, Table)
    if plain(train)["type"] in _SPLITTING:
        for number, name in enumerate(("train", "valid", "test")):
            made.put(f"data.{name}", _part(train, number))
        made.drop("dataloader", {})
        return ["test"]
    made.put("data.train", _split(train))
    tests = made.take("dataloader.test")
    calls = tests.items if isinstance(tests, List) else [tests] if tests is not None else []
    names = ["test"] if len(calls) == 1 else [f"test_{i}" for i in range(len(calls))]
    for name, call in zip(names, calls, strict=True):
        made.put(f"data.{name}", _split(call) if isinstance(call, Table) else call)
    made.drop("dataloader", {})
    return names


def _split(call: Table) -> Table:
    """Return the section of a split for a call of one of LiBai's loaders."""
    names = {"dataset": "source", "num_workers": "workers", "collate_fn": "collate"}
    split = Table({}, call.origin)
    for key, node in call.items.items():
        if key == "type" or (isinstance(node, Leaf) and node.value is None):
            continue
        item = _join(node) if key == "dataset" else node
        split = set_at(split, (names.get(key, key),), item, call.key_origin(key))
    return split


_OF_SPLITTING = ("splits", "weights", "train_val_test_num_samples", "seed")


def _part(call: Table, number: int) -> Table:
    """Return the section of part `number` of a loader that splits its data set."""
    given = {key: node for key, node in call.items.items() if key not in _OF_SPLITTING}
    section = _split(Table(given, call.origin, call.key_origins))
    splits = call.items.get("splits")
    seed = call.items.get("seed")
    sizes = plain(splits) if splits is not None else []
    if isinstance(splits, List):  # the check of `sizes` tells any other value
        sizes = part_sizes(sizes)
    stage = {
        "type": "assay.engine.data.map_style.RandomSplit",
        "sizes": sizes,
        "part": number,
        "seed": 0 if seed is None else plain(seed),
    }
    first = from_plain({"type": "assay.engine.data.map_style.SequenceWrapper"}, call.origin)
    assert isinstance(first, Table)
    source = section.items.get("source")
    if source is None:
        return section  # the check says what is missing
    pipes = List(
        (set_at(first, ("datapipe",), source, source.origin), from_plain(stage, call.origin)),
        call.origin,
    )
    chain = from_plain({"type": "assay.engine.chain"}, call.origin)
    assert isinstance(chain, Table)
    return set_at(section, ("source",), set_at(chain, ("pipes",), pipes, call.origin), call.origin)


def _move_tokenizer(made: _Translation) -> None:
    """Give the tokenizer of `tokenization` to the data sets of BERT, and its size to the model."""
    tokenizer = made.take("tokenization.tokenizer")
    multiple = made.value("tokenization.make_vocab_size_divisible_by") or 128
    made.drop("tokenization.append_eod", False)
    made.drop("tokenization", {})
    if tokenizer is None:
        return
    for path, node in list(walk(made.root)):
        if _is_call_of(node, "BertDataset") and get_at(node, ("tokenizer",)) is None:
            made.root = set_at(made.root, (*path, "tokenizer"), tokenizer, tokenizer.origin)
    if get_at(made.root, ("model", "cfg", "vocab_size")) is not None:
        size = from_plain(
            {"type": "assay.engine.padded_vocabulary", "multiple": multiple}, tokenizer.origin
        )
        assert isinstance(size, Table)
        size = set_at(size, ("size",), tokenizer, tokenizer.origin)
        made.root = set_at(made.root, ("model", "cfg", "vocab_size"), size, tokenizer.origin)


def _join(datasets: Node) -> Node:
    """Return one source for a dataset or a list of them."""
    if not isinstance(datasets, List):
        return datasets
    if len(datasets.items) == 1:
        return datasets.items[0]
    join = from_plain({"type": "assay.engine.data.map_style.ConcatSequences"}, datasets.origin)
    assert isinstance(join, Table)
    return set_at(join, ("sequences",), datasets, datasets.origin)


def _move_batch_sizes(made: _Translation, tests: list[str]) -> None:
    """Set the batch of one step: micro-batch x accumulation x processes, or the global batch."""
    micro = made.number("train.train_micro_batch_size") or 32
    accumulate = made.number("train.num_accumulation_steps")
    whole = made.number("train.global_batch_size")
    ranks = _plain_at(made, "train.dist.data_parallel_size")
    ranks = ranks if type(ranks) is int and ranks else 1  # another value is told with the axes
    if whole is not None and accumulate is None and whole == micro * ranks:
        micro = None
    made.put("data.train.batch_size", whole or micro * (accumulate or 1) * ranks)
    if accumulate and accumulate > 1:
        made.put("train.accumulate", accumulate)
    elif whole is not None and micro is not None:
        made.put("data.train.micro_batch_size", micro)
    size = made.number("train.test_micro_batch_size") or 32
    for name in tests:
        made.put(f"data.{name}.batch_size", size)


def _plain_at(made: _Translation, path: str) -> Any:
    """Return a value as plain data, None if there is none."""
    node = get_at(made.root, parse_dotted(path))
    return None if node is None else plain(node)


def _move_length(made: _Translation) -> None:
    """Set the number of steps where the length of an epoch is given too."""
    per_epoch = made.number("train.iter_per_epoch")
    if per_epoch:
        epochs = made.number("train.train_epoch") or 0
        made.put("train.steps", max(made.number("train.train_iter") or 0, epochs * per_epoch))
    for key in ("consumed_train_samples", "consumed_valid_samples", "start_iter"):
        made.drop(f"train.{key}", 0)
    made.drop("train.train_samples")
    made.put("train.samples", made.value("train.train_samples"))


def _move_evaluation(made: _Translation, tests: list[str]) -> None:
    """Set the evaluated splits, the metrics, and which checkpoint is the best."""
    evaluator = made.take("train.evaluation.evaluator")
    tops = None
    is_default = isinstance(evaluator, Table) and evaluator.target is None  # a part of it was set
    if evaluator is not None and (is_default or _is_call_of(evaluator, "ClsEvaluator")):
        tops, evaluator = plain(evaluator).get("topk"), None
        tops = [1, 5] if tops is None else tops
    stray = get_at(made.root, ("train", "topk"))
    if stray is not None:
        origin = key_origin_at(made.root, ("train", "topk"))
        made.note(("train", "topk"), "one metric `Acc@k` of `process` for each", origin)
        tops = made.value("train.topk")
    enabled = made.value("train.evaluation.enabled")
    if tops is not None and not isinstance(tops, list):
        message = "`topk` of a config of LiBai must be a list of numbers"
        made.notes.append(problem_at("wrong-type", message, made.origin, "topk"))
        tops = []
    if tops is None:
        tops = [1, 5] if evaluator is None else []
    if enabled is False:
        tops = []
    metrics = {f"Acc@{k}": {"type": "assay.engine.Accuracy", "top": k} for k in tops}
    # LiBai takes the mean of its micro-batches and ranks, whatever a model divides its loss by.
    process = {"type": "assay.engine.OwnLoss", "reduction": "mean", "metrics": metrics}
    made.put("process", process)
    if evaluator is not None:
        pipe = from_plain({"type": f"{_OF_LIBAI}.EvaluatorPipe"}, evaluator.origin)
        assert isinstance(pipe, Table)
        pipe = set_at(pipe, ("evaluator",), evaluator, evaluator.origin)
        made.put("evaluate.pipes", List((pipe,), evaluator.origin))
    made.put("evaluate.enabled", enabled)
    made.put("evaluate.splits", tests)
    period = made.number("train.evaluation.eval_period")
    if period is not None:
        made.put("evaluate.every", f"{int(period)} steps")
    limit = made.number("train.evaluation.eval_iter")
    if limit is not None and limit < _ENDLESS:
        made.put("evaluate.limit", int(limit))
    metric = made.value("train.evaluation.eval_metric") or next(iter(metrics), None)
    mode = made.value("train.evaluation.eval_mode") or "max"
    if metric is not None and tests and enabled is not False:
        made.put("checkpoint.best", {"metric": f"{tests[0]}/{metric}", "mode": mode})
    made.drop("train.evaluation", {})


def _is_call_of(node: Node | None, name: str) -> bool:
    target = get_at(node, ("type",)) if isinstance(node, Table) else None
    return isinstance(target, Leaf) and str(target.value).rpartition(".")[2] == name


def _move_optimizer(made: _Translation) -> None:
    """Set the optimizer, the groups of its parameters, and the norm that clips gradients."""
    optimizer = made.take("optim")
    if not isinstance(optimizer, Table):
        made.put("optimizer", DEFAULT_OPTIMIZER)
        return
    groups = get_at(optimizer, ("params",))
    for key in ("params", "do_bias_correction"):
        if get_at(optimizer, (key,)) is not None:
            optimizer = delete_at(optimizer, (key,))
    made.put("optimizer", optimizer)
    given = plain(groups) if isinstance(groups, Table) else {}
    if groups is not None and not isinstance(groups, Table):
        message = "`optim.params` of a config of LiBai must be a call"
        made.notes.append(problem_at("wrong-type", message, groups, "optim.params"))
    made.put("train.clip_norm", given.get("clip_grad_max_norm"))
    rules = [
        {"kind": kind, "weight_decay": given[f"weight_decay_{kind}"]}
        for kind in ("norm", "bias")
        if given.get(f"weight_decay_{kind}") is not None
    ]
    if rules:
        made.put("optimizer.params", {"type": "assay.engine.Groups", "rules": rules})


def _move_schedule(made: _Translation) -> None:
    scheduler = made.take("train.scheduler")
    given = plain(scheduler) if isinstance(scheduler, Table) else {}
    name = str(given.pop("type", "")).rpartition(".")[2]
    if name in SCHEDULES:
        made.put("schedule", {"type": SCHEDULES[name][0], **rename_arguments(name, given)})
    elif scheduler is not None:
        made.put("schedule", scheduler)
    else:
        made.put("schedule", {"type": "assay.engine.WarmupCosine", "final": 0.01})


def _move_checkpoints(made: _Translation) -> None:
    period = made.number("train.checkpointer.period")
    if period is not None:
        made.put("checkpoint.every", f"{int(period)} steps")
    made.put("checkpoint.keep", made.value("train.checkpointer.max_to_keep"))
    made.drop("train.checkpointer", {})
    made.drop("train.load_weight", "")
    weights = made.value("train.load_weight")
    made.put("load_weights", {"path": weights} if weights else None)


def _move_parallel(made: _Translation) -> None:
    for axis in ("data", "tensor", "pipeline"):
        size = made.number(f"train.dist.{axis}_parallel_size")
        if size is not None and size > 1:
            made.put(f"parallel.{axis}", size)
    for key in ("pipeline_num_layers", "custom_pipeline_stage_id"):
        made.drop(f"train.dist.{key}", 0)
    made.drop("train.dist", {})
    if _plain_at(made, "train.zero_optimization.enabled") is False:
        made.take("train.zero_optimization")


def _move_rest(made: _Translation) -> None:
    """Set the switches, the seed and the title."""
    recompute = _plain_at(made, "train.activation_checkpoint")
    if isinstance(recompute, dict):
        made.take("train.activation_checkpoint")
        if get_at(made.root, ("train", "recompute_grad")) is None:
            made.put("train.activation_checkpoint", recompute.get("enabled", False))
    graph = made.value("graph")
    if isinstance(graph, dict) and graph.get("enabled"):
        made.put("train.compile", True)
    made.put("seed", made.value("train.seed"))
    folder = made.value("train.output_dir")
    if folder:
        title = str(folder).strip("./").rpartition("/")[2]
        made.put("tag", title if title not in ("", "output") else None)


def part_sizes(splits: Sequence[Any]) -> list[int | float]:
    """Return counts or shares for train, validation and test.

    Three whole numbers are counts. Floats are weights, and become shares that sum to 1. LiBai has a
    list for each data set; as the data sets are joined here, all lists must be equal.

    >>> part_sizes([[90.0, 5.0, 5.0]])
    [0.9, 0.05, 0.05]
    """
    lists = [list(each) for each in splits if isinstance(each, Sequence)] or [list(splits)]
    if any(each != lists[0] for each in lists):
        raise InputError(
            f"splits differ: {lists}.", fix="Give all data sets the same three numbers."
        )
    sizes: list[int | float] = lists[0]
    if len(sizes) != 3:
        raise InputError(f"splits are {len(sizes)} numbers; train, valid and test need three.")
    if all(isinstance(size, int) for size in sizes):
        return sizes
    whole = sum(sizes)
    if not whole:
        raise InputError("splits sum to 0.", fix="Give the shares of train, valid and test.")
    return [size / whole for size in sizes]
