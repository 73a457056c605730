"""The digits of the first example, every two by two pixels made one."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torch.utils.data import TensorDataset

_BOUNDS = {"train": (0, 4000), "valid": (4000, 4500), "test": (4500, 5000)}
_FILE = Path(__file__).parents[1] / "01_digits" / "digits.npz"


class SmallDigits(TensorDataset):
    """Images of shape (1, 14, 14), about zero and of variance about one, and their class."""

    def __init__(self, split: str) -> None:
        first, last = _BOUNDS[split]
        with np.load(_FILE) as file:
            images = torch.from_numpy(file["images"][first:last]).float().div_(255).unsqueeze_(1)
            labels = torch.from_numpy(file["labels"][first:last]).long()
        small: Tensor = avg_pool2d(images, 2)
        super().__init__((small - 0.13) / 0.27, labels)
