"""A generator and a critic, and the game they play."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from assay.engine import Mean, MultiOptimizerStep, Process


class Ring(torch.utils.data.Dataset):
    """Points near a circle of radius 1."""

    def __init__(self, size, seed=0):
        draw = torch.Generator().manual_seed(seed)
        angle = torch.rand(size, generator=draw) * 2 * torch.pi
        radius = 1 + 0.05 * torch.randn(size, generator=draw)
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    randomness = "none"

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index]


class Pair(nn.Module):
    """Both nets in one model, so that one checkpoint holds both."""

    def __init__(self, noise, width):
        super().__init__()
        self.noise = noise
        self.generator = nn.Sequential(net(noise, width), nn.Linear(width, 2))
        self.critic = nn.Sequential(net(2, width), nn.Linear(width, 1))

    def forward(self, count):
        """So many made points."""
        return self.generator(
            torch.randn(count, self.noise, device=self.generator[1].weight.device)
        )


def net(inputs, width):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)
    )


class Game(Process):
    """GAN: the critic learns to tell real points from generated ones, the generator to fool it."""

    def __init__(self, model: Pair, backward: MultiOptimizerStep | None = None):
        self.model = model
        self.metrics = {"off": Mean("off")}
        if backward is not None:
            self.backward = backward

    def forward_step(self, real):
        made = self.model(len(real))
        critic = self.model.critic
        on_real, on_made = critic(real), critic(made.detach())
        losses = {
            "critic": told(on_real, True) + told(on_made, False),
            # A loss of the generator changes the generator alone, though it runs through the
            # critic.
            "generator": {"fool": told(critic(made), True), "spread": made.mean(0).square().sum()},
        }
        return losses, {"off": (made.detach().norm(dim=1) - 1).abs()}


def told(score, is_real):
    return binary_cross_entropy_with_logits(score, torch.full_like(score, float(is_real)))
