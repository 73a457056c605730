"""Keyed randomness: every random stream of a run is a pure function of the seed and of where it is used.

So a checkpoint holds no generator state: going on at step 137 means keying step 137.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

# The second number of a key says what it is for; two purposes never share a stream.
INIT = 0  # (seed, INIT): building the model
ORDER = 1  # (seed, ORDER, epoch): the permutation of an epoch
SAMPLE = 2  # (seed, SAMPLE, split, epoch, position): loading one sample, or the first of a batch
STEP = 3  # (seed, STEP, step, micro-step): forward and backward of training
EVALUATE = 4  # (seed, EVALUATE, split, step): forward of evaluation
PIPE = 5  # (seed, PIPE, place, epoch, number): one draw of a stage of a stream

_PACK = {n: struct.Struct(f"<{n}q").pack for n in range(1, 7)}


def key(*numbers: int) -> int:
    """A 64-bit key from up to six 64-bit integers (blake2b)."""
    return int.from_bytes(blake2b(_PACK[len(numbers)](*numbers), digest_size=8).digest(), "little")


def seed_torch(value: int) -> None:
    """Key torch's generators: the CPU's, and those of the accelerators in use."""
    # torch.manual_seed costs 70 times this, for bookkeeping of devices that are not there.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


def seed_all(value: int) -> dict[str, int]:
    """Key the global generators of torch, numpy and `random`; what each of them was given, by name."""
    seed_torch(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)
    return {"torch": value, "numpy": value & 0xFFFFFFFF, "random": value}


def get_state() -> dict[str, Any]:
    """Where the global generators of `random`, numpy, torch and all CUDA devices are: plain data for `set_state`."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to where `get_state` found them; those of devices that are not there are left out."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, its_state in enumerate(state["cuda"]):
        if device < torch.cuda.device_count():
            torch.cuda.set_rng_state(its_state, device)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever happens inside draws as it likes; outside, the global generators go on as if it had not been."""
    before = get_state()
    try:
        yield
    finally:
        set_state(before)
