"""Images of digits from files on this machine, and the transforms of the first tutorials.

A transform takes an image, a tensor of shape (height, width) with bytes, or (channels, height,
width) with numbers from 0 to 1.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from assay.core.errors import InputError

_IDX = {True: "train", False: "t10k"}
_TEST_SHARE = 5
"""One in so many digits of a file `digits.npz` are for the test: the last ones."""

_CIFAR_ROW = 2 + 3 * 32 * 32
"""Bytes of one picture: two classes, then red, green and blue."""

Transform = Callable[[Tensor], Tensor]


class ToTensor:
    """Turn bytes into numbers from 0 to 1; an image (height, width) becomes (1, height, width)."""

    def __call__(self, image: Tensor) -> Tensor:
        return (image if image.dim() == 3 else image[None]).float() / 255


class Normalize:
    """Subtract a mean and divide by a standard deviation, one number for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean = torch.tensor(mean)[:, None, None]
        self.std = torch.tensor(std)[:, None, None]

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


class RandomHorizontalFlip:
    """Mirror an image of shape (..., width) at random."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Tensor) -> Tensor:
        return image.flip(-1) if float(torch.rand(())) < self.p else image


class RandomAffine:
    """Turn, shift and scale an image of shape (channels, height, width) at random.

    `degrees` is the largest angle; `translate` the largest shift, as a share of the image; `scale`
    the smallest and the largest factor.
    """

    def __init__(
        self,
        degrees: float = 0.0,
        translate: tuple[float, float] = (0.0, 0.0),
        scale: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.degrees = degrees
        self.translate = translate
        self.scale = scale

    def __call__(self, image: Tensor) -> Tensor:
        angle, right, down = (torch.rand(3) * 2 - 1).tolist()
        factor = float(torch.empty(()).uniform_(*self.scale))
        angle *= math.radians(self.degrees)
        cos = math.cos(angle) / factor
        sin = math.sin(angle) / factor
        across, along = self.translate
        top_row = [cos, -sin, 2 * across * right]
        bottom_row = [sin, cos, 2 * along * down]
        matrix = torch.tensor([[top_row, bottom_row]])
        grid = functional.affine_grid(matrix, [1, *image.shape], align_corners=False)
        batch = functional.grid_sample(image[None], grid, align_corners=False)
        return batch[0]


class Compose:
    """Apply transforms one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class MNIST:
    """Handwritten digits of the folder `root`: pairs of an image and its class.

    The folder holds the files of MNIST (`train-images-idx3-ubyte`, also with `.gz`), or a file
    `digits.npz` with `images` and `labels`, of which the last fifth is for the test. Nothing is
    downloaded: `download` and `source_url` say where a person finds the files. Raises InputError
    when there are none.
    """

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Transform | None = None,
        download: bool = False,
        source_url: str = "",
    ) -> None:
        self.transform = transform
        images, labels = _read(Path(root), train, source_url)
        self.images = torch.from_numpy(images)
        self.labels = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return image if self.transform is None else self.transform(image), self.labels[index]


class CIFAR100:
    """Coloured pictures of 100 classes from the folder `root`: pairs of an image and its class.

    An image is a tensor of bytes, (3, 32, 32). The folder holds `train.bin` and `test.bin` of the
    binary version of CIFAR-100, also inside of `cifar-100-binary`. Nothing is downloaded.
    InputError where there is no such file, or one of another format.
    """

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Transform | None = None,
        download: bool = False,
    ) -> None:
        name = "train.bin" if train else "test.bin"
        places = [Path(root) / name, Path(root) / "cifar-100-binary" / name]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise InputError(
                f"There is no {name} in {root}, and nothing is downloaded.",
                fix="put the files of CIFAR-100, binary version, there",
            )
        data = np.fromfile(path, np.uint8)
        if not len(data) or len(data) % _CIFAR_ROW:
            raise InputError("The file is not in the binary format of CIFAR-100.", where=str(path))
        rows = torch.from_numpy(data).view(-1, _CIFAR_ROW)
        self.transform = transform
        self.labels = rows[:, 1].long()  # of 100 classes; the first byte is one of 20
        self.images = rows[:, 2:].view(-1, 3, 32, 32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return image if self.transform is None else self.transform(image), int(self.labels[index])


def _read(root: Path, train: bool, source: str) -> tuple[Any, Any]:
    places = [root, root / "MNIST" / "raw"]
    for place in places:
        found = [_idx(place, f"{_IDX[train]}-{name}") for name in ("images-idx3", "labels-idx1")]
        if all(each is not None for each in found):
            return found[0], found[1]
    for place in places:
        if (place / "digits.npz").is_file():
            with np.load(place / "digits.npz") as file:
                images = file["images"]
                labels = file["labels"]
            cut = len(labels) - len(labels) // _TEST_SHARE
            part = slice(0, cut) if train else slice(cut, None)
            return images[part].copy(), labels[part].copy()
    where = f" from {source}" if source else ""
    raise InputError(
        f"There are no digits in {root}, and nothing is downloaded.",
        fix=f"put the files of MNIST{where} there, or digits.npz with `images` and `labels`",
    )


def _idx(place: Path, name: str) -> Any:
    """Return the numbers of a file in the format IDX; None if there is no such file."""
    plain = place / f"{name}-ubyte"
    packed = place / f"{name}-ubyte.gz"
    if plain.is_file():
        data = plain.read_bytes()
    elif packed.is_file():
        data = gzip.decompress(packed.read_bytes())
    else:
        return None
    dims = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape).copy()
