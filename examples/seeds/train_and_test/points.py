"""Points whose class is the sign of their sum."""

import torch


class Points:
    def __init__(self, seed, size=20):
        self.points = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i], int(self.points[i].sum() > 0)
