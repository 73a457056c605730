"""Number of rows of the embedding of a vocabulary."""

from __future__ import annotations

from collections.abc import Sized

from assay.core.errors import ArgumentError


def padded_vocabulary(size: int | Sized, *, multiple: int = 128, tensor: int = 1) -> int:
    """Return the least multiple of `multiple` x `tensor` that is at least `size`.

    `size` is a number of tokens, or a tokenizer.

    Rows by the multiple suit the tiles that GPUs compute in, and come out among `tensor` processes,
    each with as many (Megatron-LM's make_vocab_size_divisible_by).

    >>> padded_vocabulary(50257), padded_vocabulary(50257, tensor=2)
    (50304, 50432)
    """
    count = size if isinstance(size, int) else len(size)
    for name, value in {"size": count, "multiple": multiple, "tensor": tensor}.items():
        if value < 1:
            raise ArgumentError(f"{name} is {value}; it must be at least 1", inside=(name,))
    unit = multiple * tensor
    return -(-count // unit) * unit
