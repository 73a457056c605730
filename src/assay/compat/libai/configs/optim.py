"""AdamW with clipped gradients, and no decay of norms and biases, as LiBai's default."""

from assay.config import LazyCall

optim = LazyCall("torch.optim.AdamW")(
    params=LazyCall("libai.optim.get_default_optimizer_params")(
        clip_grad_max_norm=1.0,
        clip_grad_norm_type=2.0,
        weight_decay_norm=0.0,
        weight_decay_bias=0.0,
    ),
    lr=1e-3,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-8,
)
