"""A tagger: every word sees the six on each side of it."""

from __future__ import annotations

from torch import Tensor, nn


class Tagger(nn.Module):
    """(batch, length) words, 0 where a line has ended, to (batch, tags, length) scores.

    What is behind the end of a line is set to 0 in every layer: the scores do not depend on how
    long the others are.
    """

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(3))
        self.tag = nn.Conv1d(width, tags, 1)

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0).unsqueeze(1)
        x = self.word(words).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x).relu() * there
        return self.tag(x)
