"""The pipes that a user of alchemy writes, and the chain that leads from one to the next."""

import json
from pathlib import Path

import torch


class Chain:
    """Batches of encodings as tensors: (input, target)."""

    def __init__(self, pipes):
        self.pipes = pipes

    def __iter__(self):
        items = iter(())
        for pipe in self.pipes:
            items = pipe(items)
        for batch in items:
            inputs, targets = zip(*batch, strict=True)
            yield torch.tensor(inputs), torch.tensor(targets)


class JsonLOpener:
    def __call__(self, items):
        for name in items:
            yield from (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()


class ParseJsonDoc:
    def __call__(self, items):
        return map(json.loads, items)


class PruneLongText:
    def __init__(self, longest=20):
        self.longest = longest

    def __call__(self, items):
        for doc in items:
            yield {**doc, "text": doc["text"][: self.longest]}


class Sample2Encoding:
    def __call__(self, items):
        for doc in items:
            yield [float(doc["text"].count(chr(97 + i))) for i in range(26)], doc["label"]
