"""The supervised process of the README."""

import torch
from flame.pytorch.typing_prelude import Criterion, Model, Optimizer
from injector import inject

from assay.engine import Accuracy


class SupervisedProcess:
    metrics = {"acc": Accuracy()}

    @inject
    def __init__(self, model: Model, criterion: Criterion, optimizer: Optimizer):
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer

    def training_step(self, batch):
        loss, output = self.forward_step(batch)
        loss.backward()
        return output

    def validation_step(self, batch):
        with torch.no_grad():
            _loss, output = self.forward_step(batch)
        return output

    def forward_step(self, batch):
        image, label = batch
        image = image.cuda(non_blocking=True)
        label = label.cuda(non_blocking=True)
        pred = self.model(image)
        loss = self.criterion(pred, label)
        return loss, {"pred": pred, "target": label, "loss": loss}

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, mode=True):
        self.model.train(mode=mode)

    def eval(self):
        self.train(False)
