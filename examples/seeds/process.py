"""What the README of flame shows of a process, trained by an engine and by the two loops that stand
below it there.

Other than there: `criterion` is `self.criterion` and asked for by its name, since it is a module as
the model is; tensors are moved by the engine and not by `.cuda`; `eval` is there, which the second
loop calls. The calls are noted.
"""

import torch

from assay.build import Context, inject, provides
from assay.engine import Engine, evaluate
from assay.engine.loop.names import Model, Optimizer

CALLS = []


class SupervisedProcess:
    @inject
    def __init__(self, model: Model, criterion, optimizer: Optimizer):
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer

    def training_step(self, batch):
        CALLS.append("training_step")
        loss, output = self.forward_step(batch)
        loss.backward()

        return output

    def validation_step(self, batch):
        CALLS.append("validation_step")
        with torch.no_grad():
            _loss, output = self.forward_step(batch)

        return output

    def forward_step(self, batch):
        image, label = batch

        pred = self.model(image)

        loss = self.criterion(pred, label)

        output = {
            "pred": pred,
            "label": label,
            "loss": loss,
        }

        return loss, output

    def update(self):
        CALLS.append("update")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, mode=True):
        CALLS.append(f"train({mode})")
        self.model.train(mode=mode)

    def eval(self):
        self.train(False)


class Parts:
    @provides
    def model(self) -> Model:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))

    @provides
    def optimizer(self, model: Model) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def made():
    context = Context(Parts)
    context.set("criterion", torch.nn.CrossEntropyLoss())
    return context.get(SupervisedProcess)


def images(count):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.rand(8, 4, 4, generator=draw), torch.randint(3, (8,), generator=draw))
        for _ in range(count)
    ]


def by_hand(supervised_process, dataloader):
    supervised_process.train()
    for batch in dataloader:
        supervised_process.training_step(batch)
        supervised_process.update()


def main():
    dataloader = images(4)
    by_engine, by_loop = made(), made()
    by_hand(by_loop, dataloader)
    listed, CALLS[:] = list(CALLS), []
    engine = Engine(by_engine, dataloader, epochs=1)
    engine.run()
    print(*CALLS)
    print("the calls are those of the loop:", listed == CALLS)
    pairs = zip(by_engine.model.parameters(), by_loop.model.parameters(), strict=True)
    print(
        "the weights are those of the loop:", all(torch.equal(one, other) for one, other in pairs)
    )

    CALLS.clear()
    by_loop.eval()
    outputs = [by_loop.validation_step(batch) for batch in dataloader]
    listed, CALLS[:] = list(CALLS), []
    results, samples = evaluate(engine.process, dataloader, split="valid")
    print(*CALLS)
    print("the calls are those of the loop:", listed == CALLS)
    mean = sum(output["loss"].item() for output in outputs) / len(outputs)
    print("the loss is that of the loop:", abs(results["valid/loss"] - mean) < 1e-6, samples)


if __name__ == "__main__":
    main()
