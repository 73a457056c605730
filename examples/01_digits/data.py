"""5,000 digits of MNIST (28x28, balanced), or all of MNIST if its files are there.

The 5,000 are split 4,000 / 500 / 500 once and for all.
"""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_BOUNDS = {"train": (0, 4000), "valid": (4000, 4500), "test": (4500, 5000)}


class Digits:
    """Images of shape (1, 28, 28) in [0, 1] and their class.

    `shift`: images are moved by up to that many pixels at random. `folder`: the folder of the four
    files of MNIST (`train-images-idx3-ubyte.gz`, ...); by default the digits beside this file are
    used.
    """

    def __init__(self, split: str, shift: int = 0, folder: str | None = None) -> None:
        images, labels = _shipped(split) if folder is None else _mnist(Path(folder), split)
        self.images = torch.from_numpy(images).float().div_(255).unsqueeze_(1)
        self.labels = torch.from_numpy(labels).long()
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


def _shipped(split: str) -> tuple[np.ndarray, np.ndarray]:
    first, last = _BOUNDS[split]
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        return file["images"][first:last], file["labels"][first:last]


def _mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """All of MNIST; the last 5,000 of its training images are the valid split."""
    prefix = "t10k" if split == "test" else "train"
    images, labels = (
        _idx(folder / f"{prefix}-images-idx3-ubyte"),
        _idx(folder / f"{prefix}-labels-idx1-ubyte"),
    )
    part = {"train": slice(None, -5000), "valid": slice(-5000, None), "test": slice(None)}[split]
    return images[part], labels[part]


def _idx(path: Path) -> np.ndarray:
    """Array in an IDX file of bytes, compressed or not.

    The file has two zeros, the type, the number of dimensions, each of them, the data.
    """
    packed = path.with_name(path.name + ".gz")
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()
