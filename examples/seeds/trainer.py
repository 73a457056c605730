"""The quick start of thexp: a model, a trainer, and its parameters.

Other than there: the names come from assay and torch, and noise made here stands for
`torchvision.datasets.FakeData`.
"""

import torch
import torch.nn as nn

from assay import Meter, Params
from assay.compat.thexp import Trainer


class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(28 * 28, 10)

    def forward(self, x):
        x = x.view(x.shape[0], -1)
        x = self.fc(x)
        return x


class FakeData(torch.utils.data.Dataset):
    """As many images of noise as there, in grey."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(1, 28, 28, generator=draw), int(torch.randint(10, (1,), generator=draw))


class MyTrainer(Trainer):
    def initial_trainer(self, params: Params):
        from torch.optim import SGD
        from torch.utils.data import DataLoader

        self.model = MyModel()
        self.optim = SGD(self.model.parameters(), lr=params.lr)
        dataset = FakeData()
        train_loader = eval_loader = test_loader = DataLoader(
            dataset, shuffle=True, batch_size=32, drop_last=True
        )

        self.regist_databundler(
            train=train_loader,
            test=test_loader,
            eval=eval_loader,
        )
        self.cross = nn.CrossEntropyLoss()

    def train_batch(self, eidx, idx, global_step, batch_data, params, device):
        optim, cross = self.optim, self.cross
        meter = Meter()
        xs, ys = batch_data

        logits = self.model(xs)
        meter.loss = cross(logits, ys)

        meter.loss.backward()
        optim.step()
        optim.zero_grad()

        return meter


params = Params()
params.lr = 0.01
params.build_exp_name("mytrainer", "lr")

trainer = MyTrainer(params)
trainer.initial_exp("./experiment")

trainer.train()
