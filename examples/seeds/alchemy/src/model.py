"""The tagger, with its optimizer and its schedule."""

from typing import Any

import torch
from alchemy import AlchemyModel, AlchemyOptimizer, AlchemyTrainScheduler, sym_tbl
from torch import nn


class TaggerNet(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.Embedding(512, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, 3)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


@AlchemyModel.register("Tagger")
class Tagger(AlchemyModel):
    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._model = TaggerNet(dim)

    def forward(
        self, batch: dict[str, Any], needs_loss: bool, requires_grad: bool
    ) -> dict[str, Any]:
        outputs = {"logits": self.model(batch["ids"]), "tags": batch["tags"]}
        if needs_loss:
            loss = self.criterion(outputs["logits"].transpose(1, 2), batch["tags"])
            if requires_grad:
                self.backward(loss)
            outputs["loss"] = loss.item()
        return outputs


@AlchemyOptimizer.register("AdamW")
class AdamW(AlchemyOptimizer):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.optimizer = torch.optim.AdamW(sym_tbl().model.parameters(), lr=lr)


@AlchemyTrainScheduler.register("Decay")
class Decay(AlchemyTrainScheduler):
    def __init__(self) -> None:
        super().__init__()
        optimizer = sym_tbl().optimizer.optimizer
        self.lr_sched = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
