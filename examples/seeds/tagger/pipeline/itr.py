"""Pipes over streams."""

import random
from itertools import islice

from torch.utils.data import get_worker_info


class SplitByWorker:
    def __call__(self, items):
        worker = get_worker_info()
        return islice(items, worker.id, None, worker.num_workers) if worker else items


class Shuffle:
    def __call__(self, items):
        items = list(items)
        random.Random(0).shuffle(items)
        yield from items


class Batch:
    def __init__(self, batch_size):
        self.batch_size = batch_size

    def __call__(self, items):
        items = iter(items)
        while batch := list(islice(items, self.batch_size)):
            yield batch
