"""A task that sets how batches are made of samples.

Other than in the text of alchemy: `class MyTask`, not `def`; the method is `dataset`, and returns
the pair.
"""

import torch

from assay.engine import Task, chain
from assay.engine.data import map_style, streams


def collate_fn(samples: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of different length, filled up with zeros, and whether their sum is even."""
    longest = max(map(len, samples))
    filled = torch.tensor(
        [[*sample, *[0] * (longest - len(sample))] for sample in samples], dtype=torch.float32
    )
    return filled.sum(1, keepdim=True), torch.tensor([sum(sample) % 2 for sample in samples])


class MyTask(Task):
    def dataset(self, split: str):
        lists = [list(range(i % 5 + 1)) for i in range(40)]
        datapipe = (
            chain([map_style.SequenceWrapper(lists), streams.Batch(8)])
            if split == "train"
            else lists
        )
        return datapipe, {"collate_fn": collate_fn}
