"""Cost of a training step in other frameworks, in assay and by hand, in one process.

Each trains the same small network (32-64-10, batches of 32, SGD) on the same list of batches, on
one thread:

    bare       Nothing but training: no log, no bar, no checkpoint, no clipping; each framework is
               told so.
    working    Each framework's own way to clip the gradient at every step, to keep the loss of
               every step (a CSV file, its history, or a list), and to show a bar on a terminal
               that swallows it.

They take turns, round after round. Counted is what a thousand more steps cost, so that starting and
ending does not: the CPU time of the thread for a long run less that of a short one. The figure is
the median over the rounds of the ratio to the bare loop by hand in the same round. All must end
with the weights of the hand loop, else nothing is compared.

Made for an environment of its own, since the others bend the versions of ours:

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install torch
    .venv-peers/bin/pip install --no-deps --require-hashes -r requirements/core.txt
    .venv-peers/bin/pip install --no-deps -e .
    .venv-peers/bin/pip install -r requirements/peers.txt
    .venv-peers/bin/python benchmarks/peers.py
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TERM"] = "xterm-256color"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import contextlib
import importlib.metadata
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from figures import Figure, machine, options, show
from loops import Batches, Terminal, batches_of, network, recorded_in, settle
from torch import Tensor, nn
from torch.optim import SGD

from assay.engine import Display, Engine, OptimizerStep, Supervised
from assay.record.recorder import RunRecorder

BITES = 1e-3
Train = Callable[[nn.Module, SGD, Batches], object]


class Listed:
    """Batches that are not taken for a list of loaders."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


# ----------------------------------------------------------------------------------------------------------------- bare


def hand(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    criterion = nn.CrossEntropyLoss()
    for inputs, target in batches:
        loss = criterion(model(inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def assay(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    Engine(Supervised(model, nn.CrossEntropyLoss(), optimizer), batches).run()


def fabric(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    criterion = nn.CrossEntropyLoss()
    wrapped, steps = fabric.setup(model, optimizer)
    for inputs, target in batches:
        loss = criterion(wrapped(inputs), target)
        fabric.backward(loss)
        steps.step()
        steps.zero_grad()


def accelerate(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    criterion = nn.CrossEntropyLoss()
    wrapped, steps = accelerator.prepare(model, optimizer)
    for inputs, target in batches:
        with accelerator.accumulate(wrapped):
            loss = criterion(wrapped(inputs), target)
            accelerator.backward(loss)
            steps.step()
            steps.zero_grad()


def ignite(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from ignite.engine import create_supervised_trainer

    create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss()).run(batches, max_epochs=1)


def lightning(model: nn.Module, optimizer: SGD, batches: Batches, **more: Any) -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, nn.CrossEntropyLoss()

        def training_step(self, batch: Any, index: int) -> Tensor:
            inputs, target = batch
            loss: Tensor = self.criterion(self.model(inputs), target)
            if more:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> SGD:
            return optimizer

    silent = {"logger": False, "enable_progress_bar": False} if not more else {}
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        enable_checkpointing=False,
        enable_model_summary=False,
        **silent,
        **more,
    )
    trainer.fit(Module(), Listed(batches))


def hf_trainer(model: nn.Module, optimizer: SGD, batches: Batches, **more: Any) -> None:
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, nn.CrossEntropyLoss()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": self.criterion(self.model(inputs), labels)}

    class Given(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return Listed([{"inputs": inputs, "labels": target} for inputs, target in batches])

    settings = {"max_grad_norm": 0.0, "logging_strategy": "no", "disable_tqdm": True} | more
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=len(batches),
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            **settings,
        )
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        Given(
            Net(), arguments, train_dataset=[0] * len(batches), optimizers=(optimizer, constant)
        ).train()


# -------------------------------------------------------------------------------------------------------------- working


def hand_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from tqdm import tqdm

    criterion, losses = nn.CrossEntropyLoss(), []
    for inputs, target in tqdm(batches, file=Terminal()):
        loss = criterion(model(inputs), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), BITES)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())


def assay_working(
    model: nn.Module, optimizer: SGD, batches: Batches, recorder: RunRecorder
) -> None:
    process = Supervised(
        model, nn.CrossEntropyLoss(), backward=OptimizerStep(optimizer, clip_norm=BITES)
    )
    display = Display(logger=logging.getLogger("benchmark"), stream=Terminal())
    Engine(process, batches, recorder=recorder, handlers=display.handlers()).run()


def fabric_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from lightning.fabric import Fabric
    from tqdm import tqdm

    fabric = Fabric(accelerator="cpu", devices=1)
    criterion, losses = nn.CrossEntropyLoss(), []
    wrapped, steps = fabric.setup(model, optimizer)
    for inputs, target in tqdm(batches, file=Terminal()):
        loss = criterion(wrapped(inputs), target)
        fabric.backward(loss)
        fabric.clip_gradients(wrapped, steps, max_norm=BITES)
        steps.step()
        steps.zero_grad()
        losses.append(loss.item())


def accelerate_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from accelerate import Accelerator
    from tqdm import tqdm

    accelerator = Accelerator(cpu=True)
    criterion, losses = nn.CrossEntropyLoss(), []
    wrapped, steps = accelerator.prepare(model, optimizer)
    for inputs, target in tqdm(batches, file=Terminal()):
        with accelerator.accumulate(wrapped):
            loss = criterion(wrapped(inputs), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(wrapped.parameters(), BITES)
            steps.step()
            steps.zero_grad()
            losses.append(loss.item())


def ignite_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from ignite.engine import Engine as Ignite
    from ignite.engine import Events
    from ignite.handlers.tqdm_logger import ProgressBar

    criterion, losses = nn.CrossEntropyLoss(), []

    def update(engine: Ignite, batch: Any) -> float:
        inputs, target = batch
        loss = criterion(model(inputs), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), BITES)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    trainer = Ignite(update)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    ProgressBar(file=Terminal()).attach(trainer)
    trainer.run(batches, max_epochs=1)


def lightning_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    from lightning.pytorch.loggers import CSVLogger

    with tempfile.TemporaryDirectory() as folder:
        lightning(
            model,
            optimizer,
            batches,
            gradient_clip_val=BITES,
            logger=CSVLogger(folder, flush_logs_every_n_steps=100),
            log_every_n_steps=1,
        )


def hf_trainer_working(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
    settings = {
        "max_grad_norm": BITES,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": False,
    }
    hf_trainer(model, optimizer, batches, **settings)


BARE: dict[str, Train] = {
    "hand": hand,
    "assay": assay,
    "fabric": fabric,
    "ignite": ignite,
    "accelerate": accelerate,
    "lightning": lightning,
    "hf_trainer": hf_trainer,
}
WORKING: dict[str, Train] = {
    "hand": hand_working,
    "fabric": fabric_working,
    "ignite": ignite_working,
    "accelerate": accelerate_working,
    "lightning": lightning_working,
    "hf_trainer": hf_trainer_working,
}


# ------------------------------------------------------------------------------------------------------------ measuring


def measured(short: Batches, long: Batches, rounds: int, recorder: RunRecorder) -> Iterator[Figure]:
    def with_record(model: nn.Module, optimizer: SGD, batches: Batches) -> None:
        assay_working(model, optimizer, batches, recorder)

    sides = {f"bare.{name}": train for name, train in BARE.items()}
    sides |= {f"working.{name}": train for name, train in {**WORKING, "assay": with_record}.items()}
    took: dict[str, list[float]] = {name: [] for name in sides}
    weights: dict[str, list[Tensor]] = {}
    for i in range(-1, rounds):
        order = list(sides.items())
        for name, train in order if i % 2 else order[::-1]:
            seconds = []
            for batches in (short, long):
                model, optimizer = network()
                with silence():
                    begun = thread_time()
                    train(model, optimizer, batches)
                    seconds.append(thread_time() - begun)
            weights[name] = [parameter.detach() for parameter in model.parameters()]
            if i >= 0:
                took[name].append((seconds[1] - seconds[0]) / (len(long) - len(short)))
    check(weights)
    raw = took["bare.hand"]
    for name, seconds in took.items():
        yield Figure(name=f"peers.{name}.us", value=median(seconds) * 1e6, unit="us")
        ratio = median(mine / theirs for mine, theirs in zip(seconds, raw, strict=True))
        yield Figure(name=f"peers.{name}.ratio", value=ratio)


def check(weights: dict[str, list[Tensor]]) -> None:
    for name, mine in weights.items():
        hands = weights[f"{name.partition('.')[0]}.hand"]
        if not all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(mine, hands, strict=True)
        ):
            raise SystemExit(
                f"error: {name} did not train to the weights of the hand loop: nothing was compared"
            )


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(Terminal()),
        contextlib.redirect_stderr(Terminal()),
    ):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    asked = options("What a training step costs in other frameworks.")
    settle()
    for name in ("lightning.pytorch", "lightning.fabric", "ignite", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    few, many, rounds = (20, 60, 1) if asked.quick else (200, 1200, 7)
    batches = batches_of(many)
    packages = ("lightning", "accelerate", "transformers", "pytorch-ignite")
    where = machine() | {name: importlib.metadata.version(name) for name in packages}
    with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
        figures = list(measured(batches[:few], batches, rounds, recorder))
    show("peers: one training step", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
