"""Keyed randomness: every random stream of a run is a pure function of the seed and of where it is used.

So a checkpoint holds no generator state: going on at step 137 means keying step 137.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

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


def seed_all(value: int) -> None:
    """Key the global generators of torch, numpy and `random`."""
    seed_torch(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever happens inside draws as it likes; outside, the global generators go on as if it had not been."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
