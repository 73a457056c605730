"""The training loop by hand: the body is yours, and the run around it is kept as any other."""

import sys

import torch
from torch import nn

import assay
from assay.engine import Accuracy, ByHand, Engine, Evaluate, Loader, Save, Saver, seed_all


def spiral(seed, size=600):
    """Two arms of a spiral, and of which of them each point is."""
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(2, (size,), generator=draw)
    turn = torch.rand(size, generator=draw) * 9
    angle = turn + arm * torch.pi
    xy = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 9
    return torch.utils.data.TensorDataset(xy + 0.02 * torch.randn(size, 2, generator=draw), arm)


def main(folder="checkpoints"):
    torch.set_num_threads(1)  # for a model as small as this one more would wait for each other
    seed_all(0)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saver = Saver(folder)

    with assay.start(tag="hand-loop", config={"lr": 0.01}) as run:
        process = ByHand(model, optimizer, metrics={"acc": Accuracy()})
        engine = Engine(
            process, Loader(spiral(1), batch_size=50, shuffle=True), epochs=20, recorder=run
        )
        engine.bus.extend(
            Evaluate({"valid": Loader(spiral(2), batch_size=600)}, every="5 epochs").handlers()
        )
        engine.bus.extend(Save(saver, every="5 epochs").handlers())
        if engine.resume(saver):
            print("resumed from step", engine.state.step)

        for xy, arm in engine:
            # Points near the middle are hard to tell apart, and count less: whatever the loss, it
            # is written here.
            weight = xy.norm(dim=1)
            losses = nn.functional.cross_entropy(model(xy), arm, reduction="none")
            loss = (weight * losses).sum() / weight.sum()

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            engine.log("loss", loss)
            engine.log("unweighted", losses.mean())

    print(f"step {engine.state.step}: valid/acc {engine.state.metrics['valid/acc']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
