"""Defaults of training length, evaluation and checkpoints."""

train = dict(epochs=10, precision="fp32", accumulate=1, clip_norm=1.0, non_finite="stop")
evaluate = dict(every="1 epoch")
checkpoint = dict(every="1 epoch", keep=3)
