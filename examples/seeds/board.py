"""Curves, images and histograms for TensorBoard while a loop trains, as the text of 2021 shows it.

Other than there: the imports, a run with a board in place of a writer of tensorboardX, a small net
and data of noise; `Tensor.eq` counts what `accuracy_score` does; lines are drawn after every 10th
step, so that it is over at once.
"""

import torch
from torch import nn

import assay

torch.manual_seed(0)
MyConvNet = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))
test_data_x, test_data_y = torch.rand(100, 1, 28, 28), torch.randint(10, (100,))
train_loader = [(torch.rand(128, 1, 28, 28), torch.randint(10, (128,))) for _ in range(8)]

run = assay.start(tag="board")
logger = assay.TensorBoard()
run.attach(logger)

optimizer = torch.optim.Adam(MyConvNet.parameters(), lr=3e-4)
loss_func = nn.CrossEntropyLoss()
log_step_interval = 10

for epoch in range(5):
    print("epoch:", epoch)
    for step, (x, y) in enumerate(train_loader):
        predict = MyConvNet(x)
        loss = loss_func(predict, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_iter_num = epoch * len(train_loader) + step + 1
        if global_iter_num % log_step_interval == 0:
            print("global_step:{}, loss:{:.2}".format(global_iter_num, loss.item()))  # noqa: UP032
            test_predict = MyConvNet(test_data_x)
            _, predict_idx = torch.max(test_predict, 1)
            acc = predict_idx.eq(test_data_y).float().mean()
            run.log({"train loss": loss.item(), "test accuary": acc.item()}, global_iter_num)
            logger.images("train image sample", x, global_iter_num, per_row=12)
            for name, param in MyConvNet.named_parameters():
                logger.histogram(name, param, global_iter_num)

run.finish()
