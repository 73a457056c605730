"""Curves and a weight that are seen while a loop trains, as the text of 2021 shows it with
HiddenLayer.

Other than there: the imports, a run in place of a history and a canvas; `assay live last --image
hidden_weight`, in another terminal, draws. A small net, data of noise, and lines after every 10th
step, so that it is over at once.
"""

import torch
from torch import nn

import assay

torch.manual_seed(0)
MyConvNet = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 16), nn.Linear(16, 10)
)
test_data_x, test_data_y = torch.rand(100, 1, 28, 28), torch.randint(10, (100,))
train_loader = [(torch.rand(128, 1, 28, 28), torch.randint(10, (128,))) for _ in range(8)]

run = assay.start(tag="history")

optimizer = torch.optim.Adam(MyConvNet.parameters(), lr=3e-4)
loss_func = nn.CrossEntropyLoss()
log_step_interval = 10

for epoch in range(5):
    for step, (x, y) in enumerate(train_loader):
        predict = MyConvNet(x)
        loss = loss_func(predict, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_iter_num = epoch * len(train_loader) + step + 1
        if global_iter_num % log_step_interval == 0:
            test_predict = MyConvNet(test_data_x)
            _, predict_idx = torch.max(test_predict, 1)
            acc = predict_idx.eq(test_data_y).float().mean()
            values = {"epoch": epoch, "train_loss": loss.item(), "test_acc": acc.item()}
            run.log(values, global_iter_num)
            run.image("hidden_weight", MyConvNet[4].weight, global_iter_num, stretch=True)

run.finish()
