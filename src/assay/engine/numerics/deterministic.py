"""Deterministic algorithms only: the first op without one is named, with its module."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

import torch
from torch import nn

from assay.core.errors import InputError

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
