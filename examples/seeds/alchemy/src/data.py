"""Pipes that make encodings of sentences, and the task that has them."""

import json

import numpy as np
import torch
from alchemy import AlchemyTask, DataPipeline, Registrable

TAGS = ["O", "PER", "LOC"]


class JsonLOpener(DataPipeline):
    def __iter__(self):
        for path in self.datapipe:
            with open(path, encoding="utf-8") as file:
                yield from file


class ParseJsonDoc(DataPipeline):
    def __iter__(self):
        for line in self.datapipe:
            yield json.loads(line)


class Sample2Encoding:
    def __init__(self, datapipe, max_len):
        self.datapipe = datapipe
        self.max_len = max_len

    def __iter__(self):
        for doc in self.datapipe:
            if len(doc["tokens"]) <= self.max_len:
                yield encode(doc)


def encode(doc):
    ids = [sum(ord(c) * 31**i for i, c in enumerate(word)) % 511 + 1 for word in doc["tokens"]]
    return {"ids": np.array(ids), "tags": np.array([TAGS.index(tag) for tag in doc["tags"]])}


@Registrable.register("PadCollate")
class PadCollate:
    def __call__(self, batch):
        longest = max(len(each["ids"]) for each in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        tags = torch.full((len(batch), longest), -100)
        for i, each in enumerate(batch):
            ids[i, : len(each["ids"])] = torch.from_numpy(each["ids"])
            tags[i, : len(each["tags"])] = torch.from_numpy(each["tags"])
        return {"ids": ids, "tags": tags}


@AlchemyTask.register("TaggingTask")
class TaggingTask(AlchemyTask):
    def __init__(self):
        super().__init__(meta={"entity_types": TAGS})

    def load_dataset(self, split, **kwargs):
        with open(f"data/{split}.jsonl", encoding="utf-8") as file:
            docs = [encode(json.loads(line)) for line in file]
        self._datasets[split] = (docs, {"collate_fn": PadCollate(), **kwargs})
