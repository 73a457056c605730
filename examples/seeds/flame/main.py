"""Digits with a process of flame: python -m assay.compat main.py --epochs 4"""

import argparse
from typing import NewType

import numpy as np
import torch
from flame import Engine
from flame.pytorch.typing_prelude import (
    Criterion,
    Model,
    Optimizer,
    TestLoader,
    TrainLoader,
    ValLoader,
)
from injector import Injector, Module, provider, singleton
from process import SupervisedProcess
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Args = NewType("Args", dict)
Config = NewType("Config", dict)


class Main(Module):
    @singleton
    @provider
    def args(self) -> Args:
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=4)
        parser.add_argument("--lr", type=float, default=0.1)
        return vars(parser.parse_args())

    @singleton
    @provider
    def config(self, args: Args) -> Config:
        return {**args, "train_batch_size": 50, "val_batch_size": 100}

    @singleton
    @provider
    def model(self) -> Model:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))

    @singleton
    @provider
    def criterion(self) -> Criterion:
        return nn.CrossEntropyLoss()

    @singleton
    @provider
    def optimizer(self, model: Model, cfg: Config) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9)

    @singleton
    @provider
    def train_loader(self, cfg: Config) -> TrainLoader:
        return DataLoader(digits(0, 600), batch_size=cfg["train_batch_size"], shuffle=True)

    @singleton
    @provider
    def val_loader(self, cfg: Config) -> ValLoader:
        return DataLoader(digits(600, 800), batch_size=cfg["val_batch_size"])

    @singleton
    @provider
    def test_loader(self, cfg: Config) -> TestLoader:
        return DataLoader(digits(800, 1000), batch_size=cfg["val_batch_size"])


def digits(first, last):
    data = np.load("digits.npz")
    images = torch.from_numpy(data["images"][first:last]).float().flatten(1) / 255
    return TensorDataset(images, torch.from_numpy(data["labels"][first:last]).long())


if __name__ == "__main__":
    container = Injector(Main)
    cfg = container.get(Config)
    process = container.get(SupervisedProcess)
    engine = Engine(
        process,
        container.get(TrainLoader),
        epochs=cfg["epochs"],
        evaluate={"val": container.get(ValLoader)},
        best=("val/acc", "max"),
        config=cfg,
    )
    state = engine.run()
    print(f"epoch {state.epoch} step {state.global_iteration} {state.metrics}")
    process.eval()
    hit = 0
    for batch in container.get(TestLoader):
        output = process.validation_step(batch)
        hit += int((output["pred"].argmax(1) == output["target"]).sum())
    print("test", hit / 200)
