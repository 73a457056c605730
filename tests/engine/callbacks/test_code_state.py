"""State of the user's code that no checkpoint keeps is named; what a checkpoint keeps is not."""

from __future__ import annotations

import functools
import itertools
import random
import weakref
from array import array
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.core.events import Event, Handler
from assay.core.ports import MemoryRecorder
from assay.engine import (
    ByHand,
    Engine,
    Evaluate,
    Loader,
    OptimizerStep,
    Save,
    Saver,
    Supervised,
    on,
)
from assay.engine.callbacks.code_state import NOTHING, CodeState
from engine.toys import hard_net, loader, net, points

SEEN: list[float] = []
STEPS = 0


class Net(nn.Module):
    """A model to derive ones with a hidden state from."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.shift(x))

    def shift(self, x: Tensor) -> Any:
        return 0.0


class Counts(Net):
    count = 0

    def shift(self, x: Tensor) -> Any:
        self.count += 1
        return 0.01 * self.count


class CountsInClass(Net):
    count = 0

    def shift(self, x: Tensor) -> Any:
        CountsInClass.count += 1
        return 0.01 * CountsInClass.count


class Lists(Net):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def shift(self, x: Tensor) -> Any:
        self.losses.append(float(x.sum().detach()))
        return 0.01 * len(self.losses)


class Queues(Net):
    def __init__(self) -> None:
        super().__init__()
        self.memory: deque[Tensor] = deque(maxlen=2)

    def shift(self, x: Tensor) -> Any:
        self.memory.append(x.detach().mean())
        return sum(self.memory)


class Averages(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def shift(self, x: Tensor) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.mean


class InPlace(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def shift(self, x: Tensor) -> Any:
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.mean


class Caches(Net):
    noise: Tensor | None = None

    def shift(self, x: Tensor) -> Any:
        if self.noise is None:
            self.noise = torch.rand(4)
        return self.noise


class Remembers(Net):
    @functools.cache  # noqa: B019
    def drawn(self, size: int) -> Tensor:
        return torch.rand(size)

    def shift(self, x: Tensor) -> Any:
        return self.drawn(x.shape[1])


@functools.cache
def drawn(size: int) -> Tensor:
    return torch.rand(size)


class RemembersOutside(Net):
    def shift(self, x: Tensor) -> Any:
        return drawn(x.shape[1])


class Draws(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def shift(self, x: Tensor) -> Any:
        return torch.rand(4, generator=self.generator)


class DrawsByNumpy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.tools = {"rng": np.random.default_rng(1)}

    def shift(self, x: Tensor) -> Any:
        return self.tools["rng"].random()


class DrawsByPython(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def shift(self, x: Tensor) -> Any:
        return self.rng.random()


class Iterates(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def shift(self, x: Tensor) -> Any:
        return 0.01 * next(self.numbers)


class Generates(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.make()

    def make(self) -> Iterator[float]:
        value = 0.0
        while True:
            value += 0.01
            yield value

    def shift(self, x: Tensor) -> Any:
        return next(self.numbers)


class IteratesOver(Net):
    """Goes through numbers by an iterator over another one."""

    def __init__(self, numbers: Iterator[Any]) -> None:
        super().__init__()
        self.numbers = numbers

    def shift(self, x: Tensor) -> Any:
        return 0.01 * torch.as_tensor(next(self.numbers)).flatten()[0]


def unlabeled() -> Iterator[Any]:
    """Batches of a second data set."""
    return iter(DataLoader(TensorDataset(torch.arange(40.0)), batch_size=2, shuffle=True))


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "cycle": lambda: itertools.cycle([0.0, 1.0]),
    "map": lambda: map(float, range(40)),
    "zip": lambda: zip(map(float, range(40)), range(40), strict=True),
    "enumerate": lambda: enumerate([1] * 40),
    "islice": lambda: itertools.islice(map(float, range(40)), 40),
    "chain": lambda: itertools.chain([1.0], map(float, range(40))),
    "batches": lambda: (tensor[0] for (tensor,) in unlabeled()),
    "loader": lambda: (value for batch in [unlabeled()] for (value,) in batch),
}


class Sets(Net):
    """Changes a setting of a module of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.0)

    def shift(self, x: Tensor) -> Any:
        self.dropout.p += 0.01
        return self.dropout(x)


STEP, COUNTS = ContextVar("STEP", default=0), array("i", [0])


class CountsInContext(Net):
    def shift(self, x: Tensor) -> Any:
        STEP.set(STEP.get() + 1)
        return 0.01 * STEP.get()


class CountsInArray(Net):
    def shift(self, x: Tensor) -> Any:
        COUNTS[0] += 1
        return 0.01 * COUNTS[0]


class CountsByModule(Net):
    def __init__(self) -> None:
        super().__init__()
        self.steps: Any = weakref.WeakKeyDictionary({self.layers: 0})

    def shift(self, x: Tensor) -> Any:
        self.steps[self.layers] += 1
        return 0.01 * self.steps[self.layers]


class CountsInMapping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.steps = UserDict({"step": 0})

    def shift(self, x: Tensor) -> Any:
        self.steps["step"] += 1
        return 0.01 * self.steps["step"]


class WritesGlobal(Net):
    def shift(self, x: Tensor) -> Any:
        global STEPS
        STEPS += 1
        return 0.01 * STEPS


class AppendsGlobal(Net):
    def shift(self, x: Tensor) -> Any:
        SEEN.append(1.0)
        return 0.01 * len(SEEN)


OPENED: list[IO[Any]] = []


def opened(mode: str) -> IO[Any]:
    OPENED.append(Path(__file__).open(mode))  # noqa: SIM115
    return OPENED[-1]


@pytest.fixture(autouse=True)
def files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    while OPENED:
        OPENED.pop().close()


class Reads(Net):
    def __init__(self) -> None:
        super().__init__()
        self.file = opened("rb")

    def shift(self, x: Tensor) -> Any:
        return self.file.read(1)[0] / 256


class ReadsLines(Net):
    def __init__(self) -> None:
        super().__init__()
        self.file = opened("r")

    def shift(self, x: Tensor) -> Any:
        return len(next(self.file)) / 256


class Nested(Net):
    """Its state is in an object of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.helpers = {"a": [Helper()]}

    def shift(self, x: Tensor) -> Any:
        return self.helpers["a"][0].next()


class Helper:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def next(self) -> float:
        self.value += 0.01
        return self.value


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        count = 0

        def hook(*_: Any) -> None:
            nonlocal count
            count += 1

        self.layers.register_forward_hook(hook)


class KeepsInFile(Net):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path("count.txt")

    def shift(self, x: Tensor) -> Any:
        count = int(self.path.read_text()) if self.path.exists() else 0
        self.path.write_text(str(count + 1))
        return 0.01 * count


class Logs(Net):
    """Writes a file, and reads another one."""

    def shift(self, x: Tensor) -> Any:
        with Path("log.txt").open("a") as file:
            file.write(f"{float(x.detach().sum())}\n")
        return len(Path(__file__).read_text()) / 1e6


COMPILER = """
def compile_once(place):
    place.write_text("kernel")
    return place.read_text()
"""


class IsCompiled(Net):
    """Has a compiler of torch's write and read files within a call of its forward."""

    def __init__(self) -> None:
        super().__init__()
        names: dict[str, Any] = {}
        file = Path(torch.__file__).parent / "_inductor" / "codecache.py"
        exec(compile(COMPILER, str(file), "exec"), names)
        self.compile_once = names["compile_once"]

    def shift(self, x: Tensor) -> Any:
        self.compile_once(Path("kernel.txt"))
        return 0


MODELS = {
    KeepsInFile: "not kept: count.txt",
    Counts: "not kept: model.count",
    CountsInClass: f"not kept: {__name__}.CountsInClass.count",
    Lists: "not kept: model.losses",
    Queues: "not kept: model.memory",
    Averages: "not kept: model.mean",
    InPlace: "not kept: model.mean",
    Caches: "unknown: model.noise",
    Remembers: f"unknown: {__name__}.Remembers.drawn",
    RemembersOutside: f"unknown: {__name__}.drawn",
    Draws: "not kept: model.generator",
    DrawsByNumpy: "not kept: model.tools['rng']",
    DrawsByPython: "not kept: model.rng",
    Iterates: "not kept: model.numbers",
    Generates: "not kept: model.numbers",
    Sets: "not kept: model.dropout.p",
    CountsInContext: f"not kept: {__name__}.STEP",
    CountsInArray: f"not kept: {__name__}.COUNTS",
    CountsByModule: "not kept: model.steps.data",
    CountsInMapping: "not kept: model.steps.data",
    WritesGlobal: f"not kept: {__name__}.STEPS",
    AppendsGlobal: f"not kept: {__name__}.SEEN",
    Reads: "not kept: model.file",
    ReadsLines: "not kept: model.file",
    Nested: "not kept: model.helpers['a'][0].value",
    Hooked: "not kept: model.layers._forward_hooks[...](count)",
}


def look(process: Any, *handlers: Any, steps: int = 5, data: Any = None) -> tuple[str, list[str]]:
    """Train a few steps; return what is found and the warnings."""
    reports: list[tuple[str, list[str]]] = []
    watch = CodeState(lambda finding, warnings: reports.append((finding, warnings)))
    Engine(
        process, loader() if data is None else data, steps=steps, handlers=[*handlers, watch]
    ).run()
    (report,) = reports
    return report


def supervised(model: nn.Module, **given: Any) -> Supervised:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = given or {"optimizer": optimizer}
    return Supervised(model, nn.MSELoss(), **given)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_a_state_that_a_model_hides_is_named_with_its_place(kind: type[Net]) -> None:
    finding, warnings = look(supervised(kind()))

    assert finding == MODELS[kind]
    (warning,) = warnings
    assert warning.startswith(f"state of your code: {finding.partition(': ')[2]} (")
    assert ("begins it anew" in warning) == finding.startswith("not kept")


@pytest.mark.parametrize("kind", ITERATORS)
def test_the_place_in_an_iterator_over_another_one_is_named(kind: str) -> None:
    finding, _ = look(supervised(IteratesOver(ITERATORS[kind]())))

    assert finding.startswith("not kept: model.numbers")


class Kept(Counts):
    """Keeps its count."""

    def get_extra_state(self) -> Any:
        return self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state


class Buffered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def shift(self, x: Tensor) -> Any:
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        return self.mean


class Constant(Net):
    """Has attributes of many kinds, none of which changes."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.sizes, self.table = "a", [1, 2], {"a": torch.ones(4)}
        self.ready = torch.rand(4)
        self.generator = torch.Generator().manual_seed(1)
        self.counter = Counter("abc")

    def shift(self, x: Tensor) -> Any:
        return self.ready * self.sizes[0]


@pytest.mark.parametrize(
    "kind",
    [Net, Kept, Buffered, Constant, Logs, IsCompiled, hard_net],
    ids=lambda kind: kind.__name__,
)
def test_a_model_whose_state_a_checkpoint_keeps_is_not_named(kind: Callable[[], nn.Module]) -> None:
    assert look(supervised(kind())) == (NOTHING, [])


# ------------------------------------------------------------------------------ other than a model


class Counting:
    """A schedule that counts its calls."""

    calls = 0

    def factor(self, step: int, total: int | None) -> float:
        self.calls += 1
        return 1 / self.calls


class Warming(torch.optim.SGD):
    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.warmth = 0.0

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.warmth = min(1.0, self.warmth + 0.1)
        return super().step(closure)


class Listener:
    def __init__(self) -> None:
        self.best = 0.0

    @on("step_end")
    def listen(self) -> None:
        self.best += 1

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.STEP_END, fn=self.update)]

    def update(self) -> None:
        self.best += 1


class Saved(Listener):
    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


class Own(Supervised):
    seen = 0

    def forward_step(self, batch: Any) -> Any:
        self.seen += len(batch[0])
        return super().forward_step(batch)


class Loss(nn.Module):
    calls = 0

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.mse_loss(pred, target)


def stepping() -> Any:
    """Return a step whose closure counts."""
    count = 0
    model = net()

    def step(batch: Any) -> Tensor:
        nonlocal count
        count += 1
        return nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 + 0.01 * count)

    step.model = model  # type: ignore[attr-defined]
    step.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # type: ignore[attr-defined]
    return step


def hooking() -> Supervised:
    counts: dict[str, int] = {"n": 0}

    def hook(batch: Any) -> Any:
        counts["n"] += 1
        return batch

    process = supervised(net())
    process.batch_hook = hook
    return process


def scheduled(schedule: Any) -> Supervised:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return supervised(model, backward=OptimizerStep(optimizer, schedule=schedule))


def warmed() -> Supervised:
    model = net()
    return supervised(model, optimizer=Warming(model.parameters(), lr=0.01))


def own() -> Supervised:
    model = net()
    return Own(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.01))


def lossy() -> Supervised:
    model = net()
    return Supervised(model, Loss(), torch.optim.SGD(model.parameters(), lr=0.01))


@pytest.mark.parametrize(
    ("make", "finding"),
    [
        (lambda: scheduled(Counting()), "not kept: schedule.calls"),
        (warmed, "not kept: optimizer.warmth"),
        (own, "not kept: process.seen"),
        (lossy, "not kept: criterion.calls"),
        (stepping, "not kept: process(count)"),
        (hooking, "not kept: process.batch_hook(counts)"),
    ],
    ids=["schedule", "optimizer", "process", "criterion", "closure", "hook"],
)
def test_a_state_that_another_part_hides_is_named_with_its_place(
    make: Callable[[], Any], finding: str
) -> None:
    assert look(make())[0] == finding


def test_a_callback_without_a_state_dict_is_named_and_one_with_it_is_not() -> None:
    assert look(supervised(net()), Listener())[0] == "not kept: Listener.best"
    assert look(supervised(net()), Saved())[0] == NOTHING


class CountedPairs:
    """Data set that counts what was taken from it."""

    seen = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.seen += 1
        return torch.ones(4), torch.ones(2)


def test_a_state_of_evaluation_data_is_named_by_its_split() -> None:
    evaluate = Evaluate({"valid": Loader(CountedPairs(), batch_size=4)}, every="1 step")

    finding = look(supervised(net()), evaluate)[0]

    assert finding == "not kept: data valid.dataset.seen"


def look_at_loop(
    make: Callable[[torch.optim.Optimizer], Any], *, keeps: bool = False
) -> tuple[str, list[str]]:
    """Train by hand with a variable `other`, stepped after each step; return what is found."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    other = make(optimizer)
    reports: list[tuple[str, list[str]]] = []
    watch = CodeState(lambda finding, warnings: reports.append((finding, warnings)))
    runs = Engine(ByHand(model, optimizer), loader(), steps=5, handlers=[watch])
    if keeps:
        runs.keep(other)
    for x, y in runs:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        getattr(other, "step", lambda: None)()
    (report,) = reports
    return report


class Stepped:
    """Has a state of its own."""

    count = 0

    def step(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class SteppedLate(torch.optim.lr_scheduler.StepLR):
    """Steps once an epoch, which here never ends."""

    def step(self, epoch: Any = None) -> None: ...


LOOPS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "scheduler": lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, 10),
    "scheduler of epochs": lambda it: SteppedLate(it, 2),
    "own": lambda it: Stepped(),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_variable_of_a_loop_by_hand_with_a_state_is_named_unless_it_is_kept(kind: str) -> None:
    finding, (warning,) = look_at_loop(LOOPS[kind])

    assert finding == "not kept: other" and "engine.keep(other)" in warning
    assert look_at_loop(LOOPS[kind], keeps=True) == (NOTHING, [])


def test_a_variable_of_a_loop_by_hand_that_does_not_change_is_not_named() -> None:
    assert look_at_loop(lambda it: hard_net()) == (NOTHING, [])


class Seen:
    """A metric with a mean over evaluations, which its reset leaves."""

    mean = 0.0

    def reset(self) -> None:
        self.sum = self.count = 0.0

    def update(self, output: Any) -> None:
        self.sum += float(output["pred"].sum())
        self.count += len(output["pred"])

    def value(self) -> float:
        self.mean = 0.9 * self.mean + 0.1 * self.sum / self.count
        return self.mean


class ResetAll(Seen):
    def reset(self) -> None:
        super().reset()
        self.mean = 0.0


def measured(metric: Any, *, steps: int = 8) -> list[tuple[str, list[str]]]:
    process = supervised(net())
    process.metrics = {"seen": metric}
    reports: list[tuple[str, list[str]]] = []
    watch = CodeState(lambda finding, warnings: reports.append((finding, warnings)))
    evaluate = Evaluate({"valid": loader(8)}, every="2 steps")
    Engine(process, loader(), steps=steps, handlers=[evaluate, watch]).run()
    return reports


def test_a_state_that_a_metric_keeps_over_evaluations_is_named_after_the_third_one() -> None:
    first, second = measured(Seen())

    assert first == (NOTHING, [])
    assert second[0] == "not kept: metric seen.mean"
    (warning,) = second[1]
    assert "changes with each evaluation" in warning and "begin it anew in reset" in warning


def test_a_state_of_a_metric_after_two_evaluations_is_unknown() -> None:
    assert measured(Seen(), steps=4)[-1][0] == "unknown: metric seen.mean"


def test_a_metric_that_begins_anew_is_not_named() -> None:
    assert measured(ResetAll()) == [(NOTHING, [])]


def test_a_run_of_one_step_is_looked_at_too() -> None:
    assert look(supervised(Counts()), steps=1)[0].endswith("model.count")


OPTIMIZERS = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if name not in ("Optimizer", "SparseAdam", "LBFGS", "Muon")
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_of_torch_is_named(name: str) -> None:
    model = hard_net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)

    assert look(supervised(model, optimizer=optimizer), steps=4) == (NOTHING, [])


def schedulers() -> dict[str, Callable[[Any], Any]]:
    from torch.optim import lr_scheduler as of

    return {
        "step": lambda it: of.StepLR(it, 2),
        "cosine": lambda it: of.CosineAnnealingLR(it, 10),
        "one cycle": lambda it: of.OneCycleLR(it, 0.1, total_steps=50),
        "lambda": lambda it: of.LambdaLR(it, lambda step: 0.9**step),
        "chained": lambda it: of.SequentialLR(
            it, [of.ConstantLR(it), of.ExponentialLR(it, 0.9)], milestones=[2]
        ),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", schedulers())
def test_no_scheduler_of_torch_is_named(name: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = schedulers()[name](optimizer)

    assert (
        look(supervised(model, backward=OptimizerStep(optimizer, schedule=schedule)))[0] == NOTHING
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True, dropout=0.1, num_layers=2)
        self.attention = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 2))
        self.batch = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(x[:, None])
        return self.norm(self.batch(self.attention(hidden)[:, 0]))


def test_no_module_of_torch_is_named() -> None:
    assert look(supervised(Recurrent())) == (NOTHING, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["GPT2", "Bert", "Llama", "T5", "ViT", "Mamba", "GPTNeoX", "Mistral"]
)
def test_no_model_of_transformers_is_named(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "ViT":
        config = transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=8, patch_size=4,
        )  # fmt: skip
        model = transformers.ViTModel(config)
        batch = {"pixel_values": torch.rand(2, 3, 8, 8)}
    else:
        sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "intermediate_size": 32, "num_key_value_heads": 2}
        of_t5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = getattr(transformers, f"{name}Config")(
            **({"vocab_size": 32, **of_t5} if name == "T5" else sizes | heads)
        )
        model = getattr(transformers, f"{name}Model")(config)
        batch = {"input_ids": torch.randint(0, 32, (2, 8))}
        if name == "T5":
            batch["decoder_input_ids"] = batch["input_ids"]

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(**batch)[0].mean() * x[:, :2]

    assert look(supervised(Trained()), data=[points(4).tensors] * 5) == (NOTHING, [])


class Odd:
    """Cannot be asked what it is."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not ready")


class HoldsOdd(Net):
    def __init__(self) -> None:
        super().__init__()
        self.odd = [Odd()]


def test_an_object_that_cannot_be_looked_at_ends_no_run_and_is_called_unknown() -> None:
    finding, _ = look(supervised(HoldsOdd()))

    assert finding == "unknown: it could not be looked at (RuntimeError: not ready)"


def test_a_fourth_step_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    own = CodeState._look
    monkeypatch.setattr(
        CodeState,
        "_look",
        lambda watch, engine: (looks.append(engine.state.step), own(watch, engine)),
    )

    look(supervised(net()), steps=20)

    assert looks == [0, 1, 3]


def saving(folder: Path) -> Save:
    return Save(Saver(folder), every="2 steps", background=False)


def test_whoever_saves_looks_and_without_a_record_the_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    savers = [saving(tmp_path / name) for name in ("a", "b")]

    Engine(supervised(Counts()), loader(), steps=5, handlers=savers).run()

    (said,) = [each.message for each in caplog.records if "state of your code" in each.message]
    assert "model.count" in said


def test_a_run_that_saves_nothing_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    recorder = MemoryRecorder()

    Engine(supervised(Counts()), loader(), steps=5, recorder=recorder).run()

    assert recorder.facts == []
    assert "state of your code" not in caplog.text
