"""Shuffled order as a keyed bijection: any position costs the same, and there is no state.

A balanced Feistel network over the next even power of two, walked until it lands inside the data
(cycle walking: Black & Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Each epoch
has its own keys. Over a domain as small as 16 such a network favours some orders and never gives
others: there one of all n! is drawn instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from assay.engine.numerics.seed import ORDER

_ROUNDS = 6
_FEW = 16
_BLOCK = 8192


class Order(Protocol):
    """Map from positions of an epoch of `n` samples to indices; a pure function without state.

    It may have `identity(epoch)`: the values that it is a function of, by name. Without one, the
    indices of the epoch are that.
    """

    n: int

    def indices(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the indices at positions `start` to `start + count`, within the epoch."""
        ...


def samples_in(order: Order, epoch: int) -> int:
    """Return the number of samples of an epoch: `n`, unless the order says it of each."""
    length = getattr(order, "length", None)
    return order.n if length is None else int(length(epoch))


def identity_of(order: Order, epoch: int) -> dict[str, Any]:
    """Return what the order of an epoch is a function of: equal ones give equal indices."""
    identity = getattr(order, "identity", None)
    if identity is not None:
        return dict(identity(epoch))
    indices = order.indices(epoch, 0, samples_in(order, epoch))
    return {"order": type(order).__name__, "indices": digest_values(indices)}


def digest_values(values: npt.NDArray[Any]) -> str:
    """Return a short digest of an array, as an identity holds it."""
    return blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()


def blocks(order: Order, epoch: int, start: int, size: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (first position, indices) of each batch of `size` from position `start` on."""
    per_block = max(1, _BLOCK // size) * size
    for first in range(start, samples_in(order, epoch), per_block):
        indices = order.indices(epoch, first, per_block).tolist()
        for i in range(0, len(indices), size):
            yield first + i, indices[i : i + size]


class Plan:
    """Order of `n` samples, shuffled by seed and epoch or sequential."""

    def __init__(self, n: int, *, seed: int, shuffle: bool) -> None:
        if n < 0:
            raise ValueError(f"n is {n}")
        self.n = n
        self.seed = seed
        self.shuffle = shuffle
        bits = max(2, (n - 1).bit_length())
        self._half_bits = (bits + 1) // 2

    def identity(self, epoch: int) -> dict[str, Any]:
        """Return the number of samples and the seed; nothing where all stay in their order."""
        if not self.shuffle:
            return {"order": "sequential"}
        return {"order": "shuffled", "samples": self.n, "seed": self.seed}

    def indices(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the indices at positions `start` to `start + count`, within the epoch."""
        positions = np.arange(start, min(start + count, self.n), dtype=np.uint64)
        if not self.shuffle or self.n < 2:
            return positions.astype(np.int64)
        if self.n <= _FEW:
            return _one_of_all(self.n, self.seed, epoch)[positions.astype(np.int64)]
        keys = _round_keys(self.seed, epoch)
        inside = self._permute(positions, keys)
        outside = np.flatnonzero(inside >= self.n)
        while len(outside):
            walked = self._permute(inside[outside], keys)
            inside[outside] = walked
            outside = outside[walked >= self.n]
        return inside.astype(np.int64)

    def blocks(self, epoch: int, start: int, size: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (first position, indices) of each batch of `size`; the last may be short."""
        return blocks(self, epoch, start, size)

    def _permute(
        self, values: npt.NDArray[np.uint64], keys: tuple[int, ...]
    ) -> npt.NDArray[np.uint64]:
        half = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left = values >> half
        right = values & mask
        for each in keys:
            left, right = right, left ^ (_mix(right ^ np.uint64(each)) & mask)
        return (left << half) | right


def _one_of_all(n: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return one of the n! permutations, each equally likely."""
    digest = blake2b(struct.pack("<3q", seed, ORDER, epoch), digest_size=16).digest()
    # n! is so much smaller than 2^128 that the remainder's bias does not count.
    number = int.from_bytes(digest, "little")
    left = list(range(n))
    order = []
    for size in range(n, 0, -1):
        number, place = divmod(number, size)
        order.append(left.pop(place))
    return np.array(order, dtype=np.int64)


def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = blake2b(struct.pack("<3q", seed, ORDER, epoch), digest_size=4 * _ROUNDS).digest()
    return struct.unpack(f"<{_ROUNDS}I", digest)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 32 bits with "lowbias32" (Wellons, 2018): every input bit reaches every output bit."""
    low = np.uint64(0xFFFFFFFF)
    x = x & low
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D)) & low
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B)) & low
    return x ^ (x >> np.uint64(16))
