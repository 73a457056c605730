"""Keyed randomness: every random stream of a run is a pure function of the seed and of where it is
used.

So a checkpoint holds no generator state: going on at step 137 means keying step 137.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.random import mtrand

from assay.core.errors import InputError

# The second number of a key says what it is for; two purposes never share a stream.
INIT = 0  # (seed, INIT): building the model
ORDER = 1  # (seed, ORDER, epoch): the permutation of an epoch
SAMPLE = 2  # (seed, SAMPLE, split, epoch, position): loading one sample, or the first of a batch
STEP = 3  # (seed, STEP, step, micro-step): forward and backward of training
EVALUATE = 4  # (seed, EVALUATE, split, batch): forward of evaluation, the same at every step
PIPE = 5  # (seed, PIPE, place, epoch, number): one draw of a stage of a stream
BATCH = 6  # (seed, BATCH, epoch, number): a batch of data that is not ours; -1 as the epoch begins
HOOK = 7  # (key of the micro-step, HOOK): what a process does to a batch before the model sees it

_PACK = {n: struct.Struct(f"<{n}q").pack for n in range(1, 7)}


def checked_seed(seed: int) -> int:
    """The seed itself; InputError when it does not fit into a signed 64-bit integer."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(
            f"The seed {seed} does not fit into 64 bits.", fix="Give one from 0 to 2**63 - 1."
        )
    return seed


def key(*numbers: int) -> int:
    """A 64-bit key from up to six signed 64-bit integers (blake2b)."""
    return int.from_bytes(blake2b(_PACK[len(numbers)](*numbers), digest_size=8).digest(), "little")


def streams(seed: int, splits: Iterable[str]) -> dict[str, int]:
    """Every random stream of a run by what it is for, with the key of its first use; the rest
    follow from the seed."""
    first = {
        "weights": key(seed, INIT),
        "order of an epoch": key(seed, ORDER, 0),
        "a step": key(seed, STEP, 0, 0),
    }
    for split in splits:
        name = crc32(split.encode())
        first[f"samples of {split}"] = key(seed, SAMPLE, name, 0, 0)
        first[f"evaluation of {split}"] = key(seed, EVALUATE, name, 0)
    return first


def seed_torch(value: int) -> None:
    """Key torch's generators: the CPU's, and those of the accelerators in use."""
    # torch.manual_seed costs 70 times this, for bookkeeping of devices that are not there.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


def key_all(value: int) -> None:
    """Key the global generators of torch, numpy and `random`: once for each sample, so it is
    written out flat."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & 0xFFFFFFFF)
    _seed_python(value)  # as `random.seed` does it, which looks first at what it was given
    _PYTHON.generator.gauss_next = None


def seed_all(value: int) -> dict[str, int]:
    """Key the global generators of torch, numpy and `random`; what each of them was given, by
    name."""
    key_all(value)
    return {"torch": value, "numpy": value & 0xFFFFFFFF, "random": value}


def get_state() -> dict[str, Any]:
    """Where the global generators of `random`, numpy, torch and all CUDA devices are: plain data
    for `set_state`."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to where `get_state` found them; those of devices that are not there
    are left out."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, its_state in enumerate(state["cuda"]):
        if device < torch.cuda.device_count():
            torch.cuda.set_rng_state(its_state, device)


WATCHED_STEPS = 64
"""Number of first steps that are looked at for draws from numpy and `random`; later, each multiple."""
KEYS_AHEAD = 64
"""Number of steps whose keys are made at once."""


class StepRandomness:
    """Random generators of the forward and backward passes of training, keyed by step.

    Torch is keyed for every micro-batch. Numpy and `random`, which take several times as long, are
    keyed once training draws from them: the first `WATCHED_STEPS` steps and every multiple are
    looked at for draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws = False
        self._keys: dict[int, int] = {}
        self._before: tuple[object, ...] | None = None

    def key(self, step: int, micro_batch: int = 0, stage: int = 0) -> int:
        """Return the key of a micro-batch of a step, and of a stage of a pipeline behind the first."""
        if stage:
            return key(self.seed, STEP, step, micro_batch, stage)
        if micro_batch:
            return key(self.seed, STEP, step, micro_batch)
        if step not in self._keys:  # made one by one, keys would take several times as long
            steps = range(step, step + KEYS_AHEAD)
            self._keys = {each: key(self.seed, STEP, each, 0) for each in steps}
        return self._keys[step]

    def begin(self, step: int, micro_batch: int = 0, stage: int = 0) -> None:
        """Key the generators that the micro-batch may draw from."""
        value = self.key(step, micro_batch, stage)
        if self.draws:
            seed_all(value)
        elif step < WATCHED_STEPS or not step % WATCHED_STEPS:
            seed_all(value)
            self._before = _of_others()
        else:
            seed_torch(value)

    def end(self) -> bool:
        """Return whether this micro-batch was the first seen to draw from numpy or `random`."""
        if self._before is None:
            return False
        self.draws = _of_others() != self._before
        self._before = None
        return self.draws


def _of_others() -> tuple[object, ...]:
    """Where the generators of numpy and `random` are: what differs once somebody draws from what
    was just keyed."""
    return _NUMPY.where(), _PYTHON.where()


@contextmanager
def undisturbed(*, keyed: bool = False) -> Iterator[None]:
    """Whatever happens inside draws as it likes; outside, the global generators go on as if it had
    not been.

    `keyed`: they are keyed inside before anything is drawn (`seed_all`). Then this costs a fifth.
    """
    torch_state, python_state = torch.get_rng_state(), _PYTHON.put_aside()
    numpy_state: Any = _NUMPY.put_aside() if keyed else np.random.get_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        if keyed:
            _NUMPY.put_back(numpy_state)
        else:
            np.random.set_state(numpy_state)
        _PYTHON.put_back(python_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


class _Numpy:
    """Puts another generator in the place of numpy's global one, and back: to copy its state costs
    ten times as much.

    What a swap loses is the second of two Gaussian numbers, which numpy keeps beside the generator
    and does not show. Whether there is one tells a draw: it moves the generator or it does not. The
    generator is then put back.
    """

    def __init__(self) -> None:
        self._inside: list[Any] = []  # one for each level that is not in use
        self._address: dict[
            int, tuple[Any, int]
        ] = {}  # of its memory, and the generator: so long its id is its own
        self._words: dict[int, tuple[Any, Any]] = {}  # the second of it, and how many are used up

    def put_aside(self) -> tuple[Any, float | None]:
        outer = mtrand.get_bit_generator()
        kept = self._kept_beside(outer)
        mtrand.set_bit_generator(self._inside.pop() if self._inside else np.random.MT19937(0))
        return outer, kept

    def put_back(self, aside: tuple[Any, float | None]) -> None:
        outer, kept = aside
        self._inside.append(mtrand.get_bit_generator())
        mtrand.set_bit_generator(outer)
        if kept is not None:
            state: Any = np.random.get_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": kept})

    def where(self) -> object:
        generator = mtrand.get_bit_generator()
        words = self._words.get(id(generator))
        if words is None:
            if type(generator) is not np.random.MT19937:
                name, keys, *rest = np.random.get_state()
                return name, bytes(memoryview(keys)), *rest  # type: ignore[arg-type]
            address = self._address_of(generator)
            words = (
                ctypes.c_uint32.from_address(address + 4),
                ctypes.c_int.from_address(address + 4 * 624),
            )
            self._words[id(generator)] = words
        return words[0].value, words[1].value

    def _address_of(self, generator: Any) -> int:
        if id(generator) not in self._address:
            self._address[id(generator)] = generator, generator.ctypes.state_address
        return self._address[id(generator)][1]

    def _kept_beside(self, generator: Any) -> float | None:
        """The Gaussian number that waits to be drawn, if one does."""
        if type(generator) is not np.random.MT19937:
            state: Any = np.random.get_state(legacy=False)
            return float(state["gauss"]) if state.get("has_gauss") else None
        address = self._address_of(generator)
        before = ctypes.string_at(address, _MT19937_BYTES)
        drawn = float(np.random.standard_normal())
        if ctypes.string_at(address, _MT19937_BYTES) == before:
            return drawn
        ctypes.memmove(address, before, _MT19937_BYTES)
        return None


class _Python:
    """Reads and writes the generator of `random` where it lies: to copy its state as numbers costs
    ten times as much.

    Where it does not lie as in CPython, which is looked at once, its state is copied all the same.
    """

    def __init__(self) -> None:
        self.generator: Any = random.random.__self__  # type: ignore[attr-defined]
        self._address = _memory_of(self.generator)
        self._words: tuple[Any, Any] | None = None
        if (
            self._address is not None
        ):  # how many are used up, and the second: of any seed the first is the same
            index, first = (ctypes.c_uint32.from_address(self._address + 4 * at) for at in (0, 2))
            self._words = first, index

    def where(self) -> object:
        """What differs once somebody has drawn from what was just keyed."""
        return (
            random.getstate()
            if self._words is None
            else (self._words[0].value, self._words[1].value)
        )

    def put_aside(self) -> Any:
        """All of its state, for `put_back`."""
        if self._address is None:
            return random.getstate()
        return ctypes.string_at(self._address, _MT19937_BYTES), self.generator.gauss_next

    def put_back(self, aside: Any) -> None:
        if self._address is None:
            random.setstate(aside)
            return
        memory, self.generator.gauss_next = aside
        ctypes.memmove(self._address, memory, _MT19937_BYTES)


def _memory_of(generator: random.Random) -> int | None:
    """Where the state of a generator of Python lies: how many words are used up, and 624 words;
    None if elsewhere."""
    begin = object.__basicsize__
    if (
        sys.implementation.name != "cpython"
        or _random.Random.__basicsize__ < begin + _MT19937_BYTES
    ):
        return None
    _, words, _ = generator.getstate()
    found = ctypes.string_at(id(generator) + begin, _MT19937_BYTES)
    return id(generator) + begin if found == struct.pack("=625I", words[-1], *words[:-1]) else None


_MT19937_BYTES = 4 * 625  # 624 words, and how many of them are used up
_NUMPY = _Numpy()
_PYTHON = _Python()
_seed_python = partial(_random.Random.seed, _PYTHON.generator)
