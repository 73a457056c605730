"""Train the model of the LiBai tutorial, which computes its own loss, and look at what it gives in
both modes."""

import torch

from assay.build import instantiate
from assay.config import get_config
from assay.engine import Accuracy, Engine, Evaluate, OwnLoss

config = get_config("config.py")
torch.manual_seed(0)
model = instantiate(config.model)
train, test = instantiate(config.dataloader.train), instantiate(config.dataloader.test[0])
batch = next(iter(train))

found = model(**batch)
print("train:", {name: tuple(value.shape) for name, value in found.items()})
found = model.eval()(**batch)
print("eval:", {name: tuple(value.shape) for name, value in found.items()})

process = OwnLoss(
    model, torch.optim.SGD(model.parameters(), lr=0.05), metrics={"Acc@1": Accuracy()}
)
engine = Engine(process, train, epochs=2, handlers=Evaluate({"test": test}).handlers())
engine.run()
print(engine.state.step, "steps,", sorted(engine.state.metrics))
