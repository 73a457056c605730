"""The data of the project: an item is an `Instance`, as in the LiBai tutorial.

Other than there: the digits that come with `examples/01_digits` instead of a download, 4,000 to
train on and 1,000 to test on.
"""

from pathlib import Path

import numpy as np
import torch

from assay.engine import DistTensorData, Instance

FILE = Path(__file__).parents[3] / "01_digits" / "digits.npz"


class MnistDataSet:
    randomness = "none"

    def __init__(self, is_train: bool, path: str = str(FILE)) -> None:
        part = slice(0, 4000) if is_train else slice(4000, 5000)
        with np.load(path) as file:
            self.images, self.labels = file["images"][part], file["labels"][part]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, idx: int) -> Instance:
        image = torch.from_numpy(self.images[idx]).float().div_(255)
        label = torch.tensor(int(self.labels[idx]))
        return Instance(
            inputs=DistTensorData(image), labels=DistTensorData(label, placement_idx=-1)
        )
