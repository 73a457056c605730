"""Texts of the README of flame, run as they stand there."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NewType

import pytest
import torch

from assay.build.context_errors import ContextError
from assay.compat.injector import Binder, Injector, Module, inject, provider, singleton
from assay.compat.pasted import missing_names, supply
from assay.compat.recorded import RecordedEngine
from assay.engine import Engine, Loader, State, Supervised
from engine.toys import net, points
from examples import SRC
from snippets import executed
from warm_python import Run

Settings = NewType("Settings", dict[str, Any])


@pytest.mark.row("S-D1", "D02", "D06")
def test_the_text_on_dependency_injection_prints_what_it_says(warm: Run, tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text(executed("S-D1"), encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}

    done = warm(["-m", "assay.compat", "text.py"], folder=tmp_path, variables={**os.environ, **own})

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "{'train_batch_size': 16, 'val_batch_size': 16}\n",
        "",
    )


class Counting(Module):
    """Two providers of which one is under `singleton`."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @provider
    def settings(self) -> Settings:
        self.calls.append("settings")
        return Settings({"number": len(self.calls)})

    @singleton
    @provider
    def state(self, settings: Settings) -> State:
        self.calls.append("state")
        return State(epoch=settings["number"])


class Plain:
    pass


class NotMarked:
    def __init__(self, plain: Plain) -> None:
        self.plain = plain


@inject
class WithDefault:
    def __init__(self, plain: Plain, size: int = 3) -> None:
        self.plain, self.size = plain, size


class One:
    @inject
    def __init__(self, other: Other) -> None: ...


class Other:
    @inject
    def __init__(self, one: One) -> None: ...


@pytest.mark.row("D03")
def test_a_provider_is_called_each_time_and_one_under_singleton_once() -> None:
    module = Counting()
    container = Injector(module)

    assert container.get(State) is container.get(State)
    assert container.get(Settings) is not container.get(Settings)
    assert module.calls == ["settings", "state", "settings", "settings"]
    assert container.get(Injector) is container


@pytest.mark.row("D05", "D06")
def test_a_class_is_built_by_its_annotations_and_anew_each_time() -> None:
    container = Injector()

    made = container.get(WithDefault)

    assert type(made.plain) is Plain and made.size == 3
    assert container.get(WithDefault).plain is not made.plain
    assert container.get(Plain) is not container.get(Plain)


def test_a_function_of_the_binder_binds_objects_and_classes() -> None:
    def configure(binder: Binder) -> None:
        binder.bind(Settings, to={"given": True})
        binder.bind(Plain, scope=singleton)

    container = Injector(configure)

    assert container.get(Settings) == {"given": True}
    assert container.get(Plain) is container.get(Plain)
    assert container.call_with_injection(inject(lambda number: number), args=(4,)) == 4


@pytest.mark.row("D04")
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Other, "These need each other: Other -> One -> Other."),
        (NotMarked, "`NotMarked` needs plain, and is not under `inject`."),
        (Settings, "Nothing provides `Settings`."),
        (int, "Nothing provides `int`."),
    ],
)
def test_what_cannot_be_made_is_one_error_that_names_it(wanted: Any, said: str) -> None:
    with pytest.raises(ContextError, match=said):
        Injector().get(wanted)


PARTS = """
import functools
from assay.engine import Engine, evaluate
from injector import Injector, Module, provider, singleton

CALLS = []


def noted(call):
    @functools.wraps(call)
    def inner(self, *given, **named):
        flags = [each for each in (*given, *named.values()) if isinstance(each, bool)]
        CALLS.append(" ".join([call.__name__, *map(str, flags)]))
        return call(self, *given, **named)

    return inner


for name in ("training_step", "validation_step", "update", "train"):
    setattr(SupervisedProcess, name, noted(getattr(SupervisedProcess, name)))


class Parts(Module):
    @singleton
    @provider
    def model(self) -> Model:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).cuda()

    @provider
    def criterion(self) -> Criterion:
        return torch.nn.CrossEntropyLoss()

    @singleton
    @provider
    def optimizer(self, model: Model) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


draw = torch.Generator().manual_seed(0)
dataloader = [
    (torch.rand(8, 4, 4, generator=draw), torch.randint(3, (8,), generator=draw)) for _ in range(4)
]
supervised_process = Injector(Parts).get(SupervisedProcess)
"""
BY_ENGINE = """
by_loop, losses = [*CALLS], []
by_engine = Injector(Parts).get(SupervisedProcess)
CALLS.clear()
engine = Engine(by_engine, dataloader, epochs=1)
engine.run()
trained = [*CALLS]
CALLS.clear()
results, samples = evaluate(engine.process, dataloader, split="valid")
print(*trained, sep=", ")
print(*CALLS, sep=", ")
print([call.split()[0] for call in by_loop] == [call.split()[0] for call in trained + CALLS])
pairs = zip(by_engine.model.parameters(), supervised_process.model.parameters(), strict=True)
print(all(torch.equal(one, other) for one, other in pairs))
print(abs(results["valid/loss"] - mean) < 1e-6, samples)
"""
MEAN = """
mean = sum(supervised_process.forward_step(batch)[1]["loss"].item() for batch in dataloader) / 4
"""


@pytest.mark.row("S-D2", "D12", "D18")
def test_the_process_of_the_text_is_called_and_learns_in_an_engine_as_in_its_own_loops(
    warm: Run, tmp_path: Path
) -> None:
    loops = executed("S-D2.training") + executed("S-D2.validation")
    text = executed("S-D2.process") + PARTS + loops + MEAN + BY_ENGINE
    (tmp_path / "text.py").write_text(text, encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}

    done = warm(["-m", "assay.compat", "text.py"], folder=tmp_path, variables={**os.environ, **own})

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        ", ".join(["train True", *["training_step", "update"] * 4]),
        ", ".join(["train False", *["validation_step"] * 4]),
        "True",
        "True",
        "True 32",
    ]


@pytest.mark.row("S-D3", "D19", "D20")
def test_a_state_has_every_field_of_the_text_with_its_default_and_each_can_be_set() -> None:
    text = executed("S-D3")
    theirs: dict[str, Any] = supply(missing_names(text))
    exec(text, theirs)
    state = State()

    fields = dataclasses.fields(theirs["State"])
    assert len(fields) == 10
    defaults = theirs["State"]()
    for number, field in enumerate(fields):
        assert getattr(State(), field.name) == getattr(defaults, field.name), field.name
        setattr(state, field.name, number)
        assert getattr(state, field.name) == number, field.name
    assert (state.epoch_step, state.step, state.max_steps) == (2, 3, 5)

    state.epoch, state.step, state.metrics = 2, 7, {"valid": {"acc": 0.5, "loss": [1.0, 2.0]}}
    loaded = State()
    loaded.load_state_dict(state.state_dict())
    assert (loaded.epoch, loaded.global_iteration, loaded.metrics) == (2, 7, state.metrics)
    assert (loaded.batch, loaded.output, loaded.dataloader) == (None, None, None)


@pytest.mark.row("D22")
def test_a_handler_that_sets_the_last_iteration_ends_the_run_there() -> None:
    model = torch.nn.Linear(2, 2)
    process = Supervised(
        model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    batch = (torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
    engine = Engine(process, [batch] * 4, epochs=3)

    @engine.on("step_end", every=5)
    def shorten(state: State) -> None:
        state.max_iterations = 1  # behind the run: it ends at the current step

    assert engine.run().global_iteration == 5


class Judging(Supervised):
    """Process with an injected state, and numbers in its outputs."""

    def __init__(self, state: State) -> None:
        model = net()
        super().__init__(
            model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1)
        )
        self.state = state

    def validation_step(self, batch: Any) -> Any:
        output = super().validation_step(batch)
        return {**output, "size": float(len(batch[0])), "step": torch.tensor(self.state.step)}


@pytest.mark.row("D22")
def test_numbers_of_an_output_are_metrics_and_an_injected_state_is_that_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batches = Loader(points(16), batch_size=8)
    valid = Loader(points(12), batch_size=8)
    engine = RecordedEngine(Judging(State()), batches, epochs=1, evaluate={"val": valid})

    state = engine.run()

    assert state.metrics["val/size"] == (8 * 8 + 4 * 4) / 12
    assert state.metrics["val/step"] == 2
