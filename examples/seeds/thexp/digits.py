"""Digits with a trainer of thexp: python -m assay.compat digits.py --epoch=4 --optim.lr=0.1"""

import numpy as np
import torch
import torch.nn as nn
from thexp.calculate.accuracy import classify
from thexp.calculate.schedule import rampup
from thexp.frame import Meter, Params, Trainer
from thexp.frame.callbacks import AutoReport, Callback, EvalCallback, LoggerCallback
from thexp.frame.saver import Saver
from thexp.utils import random
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


class DigitParams(Params):
    def __init__(self):
        super().__init__()
        self.epoch = 4
        self.batch_size = 50
        self.topk = (1, 2)
        self.hidden = 32
        self.optim = self.optim_option(lr=0.2, momentum=0.9)


class MyModel(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.fc(x.view(x.shape[0], -1))


class KeepBest(Callback):
    """Keeps the model of the best evaluation in the folder of the saver."""

    def on_eval_end(self, trainer):
        acc = trainer.engine.state.metrics["eval/acc"]
        known = [trainer.saver.load_info(model)["acc"] for model in trainer.saver.find_models()]
        if acc > max(known, default=0.0):
            info = {"acc": acc, "epoch": trainer.params.eidx}
            trainer.saver.save_model(0, trainer.model.state_dict(), info)


class MyTrainer(Trainer):
    def initial_callback(self):
        EvalCallback(1, 2).hook(self)
        LoggerCallback().hook(self)
        KeepBest().hook(self)
        AutoReport().hook(self)

    def initial_trainer(self, params):
        digits = np.load("digits.npz")
        images = torch.from_numpy(digits["images"]).float() / 255
        labels = torch.from_numpy(digits["labels"]).long()
        parts = {"train": slice(0, 600), "eval": slice(600, 800), "test": slice(800, 1000)}
        loaders = {
            name: DataLoader(
                TensorDataset(images[part], labels[part]),
                batch_size=params.batch_size,
                shuffle=name == "train",
            )
            for name, part in parts.items()
        }
        self.model = MyModel(params.hidden)
        self.optim = SGD(
            self.model.parameters(), lr=params.optim.lr, momentum=params.optim.momentum
        )
        self.regist_databundler(**loaders)
        self.cross = nn.CrossEntropyLoss()
        self.saver = Saver("./models")

    def train_batch(self, eidx, idx, global_step, batch_data, params, device):
        meter = Meter()
        meter.percent(meter.acc_)
        xs, ys = batch_data
        xs = xs + 0.1 * torch.randn_like(xs)  # drawn alike after a resume

        logits = self.model(xs)
        weight = rampup(global_step, 12)
        meter.loss = weight * self.cross(logits, ys)
        meter.acc = classify(logits, ys, topk=params.topk)[0]

        meter.loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        return meter


random.seed_all(0)
params = DigitParams()
params.from_args()
params.build_exp_name("digits", "optim.lr")
trainer = MyTrainer(params)
trainer.initial_exp("./experiment")
trainer.train()
print("test", trainer.evaluate("test"))
