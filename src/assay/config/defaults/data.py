"""The splits. Each needs a source: `data.train.source = L("data.Digits")(split="train")`."""

data = dict(
    train=dict(batch_size=64, shuffle=True),
    valid=dict(batch_size=256),
    test=dict(batch_size=256),
)
