"""Tagging of people and places, in the classes of alchemy."""

import json

import alchemy
import torch
from alchemy import sym_tbl
from torch import nn
from torch.nn.utils.rnn import pad_sequence

TAGS = ["O", "PER", "LOC"]


class JsonLOpener(alchemy.DataPipeline):
    def __iter__(self):
        for path in self.datapipe:
            with open(path, encoding="utf-8") as file:
                yield from map(json.loads, file)


@alchemy.Registrable.register("PadCollate")
class PadCollate:
    def __call__(self, docs):
        ids = [torch.tensor([sum(map(ord, word)) % 512 for word in doc["tokens"]]) for doc in docs]
        tags = [torch.tensor([*map(TAGS.index, doc["tags"])]) for doc in docs]
        return {"ids": pad_sequence(ids, True), "tags": pad_sequence(tags, True, -100)}


@alchemy.AlchemyTask.register("TaggingTask")
class TaggingTask(alchemy.AlchemyTask):
    def load_dataset(self, split, **kwargs):
        docs = self.datasets.get(split)  # the pipes of the config
        if docs is None:
            docs = list(JsonLOpener([f"data/{split}.jsonl"]))
        self._datasets[split] = (docs, {"collate_fn": PadCollate(), **kwargs})


@alchemy.AlchemyModel.register("Tagger")
class Tagger(alchemy.AlchemyModel):
    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)
        self._model = nn.Sequential(nn.Embedding(512, dim), nn.Dropout(0.1), nn.Linear(dim, 3))

    def forward(self, batch, needs_loss, requires_grad):
        outputs = {"logits": self.model(batch["ids"]), "tags": batch["tags"]}
        if needs_loss:
            loss = self.criterion(outputs["logits"].transpose(1, 2), batch["tags"])
            if requires_grad:
                self.backward(loss)
            outputs["loss"] = loss.item()
        return outputs


@alchemy.AlchemyOptimizer.register("AdamW")
class AdamW(alchemy.AlchemyOptimizer):
    def __init__(self, lr):
        super().__init__()
        self.optimizer = torch.optim.AdamW(sym_tbl().model.parameters(), lr=lr)


@alchemy.AlchemyTrainScheduler.register("Decay")
class Decay(alchemy.AlchemyTrainScheduler):
    def __init__(self):
        super().__init__()
        self.lr_sched = torch.optim.lr_scheduler.ExponentialLR(sym_tbl().optimizer.optimizer, 0.99)


class Argmax(alchemy.OutputPipeline):
    def __call__(self, outputs):
        return {"pred": outputs["logits"].argmax(-1), **outputs}


class EvalTags(alchemy.EvalPipeline):
    def __call__(self, outputs, **kwargs):
        pairs = zip(outputs["pred"], outputs["tags"], strict=True)
        hits = [(pred == tag)[tag > 0] for pred, tag in pairs]
        return {**kwargs, "metrics": {"recall": torch.cat(hits).float().mean().item()}}


@alchemy.SchedPipeline.register("EvalEpochEEPipeline")
class EvalEpochEEPipeline(alchemy.EndEpochPipeline):
    def __init__(self, period, split="dev", **kwargs):
        self.period, self.split = period, split

    def __call__(self, **kwargs):
        if (sym_tbl().train_sched.cur_epoch + 1) % self.period == 0:
            alchemy.evaluate(self.split)
        return kwargs
