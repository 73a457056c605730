"""The pipes that a user of alchemy writes: each makes items of the items before it."""

import json
from pathlib import Path

import numpy as np


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
            counts = [doc["text"].count(chr(97 + i)) for i in range(26)]
            yield np.array(counts, dtype=np.float32), doc["label"]
