import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F


class NeuralNetwork(nn.Module):
    def __init__(self, num_classes=10, hidden=32):
        super().__init__()
        self.flatten = nn.Flatten()
        self.first = nn.Linear(28 * 28, hidden)
        self.dropout = nn.Dropout(0.1)
        self.last = nn.Linear(hidden, num_classes)
        self.loss_func = nn.CrossEntropyLoss()

    def forward(self, inputs, labels):
        hidden = self.dropout(F.relu(self.first(self.flatten(inputs))))
        logits = self.last(flow.cat([hidden], dim=-1))
        if labels is not None and self.training:
            return {"losses": self.loss_func(logits, labels)}
        return {"prediction_scores": logits}
