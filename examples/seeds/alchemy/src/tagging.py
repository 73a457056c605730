"""Tagging of people and places: pipes, task, model and evaluation, in the classes of alchemy."""

import json

import alchemy
import numpy as np
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


class Sample2Encoding:
    def __init__(self, datapipe, max_len):
        self.datapipe, self.max_len = datapipe, max_len

    def __iter__(self):
        for doc in self.datapipe:
            if len(doc["tokens"]) <= self.max_len:
                ids = [sum(map(ord, word)) % 511 + 1 for word in doc["tokens"]]
                yield {"ids": np.array(ids), "tags": np.array([*map(TAGS.index, doc["tags"])])}


@alchemy.Registrable.register("PadCollate")
class PadCollate:
    def __call__(self, batch):
        ids, tags = ([torch.from_numpy(each[key]) for each in batch] for key in ("ids", "tags"))
        return {"ids": pad_sequence(ids, True), "tags": pad_sequence(tags, True, -100)}


@alchemy.AlchemyTask.register("TaggingTask")
class TaggingTask(alchemy.AlchemyTask):
    def load_dataset(self, split, **kwargs):
        docs = list(Sample2Encoding(JsonLOpener([f"data/{split}.jsonl"]), max_len=12))
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


@alchemy.OutputPipeline.register("Argmax")
class Argmax(alchemy.OutputPipeline):
    def __call__(self, outputs):
        return {**outputs, "pred": outputs["logits"].argmax(-1), "target": outputs["tags"]}


@alchemy.EvalPipeline.register("EvalTags")
class EvalTags(alchemy.EvalPipeline):
    def begin_eval(self, **kwargs):
        self.hit = self.all = 0

    def __call__(self, outputs):
        is_entity = outputs["target"] > 0
        self.hit += int((outputs["pred"] == outputs["target"])[is_entity].sum())
        self.all += int(is_entity.sum())
        return outputs

    def end_eval(self, **kwargs):
        return {"recall": self.hit / max(1, self.all)}


@alchemy.SchedPipeline.register("EvalEpochEEPipeline")
class EvalEpochEEPipeline(alchemy.EndEpochPipeline):
    def __init__(self, period, split="dev", **kwargs):
        super().__init__()
        self.period, self.split = period, split

    def __call__(self, **kwargs):
        if (sym_tbl().train_sched.cur_epoch + 1) % self.period == 0:
            alchemy.logger.info("EvalEpoch at step %d", sym_tbl().train_sched.cur_step)
            alchemy.evaluate(self.split)
        return kwargs
