"""The training that the text of 2021 shows, and its four schedules, beside the same by an engine.

Other than there: the device is "cpu", which stands as "cude" there; model, data and criterion are
small ones; the learning rates that it lists in comments are each tried.
"""

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from assay.engine import ByHand, Engine, OptimizerStep, Supervised

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
epoch = 3
criterion = nn.CrossEntropyLoss()
draw = torch.Generator().manual_seed(0)
train_loader = [
    (torch.rand(8, 4, generator=draw), torch.randint(2, (8,), generator=draw)) for _ in range(5)
]


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model.to(device)
    return model, optim.SGD(params=model.parameters(), lr=0.1)


def as_there():
    model, optimizer = made()
    for t in range(epoch):
        for step, (x, y) in enumerate(train_loader):
            x, y = x.to(device), y.to(device)
            # Forward pass: Compute predicted y by passing x to the model
            y_pred = model(x)

            # Compute and print loss
            loss = criterion(y_pred, y)

            # Zero gradients, perform a backward pass, and update the weights.
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def by_hand():
    model, optimizer = made()
    engine = Engine(ByHand(model, optimizer), train_loader, epochs=epoch, device=device)
    for x, y in engine:
        y_pred = model(x)
        loss = criterion(y_pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def by_engine():
    model, optimizer = made()
    Engine(Supervised(model, criterion, optimizer), train_loader, epochs=epoch, device=device).run()
    return model


SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(
        optimizer, milestones=[10, 30, 80], gamma=0.1
    ),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=100, eta_min=0
    ),
}


def of_torch(schedule, epochs=100):
    _, optimizer = made()
    scheduler = schedule(optimizer)
    rates = []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def of_engine(schedule, epochs=100):
    model, optimizer = made()
    process = Supervised(
        model, criterion, backward=OptimizerStep(optimizer, schedule=schedule(optimizer))
    )
    engine, rates = Engine(process, train_loader[:1], epochs=epochs, device=device), []
    engine.on("step_begin")(lambda: rates.append(optimizer.param_groups[0]["lr"]))
    engine.run()
    return rates


def main():
    there = as_there()
    for name, other in {"by hand": by_hand(), "by an engine": by_engine()}.items():
        pairs = zip(there.parameters(), other.parameters(), strict=True)
        print(f"{name}: {all(torch.equal(one, other) for one, other in pairs)}")
    for name, schedule in SCHEDULES.items():
        print(f"{name}: {of_torch(schedule) == of_engine(schedule)}")


if __name__ == "__main__":
    main()
