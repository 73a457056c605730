"""One dictionary that holds all, named by time and loss, and back into a model and its optimizer.

From a tutorial on training in PyTorch, "结果保存与加载". Changed: the test of an undefined name is an
error for a path that is None; the file, a pickle, is a folder; an old `.pth.tar` is read where that
is allowed.
"""

import torch
from torch import nn

from assay.engine import Saver, load_checkpoint

model = nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
state = {"state_dict": model.state_dict(), "best_loss": 0.25, "optimizer": optimizer.state_dict()}

saver = Saver("./checkpoints", name="m-{time}-{loss:.4f}")
manifest = saver.save_checkpoint(
    7, {"epoch": 7, **state, "alpha": 0.25, "gamma": 2.0}, {"loss": 0.25}
)
torch.save({"epoch": 7, **state, "alpha": 0.25, "gamma": 2.0}, "m-old-0.2500.pth.tar")

for path, pickled in ((f"./checkpoints/{manifest.name}", False), ("m-old-0.2500.pth.tar", True)):
    other = nn.Linear(3, 2)
    again = torch.optim.Adam(other.parameters())
    loaded = load_checkpoint(other, path, again, pickled=pickled)
    same = all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    steps = {float(each["step"]) for each in again.state_dict()["state"].values()}
    print(same, steps, dict(loaded.rest))
