"""`assay diverge`: the first step, phase, module and operation in which two runs differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import assay as face
from assay.core.errors import InputError
from assay.formats.verdict import Difference
from assay.proof import diverge
from assay.query.find import find_run
from assay.store import authorship

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forking")]

FAULTY = """\
import time

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, noise, seed, since):
        super().__init__()
        self.inside = nn.Linear(width, width)
        self.noise, self.since = noise, since
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.draw = torch.Generator().manual_seed(seed) if seed else None

    def forward(self, x):
        x = self.inside(x)
        self.calls += self.training
        if self.training and self.calls > self.since:
            if self.noise == "clock":
                x = x * (1 + time.perf_counter_ns() % 1000003 * 1e-7)
            elif self.noise == "backward":
                x.register_hook(lambda grad: grad * 1.001)
        keep = torch.rand(x.shape, generator=self.draw) > 0.1
        return torch.relu(x) * keep


class Net(nn.Module):
    def __init__(self, width=8, noise="", seed=0, since=5, flip=False):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = Layer(width, noise, seed, since)
        self.head = nn.Linear(width, 2)
        if flip:
            with torch.no_grad():
                self.head.weight.view(torch.int32)[1, 3] ^= 1

    def forward(self, x):
        return self.head(self.second(torch.relu(self.first(x))))
"""


@pytest.fixture
def train(assay, toy: Path, monkeypatch: pytest.MonkeyPatch):
    """Train twelve steps of the toy with a possibly faulty model; return the run's id."""
    (toy / "faulty.py").write_text(FAULTY)
    monkeypatch.chdir(toy)
    monkeypatch.setenv("XDG_DATA_HOME", str(toy.parent / "data"))

    def call(*overrides: str, every: str = "100 steps") -> str:
        arguments = [
            "model={ type = 'faulty.Net' }",
            f"trace.every={every}",
            "checkpoint.every=4 steps",
            *overrides,
        ]
        done = assay("run", "toy.toml", "--quiet", "--max-steps", "12", *arguments)
        assert done.returncode == 0, done.stderr
        return find_run("last").id

    return call


def place(first: Difference | None) -> tuple[int, str, str, str]:
    assert first is not None
    return first.step, first.phase, first.module, first.op or first.name


@pytest.mark.thorough
def test_what_the_traces_show_is_named_without_training_again(assay, train) -> None:
    base, again = (train(every="1 step") for _ in range(2))
    flipped = train("+model.flip=true", every="1 step")
    ordered = train("data.train.shuffle=false", every="1 step")
    other = train("seed=4", every="1 step")

    equal = diverge(base, again, reruns=False)
    assert equal.verdict.equal and equal.verdict.compared > 200
    assert (equal.verdict.first_step, equal.verdict.last_step) == (0, 12)

    found = {name: diverge(base, name, reruns=False).verdict for name in (flipped, ordered, other)}
    assert place(found[flipped].difference) == (0, "init", "model.head", "weight")
    assert found[flipped].cause == "init"
    assert found[flipped].changed_inputs == {"config model.flip": ["false (default)", "true"]}
    assert place(found[ordered].difference) == (1, "data", "", "sample indices")
    assert found[ordered].cause == "data order"
    assert place(found[other].difference) == (0, "init", "model.first", "weight")
    assert found[other].changed_inputs == {"config seed": ["3", "4"]}

    printed = assay("diverge", base, flipped)
    assert printed.returncode == 1
    assert printed.stdout.splitlines()[0] == "different: first at step 0, init, model.head: weight"
    assert "differs: config model.flip  false (default) -> true" in printed.stdout
    as_data = assay("diverge", base, again, "--json")
    assert as_data.returncode == 0 and json.loads(as_data.stdout)["equal"] is True
    assert [verdict.question for verdict in find_run(flipped).verdicts] == ["diverge", "diverge"]
    with pytest.raises(InputError, match="the same run"):
        diverge(base, base)


def test_curves_that_no_weight_changes_are_no_evidence_of_equal_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def record(loss: float | None, lr: float = 0.1) -> str:
        config = {"lr": lr}
        with face.start(tag="a", config=config, project=tmp_path, keep_output=False) as run:
            for step in range(1, 7):
                run.log({"epoch": step // 2, "train/lr": 0.1, "data/order": 5.0}, step=step)
            if loss is not None:
                run.log({"train/loss": loss}, step=2)
                run.log({"train/loss": loss}, step=4)
        return run.id

    without, again = record(None), record(None, lr=0.2)
    with pytest.raises(InputError, match="nothing that compares and depends on the weights"):
        diverge(without, again, reruns=False)
    assert not find_run(again).verdicts

    equal = diverge(record(0.5), record(0.5), reruns=False).verdict
    assert (equal.equal, equal.first_step, equal.last_step, equal.compared) == (True, 2, 4, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "where", "cause"),
    [
        ("+model.seed=1", (1, "forward", "model.second", "aten.rand"), "randomness"),
        ("+model.noise='backward'", (6, "backward", "model.second.inside", "aten.mul"), "backward"),
    ],
)
def test_a_fault_that_the_records_are_too_coarse_for_is_found_by_training_again(
    train, fault: str, where: tuple[int, str, str, str], cause: str
) -> None:
    base, faulty = train(), train(fault)

    done = diverge(base, faulty)

    assert place(done.verdict.difference) == where
    assert done.verdict.cause == cause
    assert done.notes == ()
    assert list(done.verdict.changed_inputs) == [f"config {fault.lstrip('+').partition('=')[0]}"]


@pytest.mark.thorough
def test_an_operation_that_is_never_twice_the_same_is_named_from_the_nearest_equal_checkpoint(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    first, second = (train("+model.noise='clock'") for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(authorship, "is_own", lambda *_: False)
        foreign = diverge(first, second, tell=told.append)
    assert foreign.verdict.difference is not None and told == []
    assert any(
        note.startswith("not trained again: ") and "was not made here" in note
        for note in foreign.notes
    )

    done = diverge(first, second, tell=told.append)

    assert place(done.verdict.difference) == (6, "forward", "model.second", "aten.mul")
    assert "step-000000004" in told[0]
    assert done.verdict.changed_inputs == {}
    assert len([note for note in done.notes if "something in it is not fixed" in note]) == 2
