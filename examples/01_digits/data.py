"""5,000 digits of MNIST (28x28, balanced), split 4,000 / 500 / 500 once and for all."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_BOUNDS = {"train": (0, 4000), "valid": (4000, 4500), "test": (4500, 5000)}


class Digits:
    """Images of shape (1, 28, 28) in [0, 1] and their class. `shift`: moved by up to that many pixels at random."""

    def __init__(self, split: str, shift: int = 0) -> None:
        with np.load(Path(__file__).with_name("digits.npz")) as file:
            first, last = _BOUNDS[split]
            self.images = torch.from_numpy(file["images"][first:last]).float().div_(255).unsqueeze_(1)
            self.labels = torch.from_numpy(file["labels"][first:last]).long()
        self.shift = shift
        self.padded = torch.nn.functional.pad(self.images, (shift, shift, shift, shift))
        # What draws must be keyed; what does not can say so and costs nothing.
        self.randomness = "sample" if shift else "none"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not self.shift:
            return self.images[index], self.labels[index]
        down, right = torch.randint(2 * self.shift + 1, (2,)).tolist()
        return self.padded[index, :, down : down + 28, right : right + 28], self.labels[index]
