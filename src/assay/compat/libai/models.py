"""Models of LiBai by its names and arguments, over those of `assay.engine.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.build import configurable
from assay.compat.parts.bert import Bert, BertPretraining, masked_cross_entropy


class BertModel(Bert):
    """BERT with LiBai's arguments, or one mapping of them.

    The last four choose kernels in LiBai, and change nothing here.
    """

    @configurable
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int = 768,
        hidden_layers: int = 24,
        num_attention_heads: int = 12,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        num_tokentypes: int = 2,
        add_pooling_layer: bool = True,
        initializer_range: float = 0.02,
        layernorm_eps: float = 1e-5,
        bias_gelu_fusion: bool = False,
        bias_dropout_fusion: bool = False,
        scale_mask_softmax_fusion: bool = False,
        apply_query_key_layer_scaling: bool = False,
    ) -> None:
        super().__init__(
            vocab_size,
            hidden_size=hidden_size,
            num_hidden_layers=hidden_layers,
            num_attention_heads=num_attention_heads,
            intermediate_size=intermediate_size,
            hidden_dropout_prob=hidden_dropout_prob,
            attention_probs_dropout_prob=attention_probs_dropout_prob,
            max_position_embeddings=max_position_embeddings,
            type_vocab_size=num_tokentypes,
            layer_norm_eps=layernorm_eps,
            initializer_range=initializer_range,
            add_pooling_layer=add_pooling_layer,
        )


class BertForPreTraining(BertPretraining):
    """BERT that returns `lm_loss` and `sop_loss` in training, and scores in evaluation.

    `cfg` are the arguments of `BertModel`. `sop_loss` is about the order of the two sentences.
    """

    def __init__(self, cfg: Mapping[str, Any], add_binary_head: bool = True) -> None:
        super().__init__(BertModel(**cfg), add_binary_head=add_binary_head)

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        tokentype_ids: Any = None,
        ns_labels: Any = None,
        lm_labels: Any = None,
        loss_mask: Any = None,
    ) -> dict[str, Any]:
        tokens, order = self.scores(input_ids, attention_mask, tokentype_ids)
        if not self.training or lm_labels is None or loss_mask is None:
            return {"prediction_scores": tokens, "seq_relationship_score": order}
        losses = {"lm_loss": masked_cross_entropy(tokens, lm_labels, loss_mask)}
        if order is not None and ns_labels is not None:
            is_scored = ns_labels.new_ones(1, len(ns_labels))
            losses["sop_loss"] = masked_cross_entropy(order[None], ns_labels[None], is_scored)
        return losses
