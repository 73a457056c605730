"""Shapes and dtypes as text: of what flows through a step, and read back for a batch to come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics.structures import parts_of

_MOST = 6
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[][(){},:<])")
_FIX = "Write it as the report does: '(float32 [64, 3, 32, 32], int64 [64] < 10)'."


def shape_of(value: Any) -> str:
    """Return dtype and shape of each tensor in a structure.

    >>> shape_of((torch.ones(2, 3), {"y": torch.tensor(1)}, "a"))
    '(float32 [2, 3], {y: int64 []}, str)'
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list | tuple):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return f"{left}{_few([shape_of(each) for each in value])}{right}"
    if (parts := parts_of(value)) is not None:
        return f"{{{_few([f'{name}: {shape_of(each)}' for name, each in parts])}}}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def _few(parts: list[str]) -> str:
    more = len(parts) - _MOST
    return ", ".join([*parts[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def declared_batch(text: str) -> Any:
    """Return the batch that `text` describes, in the notation of `shape_of`.

    `int64 [64] < 10` has the values 0 to 9; a tensor without a bound has none (device `meta`).
    InputError for anything else.

    >>> declared_batch("(float32 [2, 3], int64 [4] < 3)")[1]
    tensor([0, 1, 2, 0])
    """
    words = list(_words(text))
    found = _value(words, text)
    if words:
        raise _unread(text, words[0])
    return found


def _words(text: str) -> Iterator[str]:
    place = 0
    while place < len(text.rstrip()):
        found = _TOKEN.match(text, place)
        if found is None:
            raise _unread(text, text[place:].strip()[:10])
        yield found[1]
        place = found.end()


def _value(words: list[str], text: str) -> Any:
    word = _next(words, text)
    if word == "(":
        return tuple(_items(words, text, ")"))
    if word == "[":
        return list(_items(words, text, "]"))
    if word == "{":
        return dict(_pairs(words, text))
    dtype = getattr(torch, word, None)
    if not isinstance(dtype, torch.dtype):
        raise _unread(text, word)
    _expect(words, text, "[")
    shape = [int(each) if each.isdigit() else -1 for each in _numbers(words, text)]
    if -1 in shape:
        raise _unread(text, "a size that is no number")
    if words[:1] != ["<"]:
        return torch.empty(shape, dtype=dtype, device="meta")
    words.pop(0)
    bound = _next(words, text)
    if not bound.isdigit() or not int(bound) or dtype.is_floating_point or dtype.is_complex:
        raise _unread(text, f"< {bound}")
    return (torch.arange(torch.Size(shape).numel()) % int(bound)).to(dtype).reshape(shape)


def _numbers(words: list[str], text: str) -> Iterator[str]:
    while (word := _next(words, text)) != "]":
        if word != ",":
            yield word


def _items(words: list[str], text: str, end: str) -> Iterator[Any]:
    while words[:1] != [end]:
        yield _value(words, text)
        if words[:1] != [end]:
            _expect(words, text, ",")
    words.pop(0)


def _pairs(words: list[str], text: str) -> Iterator[tuple[str, Any]]:
    while words[:1] != ["}"]:
        name = _next(words, text)
        _expect(words, text, ":")
        yield name, _value(words, text)
        if words[:1] != ["}"]:
            _expect(words, text, ",")
    words.pop(0)


def _next(words: list[str], text: str) -> str:
    if not words:
        raise _unread(text, "the end")
    return words.pop(0)


def _expect(words: list[str], text: str, word: str) -> None:
    found = _next(words, text)
    if found != word:
        raise _unread(text, found)


def _unread(text: str, what: str) -> InputError:
    return InputError(f"--batch cannot be read at {what!r}: {text}", fix=_FIX)
