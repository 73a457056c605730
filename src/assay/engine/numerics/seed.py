"""Keyed randomness: each random stream of a run is a pure function of the seed and its use.

So a checkpoint holds no generator state: resuming at step 137 means keying step 137.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch

from assay.core.errors import InputError
from assay.core.events import Event

# The second number of a key says what it is for; two purposes never share a stream.
INIT = 0  # (seed, INIT): building the model
ORDER = 1  # (seed, ORDER, epoch): the permutation of an epoch
SAMPLE = 2  # (seed, SAMPLE, split, epoch, position): loading one sample, or the first of a batch
STEP = 3  # (seed, STEP, step, micro-step): forward and backward of training
EVALUATE = 4  # (seed, EVALUATE, split, batch): forward of evaluation, the same at every step
PIPE = 5  # (seed, PIPE, place, epoch, number): one draw of a stage of a stream
BATCH = 6  # (seed, BATCH, epoch, number): a batch of data that is not ours; -1 as the epoch begins
HOOK = 7  # (key of the micro-step, HOOK): what a process does to a batch before the model sees it
EVENT = 8  # (seed, EVENT, 0 to 2, count): handlers between two steps

_BETWEEN_STEPS = (Event.EPOCH_BEGIN, Event.STEP_BEGIN, Event.EPOCH_END)
GLOBAL_GENERATORS = (
    torch.default_generator,
    getattr(random.random, "__self__", None),
    getattr(np.random.rand, "__self__", None),
)

_PACK = {n: struct.Struct(f"<{n}q").pack for n in range(7)}


def checked_seed(seed: int) -> int:
    """The seed itself; InputError when it does not fit into a signed 64-bit integer."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(
            f"The seed {seed} does not fit into 64 bits.", fix="Give one from 0 to 2**63 - 1."
        )
    return seed


def stream_key(*numbers: int) -> int:
    """A 64-bit key from up to six signed 64-bit integers (blake2b)."""
    return int.from_bytes(blake2b(_PACK[len(numbers)](*numbers), digest_size=8).digest(), "little")


def keys(*numbers: int, count: int) -> list[int]:
    """Return `stream_key(*numbers)` and the keys of the next `count - 1` last numbers."""
    *same, first = numbers
    begun = blake2b(_PACK[len(same)](*same), digest_size=8)
    pack = _PACK[1]
    found = []
    for number in range(first, first + count):
        hasher = begun.copy()  # half the time of a new one
        hasher.update(pack(number))
        found.append(int.from_bytes(hasher.digest(), "little"))
    return found


def streams(seed: int, splits: Iterable[str]) -> dict[str, int]:
    """Return the random streams of a run by purpose, each with the key of its first use.

    The other keys follow from the seed.
    """
    first = {
        "weights": stream_key(seed, INIT),
        "order of an epoch": stream_key(seed, ORDER, 0),
        "a step": stream_key(seed, STEP, 0, 0),
    }
    for split in splits:
        name = crc32(split.encode())
        first[f"samples of {split}"] = stream_key(seed, SAMPLE, name, 0, 0)
        first[f"evaluation of {split}"] = stream_key(seed, EVALUATE, name, 0)
    return first


def seed_torch(value: int) -> None:
    """Key torch's generators: the CPU's, and those of the accelerators in use."""
    # torch.manual_seed costs 70 times this, for bookkeeping of devices that are not there.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


def key_all(value: int) -> None:
    """Key the global generators of torch, numpy and `random`: 7 us, most of it for `random`."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def seed_all(value: int) -> dict[str, int]:
    """Seed the global generators of torch, numpy and `random`; return each seed by name."""
    key_all(value)
    return {"torch": value, "numpy": value & 0xFFFFFFFF, "random": value}


def get_state() -> dict[str, Any]:
    """Return the states of the global generators of `random`, numpy, torch and all CUDA devices."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Restore the generators to states of `get_state`; states of absent devices are ignored."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, its_state in enumerate(state["cuda"]):
        if device < torch.cuda.device_count():
            torch.cuda.set_rng_state(its_state, device)


KEYS_AHEAD = 64
"""Number of steps whose keys are made at once."""


class StepRandomness:
    """Keys of the forward and backward passes of training: torch, numpy and `random` by step.

    Each micro-batch is keyed, whatever it draws: what begins to draw late draws under its key too.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._keys: dict[int, int] = {}

    def key(self, step: int, micro_batch: int = 0, stage: int = 0) -> int:
        """Return the key of a micro-batch of a step, and of a pipeline stage after the first."""
        if stage:
            return stream_key(self.seed, STEP, step, micro_batch, stage)
        if micro_batch:
            return stream_key(self.seed, STEP, step, micro_batch)
        if step not in self._keys:  # made one by one, keys would take several times as long
            steps = range(step, step + KEYS_AHEAD)
            self._keys = {each: stream_key(self.seed, STEP, each, 0) for each in steps}
        return self._keys[step]

    def begin_event(self, event: Event, count: int) -> None:
        """Key the global generators for the handlers of an event between two steps."""
        key_all(stream_key(self.seed, EVENT, _BETWEEN_STEPS.index(event), count))

    def begin(self, step: int, micro_batch: int = 0, stage: int = 0) -> None:
        """Key the global generators for a micro-batch."""
        key_all(self.key(step, micro_batch, stage))


def _freeze_state(state: Any) -> Any:
    """Return a state of a generator of numpy in a form that can be compared: arrays as bytes."""
    if isinstance(state, dict):
        return tuple((key, _freeze_state(value)) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


@contextmanager
def restore_generators() -> Iterator[None]:
    """Put the global generators back to where they were, whatever is drawn inside (80 us)."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)


def read_generator_state(generator: Any) -> Any:
    """Return the state of a generator of torch, numpy or `random`, to be compared."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        try:
            return generator.getstate()
        except NotImplementedError:  # SystemRandom has none: it never draws the same twice
            return object()
    if isinstance(generator, np.random.Generator):
        return _freeze_state(generator.bit_generator.state)
    return _freeze_state(generator.get_state(legacy=False))
