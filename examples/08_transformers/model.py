"""Model of transformers, made of a configuration: nothing is fetched, weights are random."""

from transformers import BertConfig, BertForSequenceClassification


def bert(
    width: int, layers: int, heads: int, vocab_size: int = 8, length: int = 12
) -> BertForSequenceClassification:
    """A small BERT that says which of two classes a line is of."""
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=length,
        num_labels=2,
    )
    return BertForSequenceClassification(config)
