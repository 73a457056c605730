"""Models that `rehearse.py` rehearses and trains, and data of their shapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2, by default of 124 M parameters; scores have shape (batch, vocabulary, length)."""

    def __init__(
        self, vocabulary: int = 50257, width: int = 768, depth: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Basic block of a ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x))


class ResNet(nn.Module):
    """ResNet-18."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        stem = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        blocks: list[nn.Module] = []
        before = width
        for level, after in enumerate((width, 2 * width, 4 * width, 8 * width)):
            blocks += [Residual(before, after, 2 if level else 1), Residual(after, after, 1)]
            before = after
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Llama of transformers; gives scores of shape (batch, vocabulary, length)."""

    def __init__(
        self, vocabulary: int, hidden: int, inner: int, depth: int, heads: int, shared: int
    ) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=shared,
            max_position_embeddings=4096,
        )
        self.language = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.language(input_ids=tokens, use_cache=False).logits
        return scores.transpose(1, 2)


class Perceptron(nn.Module):
    """Three wide layers with dropout."""

    def __init__(self, width: int = 4096) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Encoder of torch's own layers that classifies sequences of tokens."""

    def __init__(self, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10_000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(tokens)).mean(1))  # type: ignore[no-any-return]


class Random:
    """Samples of one shape, made on demand; `kind` is tokens, images, vectors or sequences."""

    def __init__(self, kind: str, size: int, count: int = 10_000, length: int = 1024) -> None:
        self.kind, self.size, self.count, self.length = kind, size, count, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(index)
        label = torch.tensor(index % min(self.count, 10))
        if self.kind == "tokens":
            tokens = torch.randint(0, self.count, (self.size + 1,), generator=draw)
            return tokens[:-1], tokens[1:]
        if self.kind == "sequences":
            return torch.randint(0, self.count, (self.size,), generator=draw), label
        shape = (3, self.size, self.size) if self.kind == "images" else (self.size,)
        return torch.randn(shape, generator=draw), label


class Convolutions(nn.Module):
    """Plain CNN: convolutions of three pixels and pooling, without normalisation."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """U-Net of three levels with batch norm and transposed convolutions; scores of each pixel."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _double(before, after) for before, after in zip([3, *widths], widths, strict=False)
        )
        self.middle = _double(widths[-1], 2 * widths[-1])
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in widths[::-1])
        self.up = nn.ModuleList(_double(2 * each, each) for each in widths[::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([kept.pop(), rise(x)], 1))
        return self.head(x).mean((2, 3))  # type: ignore[no-any-return]


def _double(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for channels in (before, after):
        parts += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts)


class Recurrent(nn.Module):
    """LSTM of two layers over packed sequences of different lengths."""

    def __init__(self, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10_000, width)
        self.layers = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = torch.arange(len(tokens)) % (tokens.shape[1] // 2) + tokens.shape[1] // 2
        packed = nn.utils.rnn.pack_padded_sequence(
            self.tokens(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.layers(packed)
        return self.head(last[-1])  # type: ignore[no-any-return]
