"""What the tests of a pipeline do in each process: `python pipeline_cases.py FOLDER RANK RANKS`.

Each case gives something that JSON knows; in one process, without a group, it is what the pipeline
has to equal.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.errors import AssayError
from assay.core.events import Event, Handler
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    EMA,
    Accuracy,
    Engine,
    Evaluate,
    Loader,
    Norms,
    OptimizerStep,
    Probe,
    Process,
)
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.folder import load_parts as load_folder
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.tensor_file import read_tensors
from assay.engine.data.instance import DistTensorData, Instance
from assay.engine.loop.engine_state import capture_state, own_parts, restore, share_of
from assay.engine.metrics.outputs import Collect
from assay.engine.numerics.structures import tensors_in
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.distributed_group import CheckpointGroup
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.pipeline_stages import merge_states, to_host
from assay.engine.parallel.process_group import init_mesh

WIDTH = 6
PIPELINE = Layout(pipeline=2)
INTERLEAVED = Layout(pipeline=2, schedule="interleaved")


def points(size: int = 34) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, torch.stack([inputs.sum(1), inputs.square().sum(1)], 1))


class Placed:
    """Points whose targets only the last stage needs."""

    randomness = "none"

    def __init__(self) -> None:
        self.points = points()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> Instance:
        x, y = self.points[i]
        return Instance(x=x, y=DistTensorData(y, placement_idx=-1))


class Deep(nn.Module):
    """A way in, blocks, a way out that uses a weight of the way in as well."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward = nn.Linear(4, WIDTH)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout))
                for _ in range(3)
            )
        )
        self.outward = nn.Linear(4, 2)
        self.double()

    def pipeline_split(self) -> list[Any]:
        return [self.inward, self.blocks, (self.out, "inward.weight", "outward")]

    def out(self, x: Tensor) -> Tensor:
        found: Tensor = self.outward(x @ self.inward.weight)
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.inward(x)))


class Means(Process):
    """The mean loss over the batch."""

    def __init__(self, model: nn.Module, **how: Any) -> None:
        self.model = model
        self.metrics: dict[str, Any] = {}
        self.backward = OptimizerStep(torch.optim.AdamW(model.parameters(), lr=1e-2), **how)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        losses = (pred - target).square().mean(1)
        self.log("mean_input", inputs.mean())
        return self.loss(losses, inputs), {
            "pred": pred.detach(),
            "target": target,
            "loss": losses.mean().detach(),
        }

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return losses.mean()


class Sums(Means):
    """Samples count as much as their input says: micro-batches weigh unevenly."""

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        weights = inputs[:, 0].abs() + 0.1
        return (losses * weights).sum(), weights.sum()


class Named(Means):
    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        return {"plain": losses.mean(), "squared": losses.square().mean()}


class Spoilt(Means):
    """Process whose second step has an infinite gradient, of one weight on one stage."""

    def __init__(self, model: Any, **how: Any) -> None:
        super().__init__(model, **how)
        self.passes = 0
        if model.inward.bias is not None:
            model.inward.bias.register_hook(self.spoil)

    def spoil(self, grad: Tensor) -> Tensor:
        self.passes += 1
        return grad * (math.inf if self.passes == 6 else 1.0)


class Centre(nn.Module):
    """Criterion with a state: the running mean of the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, losses: Tensor) -> Tensor:
        self.mean.lerp_(losses.mean().detach(), 0.1)
        return losses.mean() * (1 + self.mean)


class Taught(Means):
    """A teacher with the names of the model's weights, which losses change and depend on."""

    def __init__(self, model: nn.Module, **how: Any) -> None:
        super().__init__(model, **how)
        self.teacher = Deep().requires_grad_(False)
        self.criterion = Centre()

    def loss(self, losses: Tensor, inputs: Tensor) -> Any:
        for weight in self.teacher.parameters():
            weight.mul_(0.9)
        return self.criterion(losses) + self.teacher(inputs).abs().mean() * losses.mean()


class Scaled(Spoilt):
    """`Spoilt` with a loss scale: all stages skip the update and lower the scale; no error."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.backward = ScaledOptimizerStep(
            torch.optim.AdamW(model.parameters(), lr=1e-2), clip_norm=0.3
        )


class Mixed(Means):
    """Trains on a mixture that is drawn for each micro-batch."""

    @staticmethod
    def batch_hook(batch: Any) -> Any:
        share = torch.rand(())
        return [share * each + (1 - share) * each.flip(0) for each in batch]


class Twice(Means):
    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        self.model(batch[0])
        return super().forward_step(batch)


class ByField(Means):
    """Tells which fields it has seen the data of."""

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        self.seen = {name for name in ("x", "y") if not batch[name].is_meta}
        loss = (self.model(batch.x) - batch.y).square().mean()
        return loss, {"loss": loss.detach()}


def train(
    kind: type[Means] = Means,
    *,
    layout: Layout = PIPELINE,
    dropout: float = 0.0,
    data: Any = None,
    steps: int | None = None,
    resumed: Any = None,
    parts: Sequence[Any] = (),
    **how: Any,
) -> tuple[Engine, dict[str, Any]]:
    """Train, and return the engine with its state; `resumed` is a state to resume from."""
    model = Deep(dropout)
    mesh = init_mesh(layout, torch.device("cpu")) if dist.is_initialized() else None
    if mesh is not None:
        partition_model(model, mesh)
    process = kind(model, **how)
    loader = Loader(
        data if data is not None else points(), batch_size=12, shuffle=True, accumulate=4
    )
    handlers = [handler for part in parts for handler in part.handlers()]
    engine = Engine(
        process, loader, recorder=MemoryRecorder(), epochs=2, steps=steps, handlers=handlers
    )
    if mesh is not None:
        join_data_parallel(engine, mesh.ranks)
        assert mesh.pipeline is not None
        mesh.pipeline.join(engine)
    if resumed is not None:
        restore(engine, resumed)
    engine.run()
    return engine, whole_state(engine)


def whole_state(engine: Engine) -> dict[str, Any]:
    """Return the state of all stages in memory, on the first rank; of this one elsewhere."""
    pipeline: Any = engine.pipeline
    parts = own_parts(engine)
    if pipeline is None:
        return parts
    states = pipeline.ranks.gather_pipeline(to_host(parts))
    order = {name: i for i, name in enumerate(pipeline.order)}
    found: dict[str, Any] = merge_states(states, order) if states else parts
    return found


def numbers(found: tuple[Engine, dict[str, Any]]) -> dict[str, Any]:
    engine, parts = found
    recorder: Any = engine.recorder
    state = parts["optimizer"]["state"]
    return {
        "weights": {name: value.flatten().tolist() for name, value in parts["model"].items()},
        "moments": {name: each["exp_avg"].flatten().tolist() for name, each in state.items()},
        "groups": [group["params"] for group in parts["optimizer"]["groups"]],
        "points": [[name, step, value] for name, step, value in recorder.points],
        "counts": [
            engine.state.step,
            engine.state.samples,
            engine.state.epoch,
            engine.state.micro_step,
        ],
    }


def tied() -> Any:
    return numbers(train(clip_norm=0.3))


def interleaved() -> Any:
    return numbers(train(layout=INTERLEAVED, clip_norm=0.3))


def sums() -> Any:
    return numbers(train(Sums, clip_norm=0.3))


def named() -> Any:
    return numbers(train(Named, weights={"squared": 0.5}))


def mixed() -> Any:
    return numbers(train(Mixed))


def skipped() -> Any:
    found = train(Spoilt, non_finite="skip")
    backward: Any = found[0].process.backward
    return {**numbers(found), "skipped": backward.skipped}


def scaled() -> Any:
    found = train(Scaled)
    return {**numbers(found), "scaler": found[1]["scaler"]}


def watched() -> Any:
    """Return norms, probes and averaged weights of all stages, also of a weight shared by two."""
    seen = train(
        clip_norm=0.3,
        parts=(EMA(0.5), Norms("2 steps"), Probe(["blocks.*.0", "outward"], [1, 3], inputs=True)),
    )
    recorder: Any = seen[0].recorder
    kept = {name: load(data) for name, data in recorder.artifacts.items()}
    average = seen[1]["EMA"]["weights"]
    return {
        **numbers(seen),
        "kept": {
            name: {at: one.flatten().tolist() for at, one in found.items()}
            for name, found in kept.items()
        },
        "average": {name: value.flatten().tolist() for name, value in average.items()},
        "warned": [fact.message for fact in recorder.facts if isinstance(fact, Warned)],
    }


def spoilt() -> Any:
    return told(lambda: train(Spoilt))


def twice() -> Any:
    """The last of all: who has the last stage fails alone, and is waited for."""
    return told(lambda: train(Twice))


def told(run: Callable[[], Any]) -> str:
    try:
        run()
    except AssayError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def placed() -> Any:
    """Which fields each process has, and that it is the same training."""
    found = train(ByField, data=Placed())
    return {**numbers(found), "seen": sorted(getattr(found[0].process, "seen", ()))}


def resumed() -> Any:
    """The bits of a training with dropout, in one go and gone on with after three steps."""
    whole = numbers(train(dropout=0.4))
    _, parts = train(dropout=0.4, steps=3)
    box = [parts]
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=0)
    gone_on = numbers(train(dropout=0.4, resumed=box[0]))
    return {"whole": whole["weights"], "gone on": gone_on["weights"], "moments": gone_on["moments"]}


def from_one() -> Any:
    """A training that began in one process and goes on as it is asked to."""
    group, box = dist.is_initialized(), [None]
    if not group or dist.get_rank() == 0:
        model = Deep()
        engine = Engine(
            Means(model), Loader(points(), batch_size=12, shuffle=True, accumulate=4), steps=3
        )
        engine.run()
        box = [own_parts(engine)]  # type: ignore[list-item]
    if group:
        dist.broadcast_object_list(box, src=0)
    return numbers(train(resumed=box[0]))


class Logbook:
    """Listener with a state of its own, of no weights, on each stage another."""

    def __init__(self) -> None:
        self.seen = torch.zeros(3)

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.STEP_END, fn=self.note)]

    def note(self) -> None:
        self.seen += 1 + (dist.get_rank() if dist.is_initialized() else 0)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen.clone()}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


def saved() -> Any:
    """What is sent to the first rank for a checkpoint, what each writes, and what each reads."""
    rank = dist.get_rank()
    engine, parts = train(dropout=0.4, steps=3, parts=(EMA(0.5), Logbook()))
    folder = Path(sys.argv[1]) / "checkpoints"
    saver = Saver(folder, writers=CheckpointGroup())
    pipeline: Any = engine.pipeline
    gather, sent = pipeline.ranks.gather_pipeline, []

    def gather_counted(value: Any) -> Any:
        sent.append(len(list(tensors_in(value))))
        return gather(value)

    pipeline.ranks.gather_pipeline = gather_counted
    saver.save(capture_state(engine), Where(step=3))
    own = saver.load(share=share_of(engine))
    whole = load_folder(folder / "step-000000003")
    box = [parts if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    gone_on, _ = train(dropout=0.4, parts=(EMA(0.5), Logbook()), resumed=own)
    uncut, _ = train(dropout=0.4, parts=(EMA(0.5), Logbook()))
    return {
        "sent": sent,
        "is whole": digest_state(whole) == digest_state(box[0]),
        "read": sorted({name for part in ("model", "EMA") for name in weights_in(own[part])}),
        "own": sorted(dict(engine.process.model.named_parameters())),
        "written": sorted(
            name
            for file in folder.glob(f"step-000000003/model{'-rank1' if rank else ''}.s*")
            for name in read_tensors(file)
        ),
        "goes on": digest_state(own_parts(gone_on)["model"])
        == digest_state(own_parts(uncut)["model"]),
        "steps": [gone_on.state.step, uncut.state.step],
        "logbook": whole["Logbook"]["seen"].tolist(),
    }


def taught() -> Any:
    """The bits of a training with a teacher, in one go and gone on with from its files."""
    engine, _ = train(Taught, steps=3)
    folder = Path(sys.argv[1]) / "taught"
    saver = Saver(folder, writers=CheckpointGroup())
    saver.save(capture_state(engine), Where(step=3))
    gone_on, _ = train(Taught, resumed=saver.load(share=share_of(engine)))
    uncut, _ = train(Taught)
    return {
        "process": [digest_state(own_parts(each)["frozen"]) for each in (gone_on, uncut)],
        "criterion": [own_parts(each)["criterion"]["mean"].item() for each in (gone_on, uncut)],
        "model": [digest_state(own_parts(each)["model"]) for each in (gone_on, uncut)],
        "points": uncut.recorder.points,  # type: ignore[attr-defined]
    }


def taught_alone() -> Any:
    return numbers(train(Taught))["points"]


def weights_in(state: Any) -> list[str]:
    table = state.get("weights", state)
    return [name for name in table if isinstance(table[name], Tensor)]


class Classes(Means):
    """Scores of two classes; `acc` counts the right ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.metrics = {"acc": Accuracy()}

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        self.log("mean", pred.mean())
        loss = nn.functional.cross_entropy(pred, target)
        return loss, {"pred": pred.detach(), "target": target, "loss": loss.detach()}


def classes(size: int) -> TensorDataset:
    inputs, _ = points(size).tensors
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def evaluated() -> Any:
    model = Deep()
    mesh = init_mesh(INTERLEAVED, torch.device("cpu")) if dist.is_initialized() else None
    if mesh is not None:
        partition_model(model, mesh)
    engine = Engine(
        Classes(model), Loader(classes(12), batch_size=12, accumulate=2), recorder=MemoryRecorder()
    )
    collect = Collect()
    valid = Loader(classes(21), micro_batch_size=8, split="valid")
    engine.bus.extend(Evaluate({"valid": valid}, pipes=[collect]).handlers())
    if mesh is not None:
        join_data_parallel(engine, mesh.ranks)
        assert mesh.pipeline is not None
        mesh.pipeline.join(engine)
    engine.run()
    recorder: Any = engine.recorder
    return {
        "metrics": engine.state.metrics,
        "samples": [fact.samples for fact in recorder.facts if hasattr(fact, "samples")],
        "collected": collect["pred"].flatten().tolist(),
    }


SAME: tuple[Callable[[], Any], ...] = (
    tied,
    interleaved,
    sums,
    named,
    mixed,
    skipped,
    scaled,
    watched,
    from_one,
)
"""What a pipeline does as one process does."""
OTHERS: tuple[Callable[[], Any], ...] = (spoilt, placed, resumed, saved, taught, evaluated, twice)


def main(folder: str, rank: str, ranks: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    results = {case.__name__: case() for case in (*SAME, *OTHERS)}
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
