"""BERT with the sizes of LiBai's default: `model = get_config("common/models/bert.py").bert_model`.

A `tokenization` in the config sets `vocab_size`.
"""

from assay.config import LazyCall

cfg = dict(
    vocab_size=30522,
    hidden_size=768,
    hidden_layers=24,
    num_attention_heads=12,
    intermediate_size=4096,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    max_position_embeddings=512,
    num_tokentypes=2,
    add_pooling_layer=True,
    initializer_range=0.02,
    layernorm_eps=1e-5,
)

bert_model = LazyCall("libai.models.BertModel")(cfg=cfg)
pretrain_model = LazyCall("libai.models.BertForPreTraining")(cfg=cfg, add_binary_head=True)
