"""Manual of Python that `help()` shows, from the standard library: about 460,000 letters."""

from __future__ import annotations

from pydoc_data import topics

import torch
from torch import Tensor


def letters_of(text: str) -> Tensor:
    """Letters as numbers below 128; the few that are not ASCII become question marks."""
    return torch.tensor(list(text.encode("ascii", errors="replace")))


def text_of(letters: Tensor) -> str:
    return bytes(letters.tolist()).decode("ascii")


class Manual:
    """Pieces of `context` letters, each with the letter that follows.

    Two topics of ten are for validation and test.
    """

    randomness = "none"

    def __init__(self, split: str, context: int) -> None:
        part = {"train": range(2, 10), "valid": (0,), "test": (1,)}[split]
        names = [name for i, name in enumerate(sorted(topics.topics)) if i % 10 in part]
        self.letters = letters_of("\n".join(topics.topics[name] for name in names))
        self.context = context

    def __len__(self) -> int:
        return (len(self.letters) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        first = index * self.context
        piece = self.letters[first : first + self.context + 1]
        return piece[:-1], piece[1:]
