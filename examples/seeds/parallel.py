"""Training on several processes: the ten steps of the text are one option.

Other than in the text of 2021: no process group, no sampler, no `set_epoch`, no batch size divided
by hand, and no model wrapped: `make_data_parallel` there forgets to give its model back. `python
parallel.py 1` trains on one process.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import assay

CONFIG = """\
[model]
type = "parallel.Model"

[data.train]
source = { type = "parallel.Squares" }
batch_size = 16
shuffle = true
[data.valid]
source = { type = "parallel.Squares" }
batch_size = 8

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.MSELoss" }

[optimizer]
type = "torch.optim.SGD"
lr = 0.1

[train]
epochs = 3
"""


class Squares:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([i / 64], dtype=torch.float64)
        return x, x * x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def main(processes: int) -> None:
    Path("parallel.toml").write_text(f"{CONFIG}[parallel]\ndata = {processes}\n", encoding="utf-8")
    result = assay.run("parallel.toml", user_dir=Path(__file__).parent)
    print("status", result.status, "loss", round(result.value["valid/loss"], 10))
    for name, value in assay.load_model(result.id, "latest").state_dict().items():
        print(name, [round(number, 10) for number in value.flatten().tolist()])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
