"""State of models as people write them: restored, or refused before step 1, or said to be lost."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, OptimizerStep, Process, Save, Saver
from assay.engine.callbacks.ema import load_to_evaluate
from assay.engine.loop.engine_state import capture_state
from engine.toys import engine, loader, same_bits, supervised


class Base(nn.Module):
    """A linear model whose output depends on what its kind keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.prepare()

    def prepare(self) -> None: ...

    def kept(self, out: Tensor) -> Any:
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x)
        return out + self.kept(out.detach())


class Grows(Base):
    """A memory with a row more after each step."""

    memory: Tensor

    def prepare(self) -> None:
        self.register_buffer("memory", torch.zeros(0, 2))

    def kept(self, out: Tensor) -> Any:
        if self.training:
            self.memory = torch.cat([self.memory, out.mean(0, keepdim=True)])[-3:]
        return self.memory.sum(0)


class Shrinks(Grows):
    """A memory that loses a row with each step."""

    def prepare(self) -> None:
        self.register_buffer("memory", torch.ones(20, 2))

    def kept(self, out: Tensor) -> Any:
        if self.training:
            self.memory = self.memory[1:] * 1.5
        return self.memory.sum(0)


class Expanded(Base):
    """A buffer whose values share one place in memory."""

    scale: Tensor

    def prepare(self) -> None:
        self.register_buffer("scale", torch.ones(1).expand(2))

    def kept(self, out: Tensor) -> Any:
        return self.scale


class Within(Base):
    """Both of them, in children that are used twice."""

    def prepare(self) -> None:
        self.inner = nn.ModuleDict({"a": Grows(), "b": Expanded()})
        self.again = self.inner["a"]

    def kept(self, out: Tensor) -> Any:
        both = torch.cat([out, out], 1)
        return self.inner["a"](both) + self.inner["b"](both)


class Extra(Base):
    """A count beside the tensors."""

    count = 0

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]

    def kept(self, out: Tensor) -> Any:
        self.count += self.training
        return self.count / 100


class Late(Base):
    """A buffer that the first step registers."""

    def kept(self, out: Tensor) -> Any:
        if self.training and not hasattr(self, "mean"):
            self.register_buffer("mean", out.mean(0))
        return 0.0


EXACT: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind for kind in (Grows, Shrinks, Expanded, Within, Extra)
}


def trained(make: Callable[[], Any], folder: Path, *, stop_at: int = 0) -> Engine:
    torch.manual_seed(0)
    made = make()
    process = made if isinstance(made, Process) else supervised(made)
    runs = engine(process, loader(), epochs=3, recorder=MemoryRecorder())
    runs.bus.extend(Save(Saver(folder), every="1 step").handlers())
    runs.on("step_end")(lambda: runs.state.step == stop_at and runs.stop("left", interrupts=True))
    runs.resume(Saver(folder))
    runs.run()
    return runs


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("step", [1, 4])
def test_a_model_resumes_with_all_that_its_state_dict_gives(
    kind: str, step: int, tmp_path: Path
) -> None:
    whole = trained(EXACT[kind], tmp_path / "whole")
    trained(EXACT[kind], tmp_path / "left", stop_at=step)
    resumed = trained(EXACT[kind], tmp_path / "left")

    assert resumed.state.step == whole.state.step == 9
    assert same_bits(capture_state(resumed), capture_state(whole))
    assert not [f for f in resumed.recorder.facts if isinstance(f, Warned)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", EXACT)
def test_what_a_model_has_grown_to_can_be_evaluated(kind: str, tmp_path: Path) -> None:
    runs = trained(EXACT[kind], tmp_path)
    other = supervised(EXACT[kind]())

    load_to_evaluate(other, tmp_path / Saver(tmp_path).find().name)

    assert same_bits(other.model.state_dict(), runs.process.model.state_dict())


def test_another_model_is_not_made_to_fit(tmp_path: Path) -> None:
    trained(Grows, tmp_path)
    wide = Grows()
    wide.out = nn.Linear(4, 3)

    with pytest.raises(CheckpointError, match=r"out\.weight"):
        engine(supervised(wide)).resume(Saver(tmp_path))

    assert wide.memory.shape == (0, 2)


class Teacher(Process):
    """A model that also follows a teacher, which follows the model."""

    def __init__(self, place: str) -> None:
        self.model = nn.Linear(4, 2)
        self.metrics = {}
        self.backward = OptimizerStep(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.encoder = self.model  # a part of the model is no module of its own
        teacher = deepcopy(self.model).requires_grad_(False)
        self.find: Callable[[], nn.Module]
        if place == "list":
            self.teachers = [teacher]
        elif place == "mapping":
            self.teachers = {"first": teacher}  # type: ignore[assignment]
        else:
            self.teacher = teacher
        self.given = teacher

    def forward_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        with torch.no_grad():
            for mine, theirs in zip(self.given.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        loss = (out - y).square().mean() + (out - self.given(x)).square().mean()
        return loss, {"pred": out, "target": y}


class Written:
    """A training step without a base class, which holds a teacher too."""

    def __init__(self) -> None:
        self.inner = Teacher("attribute")
        self.model = self.inner.model
        self.backward = self.inner.backward
        self.teacher = self.inner.given

    def forward_step(self, batch: Any) -> Any:
        return self.inner.forward_step(batch)


@pytest.mark.parametrize("place", ["attribute", "list", "mapping"])
def test_modules_that_a_process_holds_are_kept(place: str, tmp_path: Path) -> None:
    whole = trained(lambda: Teacher(place), tmp_path / "whole")
    trained(lambda: Teacher(place), tmp_path / "left", stop_at=4)
    resumed = trained(lambda: Teacher(place), tmp_path / "left")

    assert same_bits(capture_state(resumed), capture_state(whole))
    assert {"process", "frozen"} & capture_state(whole).keys()
    other = Teacher(place)
    load_to_evaluate(other, tmp_path / "whole" / Saver(tmp_path / "whole").find().name)
    assert same_bits(other.given.state_dict(), whole.process.given.state_dict())  # type: ignore[attr-defined]


def test_modules_of_a_step_without_a_base_class_are_kept_too(tmp_path: Path) -> None:
    runs = engine(Written(), loader())

    assert [*capture_state(runs)["frozen"]] == ["thing.teacher"]


def test_a_process_without_modules_of_its_own_has_no_such_part() -> None:
    runs = engine(supervised())
    runs.process.helper = SimpleNamespace(model=runs.process.model)  # type: ignore[attr-defined]

    assert not {"process", "frozen"} & capture_state(runs).keys()
