"""Lines of letters, and whether one letter is there more often than another."""

import torch


class Words:
    """Lines of letters 1 to 7, padded with 0; the class is whether 1 is more frequent than 2."""

    def __init__(self, count: int, seed: int = 0, length: int = 12) -> None:
        draw = torch.Generator().manual_seed(seed)
        letters = torch.randint(1, 8, (count, length), generator=draw)
        lengths = torch.randint(length // 2, length + 1, (count, 1), generator=draw)
        self.mask = (torch.arange(length) < lengths).long()
        self.letters = letters * self.mask
        self.labels = ((self.letters == 1).sum(1) > (self.letters == 2).sum(1)).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.letters[i],
            "attention_mask": self.mask[i],
            "labels": self.labels[i],
        }
