"""A whole training in plain Python: no config file, no registered name, nothing injected."""

import torch
from torch import nn

import assay
from assay.engine import Accuracy, Engine, Evaluate, Loader, Supervised, seed_all


def points(seed):
    """Points of a square; the class says on which side of a circle each lies."""
    xy = torch.rand(1000, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.utils.data.TensorDataset(xy, (xy.norm(dim=1) < 0.8).long())


def main():
    seed_all(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    process = Supervised(model, nn.CrossEntropyLoss(), optimizer, metrics={"acc": Accuracy()})
    with assay.start(tag="by-hand", config={"lr": 0.02}) as run:
        train = Loader(points(1), batch_size=50, shuffle=True)
        engine = Engine(process, train, epochs=8, recorder=run)
        engine.bus.extend(Evaluate({"valid": Loader(points(2), batch_size=500)}).handlers())
        state = engine.run()
    print(f"step {state.step}: valid/acc {state.metrics['valid/acc']:.3f}")


if __name__ == "__main__":
    main()
