"""Precision of the arithmetic, and algorithms that give the same bits each time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

from assay.core.errors import InputError
from assay.core.sections import StandardSections

CHOICES = ("fp32", "tf32", "bf16", "fp16")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def in_precision(
    name: str, device: torch.device, forward: Callable[..., Any], *, evaluate: str = "fp32"
) -> Callable[..., Any]:
    """`forward` under autocast; for fp32 it is `forward` itself, which costs nothing.

    Where no gradient is asked for it is an evaluation, which has a precision of its own:
    `evaluate`.
    """
    training = autocast_dtype(name)
    evaluating = autocast_dtype(evaluate)
    if training is None and evaluating is None:
        return forward

    @wraps(forward)
    def autocast(*args: Any, **kwargs: Any) -> Any:
        dtype = training if torch.is_grad_enabled() else evaluating
        if dtype is None:
            return forward(*args, **kwargs)
        with torch.autocast(device.type, dtype=dtype):
            return forward(*args, **kwargs)

    return autocast


def gather_dtype(sections: StandardSections) -> torch.dtype | None:
    """Return the half precision in which sharded blocks gather their weights, None for their own.

    Autocast makes half copies of weights that were gathered in fp32, and keeps them until the
    backward pass; what is gathered in half precision goes with the rest of its block. InputError
    where a forward pass wants another precision.
    """
    asked = sections.parallel.shard_precision
    others = {"train": sections.train.precision, "evaluate": sections.evaluate.precision}
    for section, precision in others.items():
        if asked != "fp32" and precision != asked:
            raise InputError(
                f'[parallel] shard_precision is "{asked}", and [{section}] precision is'
                f' "{precision}": weights that are gathered in half precision have no other.',
                fix=f'[{section}] precision = "{asked}"; or leave shard_precision out.',
            )
    return autocast_dtype(asked)


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Inside, GPUs multiply fp32 matrices in tf32 if that is the precision, and in no other case.

    torch itself allows tf32 in convolutions and not in products; here it is one answer for both.
    """
    autocast_dtype(name)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def autocast_dtype(name: str) -> torch.dtype | None:
    """Return the half precision of autocast, None without; InputError for an unknown precision."""
    if name not in CHOICES:
        raise InputError(
            f"There is no precision {name!r}.", fix=f"Choose one of {', '.join(CHOICES)}."
        )
    return _AUTOCAST.get(name)


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_SAID = re.compile(r"(\S+) does not have a deterministic implementation")


@contextmanager
def deterministic(model: nn.Module, *, enabled: bool = True) -> Iterator[None]:
    """Use deterministic algorithms only; InputError names an op that has none, and its module.

    The settings of torch are restored afterwards.
    """
    if not enabled:
        yield
        return
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    benchmark = torch.backends.cudnn.benchmark
    workspace = os.environ.get(_WORKSPACE)
    os.environ[_WORKSPACE] = workspace or ":4096:8"  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        found = _SAID.search(str(error))
        if found is None:
            raise
        raise InputError(
            f"`{found[1]}` has no deterministic form here, and [train] deterministic is true.",
            where=_module_of(error, model),
            fix="Use another op, or set deterministic = false: then two runs may differ in"
            " their last bits.",
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            del os.environ[_WORKSPACE]


def limits(device: torch.device, *, deterministic: bool, seeded: bool, threads: int = 1) -> str:
    """Return in one line why two runs with one seed may differ here.

    "" when they will not, or when no seed was asked for. On a CPU the ops of torch give the same
    bits each time as long as the number of threads stays the same.
    """
    if deterministic or not seeded:
        return ""
    if device.type == "cpu":
        return f"seed: the same bits with {threads} threads only" if threads > 1 else ""
    return (
        f"seed: on {device.type} some ops add up in any order, so two runs with this seed may"
        " differ in their last "
        "bits; [train] deterministic = true leaves them out"
    )


def _module_of(error: BaseException, model: nn.Module) -> str:
    """The innermost module of the model that was at work, as `encoder.attention (Attention)`."""
    names = {id(module): name for name, module in model.named_modules()}
    where = "backward, or outside of the model"
    for frame, _ in walk_tb(error.__traceback__):
        own = frame.f_locals.get("self")
        if id(own) in names:
            where = f"{names[id(own)] or 'the model'} ({type(own).__name__})"
    return where
