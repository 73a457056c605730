"""The state of the random generators taken and put back: both rounds print the same parameters.

From thexp, "随机种子管理". Changed: the import.
"""

import torch
from torch import nn
from torch.optim import SGD

from assay.engine import get_state, set_state

stt = get_state()
for _ in range(2):
    data = torch.rand(5, 2)
    y = torch.tensor([0, 0, 0, 0, 0])
    model = nn.Linear(2, 2)

    sgd = SGD(model.parameters(), lr=0.01)
    logits = model(data)
    loss = nn.CrossEntropyLoss()(logits, y)
    loss.backward()
    sgd.step()
    sgd.zero_grad()

    print(list(model.parameters()))
    set_state(stt)
