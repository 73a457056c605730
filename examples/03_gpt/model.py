"""A small GPT: letters in, scores of the next letter out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Block(nn.Module):
    """Attention to what came before, then a layer for each place alone."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        # Head by head, so that a part of the features is some of the heads.
        split = self.qkv(self.first_norm(x)).view(batch, length, -1, 3, width // self.heads)
        query, key, value = split.permute(3, 0, 2, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(gelu(self.up(self.second_norm(x))))


class GPT(nn.Module):
    """Letters (batch, length) to scores (batch, letters, length), as for `CrossEntropyLoss`."""

    def __init__(self, letters: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.context = context
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, letters: Tensor) -> Tensor:
        return self.scores(self.blocks(self.embedded(letters)))

    def embedded(self, letters: Tensor) -> Tensor:
        return self.letter(letters) + self.place(
            torch.arange(letters.shape[1], device=letters.device)
        )

    def scores(self, x: Tensor) -> Tensor:
        return (self.norm(x) @ self.letter.weight.T).transpose(1, 2)

    def pipeline_split(self) -> list:
        """Units of pipeline stages: blocks, between two functions sharing the letters' weights."""
        return [(self.embedded, "letter", "place"), *self.blocks, (self.scores, "norm", "letter")]

    def tensor_plan(self) -> dict[str, str]:
        """Tensor-parallel plan: each process has some heads of a block, and some of its features.

        The features are those between `up` and `down`.
        """
        return {
            "blocks.*.qkv": "colwise",
            "blocks.*.out": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
        }

    @torch.no_grad()
    def write(self, letters: Tensor, count: int, temperature: float = 0.7) -> Tensor:
        """`letters` and `count` more, drawn one after the other."""
        for _ in range(count):
            scores = self(letters[None, -self.context :])[0, :, -1] / temperature
            letters = torch.cat([letters, torch.multinomial(scores.softmax(0), 1)])
        return letters
