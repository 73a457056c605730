"""Accumulators for evaluation: updated batch by batch, read once at the end.

1. `metric`   what a metric is, and how one of another library becomes one
2. `means`    weighted means, and what is made of them
3. `labels`   single scores, each true above a threshold, and the area under their ROC curve
4. `classes`  accuracy, the confusion matrix and what is counted from it
"""

from assay.engine.metrics.classes import F1, Accuracy, Confusion, Precision, Recall
from assay.engine.metrics.labels import AUROC
from assay.engine.metrics.means import Mean, Perplexity
from assay.engine.metrics.metric import Adapted, Metric, as_metric

__all__ = [
    "AUROC",
    "F1",
    "Accuracy",
    "Adapted",
    "Confusion",
    "Mean",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "as_metric",
]
