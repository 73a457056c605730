"""Loaders, evaluator and parameter groups by LiBai's names and arguments.

In a config each becomes a section: a call of `build_image_train_loader` is [data.train]. Called in
code they return loaders of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from assay.compat.libai.translate import part_sizes
from assay.compat.names import import_target
from assay.config import get_config as read_config
from assay.config.lazy import Section
from assay.core.errors import InputError

COMMON = Path(__file__).parent / "configs"
"""Configs that LiBai comes with, as `common/train.py`."""

Datasets = Any
"""A dataset, or a list of them, which are joined one after the other."""


class ClsEvaluator:
    """Shares of samples whose class is among the first `topk` predictions: `Acc@1`, `Acc@5`."""

    def __init__(self, topk: Sequence[int] = (1, 5)) -> None:
        self.topk = tuple(topk)

    def metrics(self) -> dict[str, Any]:
        """Return one accuracy for each k, by its name in LiBai."""
        accuracy = import_target("assay.engine.Accuracy")
        return {f"Acc@{k}": accuracy(top=k) for k in self.topk}


class EvaluatorPipe:
    """Pipe of an evaluation around an evaluator of LiBai, whose results are metrics of the split.

    An evaluator has `reset()`, `process(inputs, outputs)` for each batch, and `evaluate()`, which
    returns the results by name. A metric of assay does too.
    """

    def __init__(self, evaluator: Any) -> None:
        self.evaluator = evaluator
        self.is_metric = not hasattr(evaluator, "process")
        self._evaluation: Any = None

    def begin_eval(self, evaluation: Any) -> None:
        self._evaluation = evaluation
        self.evaluator.reset()

    def __call__(self, output: Any) -> Any:
        if self.is_metric:
            self.evaluator.update(output)
        else:
            self.evaluator.process(self._evaluation.batch, output)
        return output

    def end_eval(self, evaluation: Any) -> Mapping[str, Any]:
        self._evaluation = None
        found = self.evaluator.value() if self.is_metric else self.evaluator.evaluate()
        return found if isinstance(found, Mapping) else {"evaluator": found}


def get_config(path: str | PathLike[str]) -> Section:
    """Return the names of a config; "common/train.py" and its like come with this package."""
    own = COMMON / fspath(path).removeprefix("common/")
    if fspath(path).startswith("common/") and not Path(path).is_file():
        if not own.is_file():
            known = [f"common/{each.relative_to(COMMON)}" for each in sorted(COMMON.rglob("*.py"))]
            raise InputError(f"There is no config {path}.", fix=f"There are: {', '.join(known)}.")
        return read_config(own)
    return read_config(path)


def get_default_optimizer_params(
    model: Any,
    *,
    weight_decay_norm: float | None = None,
    weight_decay_bias: float | None = None,
    clip_grad_max_norm: float | None = None,
    clip_grad_norm_type: float = 2.0,
) -> Any:
    """Return the parameters of a model in groups, those of norms and biases by themselves.

    Gradients are clipped by `train.clip_norm`; the two arguments for that are taken by a config.
    """
    decays = {"norm": weight_decay_norm, "bias": weight_decay_bias}
    rules = [
        {"kind": kind, "weight_decay": decay} for kind, decay in decays.items() if decay is not None
    ]
    return import_target("assay.engine.Groups")(model, rules=rules)


def build_image_train_loader(
    dataset: Datasets,
    train_batch_size: int = 32,
    *,
    num_workers: int = 0,
    seed: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Return shuffled batches of one or several datasets."""
    return _loader(dataset, train_batch_size, "train", num_workers, seed, collate_fn)


def build_image_test_loader(
    dataset: Datasets,
    test_batch_size: int = 32,
    *,
    num_workers: int = 0,
    seed: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Return batches in the order of the dataset; the last one may be smaller."""
    return _loader(dataset, test_batch_size, "test", num_workers, seed, collate_fn)


build_nlp_train_loader = build_image_train_loader
build_nlp_test_loader = build_image_test_loader


def build_nlp_train_val_test_loader(
    dataset: Datasets,
    splits: Sequence[Any],
    *,
    train_batch_size: int = 32,
    test_batch_size: int = 32,
    num_workers: int = 0,
    seed: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> tuple[Any, Any, Any]:
    """Return batches of three parts of a dataset that have no sample in common.

    `splits` are three numbers of samples, three weights, or LiBai's list of them: (700, 200, 100),
    (0.9, 0.05, 0.05), [[949.0, 50.0, 1.0]].
    """
    counts = part_sizes(splits)
    part = import_target("assay.engine.data.map_style.RandomSplit")
    source = import_target("assay.engine.data.map_style.SequenceWrapper")(_join(dataset))
    chain = import_target("assay.engine.chain")
    sizes = (train_batch_size, test_batch_size, test_batch_size)
    train, valid, test = (
        _loader(
            chain([source, part(counts, i, seed=seed)]),
            sizes[i],
            name,
            num_workers,
            seed,
            collate_fn,
        )
        for i, name in enumerate(("train", "valid", "test"))
    )
    return train, valid, test


def _join(dataset: Datasets) -> Any:
    if not isinstance(dataset, list | tuple):
        return dataset
    if len(dataset) == 1:
        return dataset[0]
    return import_target("assay.engine.data.map_style.ConcatSequences")(dataset)


def _loader(
    dataset: Datasets,
    batch_size: int,
    split: str,
    workers: int,
    seed: int,
    collate: Callable[[list[Any]], Any] | None,
) -> Any:
    return import_target("assay.engine.Loader")(
        _join(dataset),
        batch_size=batch_size,
        split=split,
        shuffle=split == "train",
        workers=workers,
        seed=seed,
        collate=collate,
    )
