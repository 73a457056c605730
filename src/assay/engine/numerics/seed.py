"""Keyed randomness: each random stream of a run is a pure function of the seed and its use.

So a checkpoint holds no generator state: resuming at step 137 means keying step 137.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import torch

# `numpy.random` offers the functions used of it; only its stubs leave them out.
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
    """Key the global generators of torch, numpy and `random`.

    It is called for each sample, hence without loops.
    """
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


WATCHED_STEPS = 64
"""Number of first steps that are looked at for draws from numpy and `random`; later, each
multiple."""
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
        self._watched: int | None = None
        self._first = (0.0, 0.0)

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

    def begin(self, step: int, micro_batch: int = 0, stage: int = 0) -> None:
        """Key the generators that the micro-batch may draw from."""
        value = self.key(step, micro_batch, stage)
        if self.draws:
            seed_all(value)
        elif step < WATCHED_STEPS or not step % WATCHED_STEPS:
            self._watched = value
            self._first = _first_numbers(value)
            seed_all(value)
        else:
            seed_torch(value)

    def end(self) -> bool:
        """Return whether this micro-batch was the first seen to draw from numpy or `random`."""
        value, self._watched = self._watched, None
        if value is None:
            return False
        self.draws = (np.random.random_sample(), random.random()) != self._first
        if not self.draws:
            _seed_numpy_and_python(value)  # as if nothing had been drawn to look
        return self.draws


def _first_numbers(value: int) -> tuple[float, float]:
    """Return the first numbers of numpy and `random` under a key.

    Another number later tells that something drew. To compare the states instead costs ten times as
    much: numpy copies its state in 80 us.
    """
    _seed_numpy_and_python(value)
    return np.random.random_sample(), random.random()


def _seed_numpy_and_python(value: int) -> None:
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def _freeze_state(state: Any) -> Any:
    """Return a state of a generator of numpy in a form that can be compared: arrays as bytes."""
    if isinstance(state, dict):
        return tuple((key, _freeze_state(value)) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def comparable_state() -> Mapping[str, object]:
    """Return the states of the global generators on the CPU: equal values mean that nothing drew.

    They are named as in `SEEDERS`.
    """
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": _freeze_state(np.random.get_state(legacy=False)),
        "random": random.getstate(),
    }


@contextmanager
def restore_generators(*, keyed: bool = False) -> Iterator[None]:
    """Put the global generators back to where they were, whatever is drawn inside.

    `keyed`: the caller keys the generators inside before anything is drawn (`seed_all`), which
    makes this several times as fast.
    """
    if keyed:
        with LentGenerators():
            yield
        return
    torch_state = torch.get_rng_state()
    python_state = random.getstate()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    outer = mtrand.get_bit_generator()
    numpy_state: Any = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if mtrand.get_bit_generator() is not outer:
            mtrand.set_bit_generator(outer)
        np.random.set_state(numpy_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


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


class LentGenerators:
    """Context that lends the global generators, and puts them back when it is left.

    Whoever draws from one inside keys it before. The public functions of numpy and `random` take 60
    us to read and set their states. So numpy gets another bit generator inside, and the words of
    both are read where they lie in memory.
    """

    def __enter__(self) -> LentGenerators:
        self._torch = torch.default_generator.get_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._python = _python_state()
        self._outer = mtrand.get_bit_generator()
        self._gauss = _waiting_gauss(self._outer)
        self._inner = _SPARE.pop() if _SPARE else np.random.MT19937(0)
        mtrand.set_bit_generator(self._inner)
        self._words = _words_of(self._inner)
        self._numpy = self._words.raw
        return self

    def find_drawn(self) -> set[str]:
        """Return the names, as in `SEEDERS`, of the generators that were drawn from or keyed."""
        names = set()
        if _bytes_of(torch.default_generator.get_state()) != _bytes_of(self._torch):
            names.add("torch")
        if mtrand.get_bit_generator() is not self._inner or self._words.raw != self._numpy:
            names.add("numpy")
        if _python_state() != self._python:
            names.add("random")
        return names

    def __exit__(self, *_: object) -> None:
        torch.default_generator.set_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if _python_state() != self._python:
            _set_python_state(self._python)
        mtrand.set_bit_generator(self._outer)
        _SPARE.append(self._inner)
        if self._gauss is not None:  # lost when the bit generator was exchanged
            state: Any = np.random.get_state(legacy=False)
            np.random.set_state({**state, "has_gauss": 1, "gauss": self._gauss})


_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]
_put_python, _put_numpy = super(random.Random, _PYTHON).seed, np.random.seed


def _seed_python(value: int) -> None:
    """Key `random` as its `seed` does, which asks for 0.3 us what type the number has."""
    _put_python(value)
    _PYTHON.gauss_next = None


SEEDERS: Mapping[str, Callable[[int], object]] = {
    "torch": seed_torch,
    "numpy": lambda value: _put_numpy(value & 0xFFFFFFFF),
    "random": _seed_python,
}
"""Functions that key one global generator each, by its name; `key_all` keys all."""


def seeders_of(names: Iterable[str]) -> list[Callable[[int], object]]:
    """Return those of `SEEDERS` that key these generators; they hold until CUDA comes in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [SEEDERS[name] for name in names]
    on_cpu = {**SEEDERS, "torch": torch.default_generator.manual_seed}
    return [on_cpu[name] for name in names]


_SPARE: list[np.random.MT19937] = []
"""Bit generators for `LentGenerators`, one for each level; a new one takes 200 us."""

_TWISTER = struct.Struct("625I")
"""A Mersenne twister: 624 words, and the place among them, which `random` has in front."""
_Words = ctypes.c_char * _TWISTER.size


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _words_of(generator: np.random.MT19937) -> ctypes.Array[ctypes.c_char]:
    """Return the words of a generator where they lie in memory, which is that of the generator."""
    return _Words.from_address(generator.ctypes.state_address)


def _waiting_gauss(generator: Any) -> float | None:
    """Return the second of two Gaussian numbers, if the global generator of numpy keeps one."""
    if not isinstance(generator, np.random.MT19937):
        state: Any = np.random.get_state(legacy=False)
        return state["gauss"] if state["has_gauss"] else None
    words = _words_of(generator)
    before = words.raw
    number = np.random.standard_normal()
    if words.raw == before:
        return number
    words.raw = before
    return None


_WORDS = _Words.from_address(id(_PYTHON) + object.__basicsize__)


def _tuple_of(words: bytes) -> tuple[int, ...]:
    place, *numbers = _TWISTER.unpack(words)
    return (*numbers, place)


# Where Python lays its generator out in another way, its own functions are used, which take longer.
if (
    type(_PYTHON).__basicsize__ - object.__basicsize__ >= _TWISTER.size
    and _tuple_of(_WORDS.raw) == random.getstate()[1]
):

    def _python_state() -> tuple[Any, ...]:
        """Return the state of `random`, to be compared and set again."""
        return _WORDS.raw, _PYTHON.gauss_next

    def _set_python_state(state: tuple[Any, ...]) -> None:
        random.setstate((_PYTHON.VERSION, _tuple_of(state[0]), state[1]))

else:
    _python_state = random.getstate
    _set_python_state = random.setstate
