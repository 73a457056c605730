"""BERT (Devlin et al. 2018, arXiv 1810.04805): the encoder, and its two losses of pre-training."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from assay.core.errors import ArgumentError


class Bert(nn.Module):
    """Encoder of token ids. Arguments are named as in the configuration of `transformers`.

    ArgumentError for a `hidden_size` that the heads do not divide.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        add_pooling_layer: bool = True,
    ) -> None:
        super().__init__()
        _check_heads(hidden_size, num_attention_heads)
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(max_position_embeddings, hidden_size)
        self.segments = nn.Embedding(type_vocab_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.layers = nn.ModuleList(
            _Layer(
                hidden_size,
                num_attention_heads,
                intermediate_size,
                hidden_dropout_prob,
                attention_probs_dropout_prob,
                layer_norm_eps,
            )
            for _ in range(num_hidden_layers)
        )
        self.pooler = nn.Linear(hidden_size, hidden_size) if add_pooling_layer else None
        self.initializer_range = initializer_range
        self.apply(self._initialize)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states (batch, length, hidden) and the pooled first one.

        `attention_mask` (batch, length) is 0 at padding; None attends to all tokens. Left out,
        `token_type_ids` are 0. The pooled state is None without a pooling layer.
        """
        length = input_ids.shape[1]
        hidden = self.tokens(input_ids) + self.positions.weight[:length]
        if token_type_ids is None:
            hidden = hidden + self.segments.weight[0]
        else:
            hidden = hidden + self.segments(token_type_ids)
        hidden = self.dropout(self.norm(hidden))
        is_seen = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, is_seen)
        pooled = None if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return hidden, pooled

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class BertPretraining(nn.Module):
    """BERT with the heads for masked tokens and for the order of two sentences."""

    def __init__(self, encoder: Bert, *, add_binary_head: bool = True) -> None:
        super().__init__()
        width = encoder.tokens.embedding_dim
        self.encoder = encoder
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=encoder.norm.eps)
        self.bias = nn.Parameter(encoder.tokens.weight.new_zeros(encoder.tokens.num_embeddings))
        self.order = nn.Linear(width, 2) if add_binary_head else None

    def scores(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return scores of tokens (batch, length, vocabulary) and of the order (batch, 2)."""
        hidden, pooled = self.encoder(input_ids, attention_mask, token_type_ids)
        transformed = self.norm(functional.gelu(self.transform(hidden)))
        tokens = functional.linear(transformed, self.encoder.tokens.weight, self.bias)
        return tokens, None if self.order is None or pooled is None else self.order(pooled)


def masked_cross_entropy(scores: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the mean loss of the tokens at which `mask` is 1; 0 where there is none.

    Shapes: scores (batch, length, vocabulary), targets and mask (batch, length).
    """
    losses = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    weights = mask.flatten().to(losses.dtype)
    return (losses * weights).sum() / weights.sum().clamp(min=1)


class _Layer(nn.Module):
    """Block of attention and feed-forward, each followed by a residual sum and a norm."""

    def __init__(
        self, width: int, heads: int, inner: int, dropout: float, attention: float, eps: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attended = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, is_seen: Tensor | None) -> Tensor:
        attended = functional.scaled_dot_product_attention(
            self._split(self.query(hidden)),
            self._split(self.key(hidden)),
            self._split(self.value(hidden)),
            attn_mask=is_seen,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        joined = attended.transpose(1, 2).flatten(2)
        hidden = self.attention_norm(hidden + self.dropout(self.attended(joined)))
        outer = self.outer(functional.gelu(self.inner(hidden)))
        normed: Tensor = self.norm(hidden + self.dropout(outer))
        return normed

    def _split(self, states: Tensor) -> Tensor:
        """Return states (batch, length, width) as (batch, heads, length, width of a head)."""
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


def _check_heads(hidden_size: int, heads: int) -> None:
    if hidden_size % heads:
        raise ArgumentError(
            f"hidden_size {hidden_size} is no multiple of {heads} heads",
            inside=("hidden_size",),
        )
