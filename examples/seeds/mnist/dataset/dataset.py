"""The data of the LiBai tutorial. Other than there: nothing is downloaded, and an item is a
dictionary."""

import torch
from torch.utils.data import DataLoader, Dataset


class MnistDataSet(Dataset):
    def __init__(self, path, is_train):
        self.path = path
        generator = torch.Generator().manual_seed(int(is_train))
        self.images = torch.rand(64, 28, 28, generator=generator)

    def __getitem__(self, idx):
        return {"inputs": self.images[idx], "labels": idx % 10}

    def __len__(self):
        return len(self.images)


def build_image_train_loader(dataset, num_workers):
    (data,) = dataset
    return DataLoader(data, batch_size=32, num_workers=num_workers)


def build_image_test_loader(dataset, num_workers):
    return DataLoader(dataset, batch_size=32, num_workers=num_workers)
