"""Default training step of a supervised model."""

from assay.config.lazy import L

classify = L("assay.engine.Supervised")(
    criterion=L("torch.nn.CrossEntropyLoss")(),
    metrics=dict(acc=L("assay.engine.Accuracy")()),
)
regress = L("assay.engine.Supervised")(criterion=L("torch.nn.MSELoss")())

process = classify
