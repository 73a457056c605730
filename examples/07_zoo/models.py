"""Four families of image models, each as small as its idea allows.

All take (batch, 1, 14, 14) and give (batch, 10).

MLP     the universal approximator
LeNet   LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document
        Recognition", 1998
ResNet  He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2015
Mixer   Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision", 2021
"""

import torch
from torch import Tensor, nn

CLASSES = 10


class MLP(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(196, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )


class LeNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(144, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, CLASSES),
        )


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
        )
        around = nn.Sequential(
            nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
        )
        self.around = nn.Identity() if (inner, stride) == (outer, 1) else around

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.inside(images) + self.around(images))


class ResNet(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, CLASSES),
        )


class Patches(nn.Module):
    """49 patches of 2x2 pixels, each `width` numbers, with where it is: (batch, 49, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.where = nn.Parameter(0.02 * torch.randn(49, width))

    def forward(self, images: Tensor) -> Tensor:
        return self.patch(images).flatten(2).transpose(1, 2) + self.where


class MixerLayer(nn.Module):
    """Mixes the patches, then the numbers of each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.across = nn.Sequential(nn.Linear(49, 64), nn.GELU(), nn.Linear(64, 49))
        self.within = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, patches: Tensor) -> Tensor:
        patches = patches + self.across(self.norm(patches).transpose(1, 2)).transpose(1, 2)
        return patches + self.within(patches)


class Mixer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(Patches(width), *(MixerLayer(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).mean(1))
