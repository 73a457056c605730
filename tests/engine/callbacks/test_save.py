"""Saving: its times, the best checkpoint, rotation, and failures that lose nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay.core.errors import CheckpointError, InputError
from assay.core.facts import Saved, Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Engine,
    Evaluate,
    Loader,
    NonFiniteError,
    OptimizerStep,
    Save,
    Saver,
    WarmupCosine,
    Where,
)
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import load_parts
from assay.engine.data.worker_faults import WorkerError
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import (
    Noisy,
    engine,
    hard_net,
    heard,
    loader,
    net,
    points,
    same_bits,
    supervised,
    weights_of,
)


class Scripted:
    """A metric that says what it was told to say, one value an evaluation."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = iter(values)

    def reset(self) -> None: ...

    def update(self, output: Any) -> None: ...

    def value(self) -> float:
        return next(self.values)


def steps_in(folder: Path) -> list[int]:
    return [manifest.step for manifest in Saver(folder).complete()[0]]


def saving(
    folder: Path, *, keep: int = 3, process: Any = None, **given: Any
) -> tuple[Engine, MemoryRecorder]:
    """Two epochs of three steps, saved as given."""
    recorder = MemoryRecorder()
    runs = engine(
        process,
        recorder=recorder,
        **{name: given.pop(name) for name in ("epochs", "steps") if name in given},
    )
    runs.bus.extend(Save(Saver(folder, keep=keep), **given).handlers())
    return runs, recorder


def judged(
    folder: Path, values: Sequence[float], *, mode: Any = "max", keep: int = 1, **given: Any
) -> tuple[Engine, list[tuple[Any, ...]]]:
    """Engine of one step an epoch with `values` as its metric, and what Save tells of the best."""
    told: list[tuple[Any, ...]] = []
    recorder = MemoryRecorder()
    runs = engine(
        supervised(metrics={"acc": Scripted(values)}),
        loader(8),
        epochs=len(values),
        recorder=recorder,
    )
    runs.bus.extend(Evaluate({"valid": loader(4)}).handlers())
    save = Save(
        Saver(folder, keep=keep),
        **{
            "best": ("valid/acc", mode),
            "on_best": lambda *heard: told.append(heard),
            **given,
        },
    )
    runs.bus.extend(save.handlers())
    return runs, told


# --------------------------------------------------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("1 epoch", [3, 6]),
        ("2 epochs", [6]),
        ("1 step", [1, 2, 3, 4, 5, 6]),
        ("4 steps", [4, 6]),
        ("6 steps", [6]),
        ("99 steps", [6]),
        ("never", []),
    ],
)
def test_it_saves_at_its_period_and_once_at_the_end(
    every: str, steps: list[int], tmp_path: Path
) -> None:
    runs, recorder = saving(tmp_path, keep=99, every=every)
    told = heard(runs)

    runs.run()

    assert steps_in(tmp_path) == steps
    facts = [fact for fact in recorder.facts if isinstance(fact, Saved)]
    again = every in ("1 step", "6 steps")  # the last step once more, as its epoch ended since
    assert not again or facts.pop().step == 6
    assert [(fact.step, fact.kind, fact.best) for fact in facts] == [
        (step, "checkpoint", False) for step in steps
    ]
    assert [fact.name for fact in facts] == [f"step-{step:09d}" for step in steps]
    assert all(fact.size_bytes > 0 for fact in facts)
    assert told.count("checkpoint_begin") == told.count("checkpoint_end") == len(steps) + again


def test_rotation_keeps_the_newest_and_with_them_the_best(tmp_path: Path) -> None:
    values = [
        0.1,
        0.9,
        *([0.2] * 19),
    ]  # after every fifth step and at the end: the best is that of step 10
    runs = engine(supervised(metrics={"acc": Scripted(values)}), loader(8), steps=104)
    runs.bus.extend(Evaluate({"valid": loader(4)}, every="5 steps").handlers())
    saver = Saver(tmp_path, keep=3)
    save = Save(saver, every="10 steps", best=("valid/acc", "max"))
    runs.bus.extend(save.handlers())

    runs.run()

    assert steps_in(tmp_path) == [10, 80, 90, 100, 104]
    assert saver.find("final").step == 104
    assert saver.best() == "step-000000010"
    assert saver.find("latest").step == 104


@pytest.mark.row("E38")
def test_of_a_hundred_steps_three_checkpoints_stay_beside_the_best_and_the_final_one(
    tmp_path: Path,
) -> None:
    values = [0.1, 0.9, *([0.2] * 8)]
    runs = engine(supervised(metrics={"acc": Scripted(values)}), loader(8), steps=100)
    runs.bus.extend(Evaluate({"valid": loader(4)}, every="10 steps").handlers())
    saver = Saver(tmp_path, keep=3)
    save = Save(saver, every="10 steps", best=("valid/acc", "max"))
    runs.bus.extend(save.handlers())

    runs.run()

    assert steps_in(tmp_path) == [20, 70, 80, 90, 100]
    assert (saver.find("best").step, saver.find("final").step, saver.find("latest").step) == (
        20,
        100,
        100,
    )
    longer, _ = saving(tmp_path, every="10 steps", steps=130)
    restore(longer, saver.newest()[1])
    longer.run()
    assert steps_in(tmp_path) == [
        20,
        100,
        110,
        120,
        130,
    ]  # what was final once is one of three from then on
    assert saver.find("final").step == 130


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_run_that_was_interrupted_has_no_final_checkpoint(
    interrupts: bool, tmp_path: Path
) -> None:
    runs, _ = saving(tmp_path)
    runs.on("step_end", every=2)(lambda: runs.stop("enough", interrupts=interrupts))

    runs.run()

    assert (Saver(tmp_path).folder / "final.json").exists() is not interrupts


@pytest.mark.row("E33")
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_resumed_run_begins_with_the_next_step(step: int, tmp_path: Path) -> None:
    whole, _ = saving(tmp_path / "whole", keep=99, every="1 step")
    whole.run()
    resumed, recorder = saving(tmp_path / "resumed", every="never")
    restore(resumed, Saver(tmp_path / "whole").load(step))
    begun: list[int] = []
    resumed.on("step_begin")(lambda state: begun.append(state.step))

    resumed.run()

    assert begun == list(range(step, 6))
    assert [at for at, _ in recorder.curve("train/loss")] == list(range(step + 1, 7))


class Unsteady(Noisy):
    """Samples that cannot be loaded any more once it `fails`."""

    fails = False

    def __getitem__(self, index: int) -> Any:
        if self.fails:
            raise OSError("no such image")
        return super().__getitem__(index)


class Unloadable:
    """Batches whose worker has died."""

    def __iter__(self) -> Any:
        raise WorkerError("The loader worker 0 of data.valid has died.")


def test_a_failure_to_load_leaves_a_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    whole = engine(train=Loader(Noisy(), batch_size=8), epochs=2)
    whole.run()
    data = Unsteady()
    failed = engine(train=Loader(data, batch_size=8), epochs=2)
    failed.bus.extend(Save(Saver(tmp_path)).handlers())
    failed.on("step_end", every=4)(lambda: setattr(data, "fails", True))

    with pytest.raises(OSError, match="no such image"):
        failed.run()

    assert steps_in(tmp_path) == [3, 4]
    resumed = engine(train=Loader(Noisy(), batch_size=8), epochs=2)
    restore(resumed, Saver(tmp_path).load(4))
    resumed.run()
    assert same_bits(capture_state(resumed), capture_state(whole))


def test_an_evaluation_that_fails_leaves_none(tmp_path: Path) -> None:
    failed, _ = saving(tmp_path, every="2 steps")
    failed.bus.extend(Evaluate({"valid": Unloadable()}).handlers())

    with pytest.raises(WorkerError):
        failed.run()

    assert steps_in(tmp_path) == [2]


def test_a_failure_in_a_step_leaves_none(tmp_path: Path) -> None:
    failed, _ = saving(tmp_path, every="100 steps")

    @failed.on("backward_begin", every=2)
    def fail() -> None:
        raise OSError("the disk of a hook")

    with pytest.raises(OSError, match="of a hook"):
        failed.run()

    assert steps_in(tmp_path) == []


def test_the_end_of_a_run_that_was_stopped_is_saved(tmp_path: Path) -> None:
    runs, _ = saving(tmp_path)
    runs.on("step_end", every=2)(lambda: runs.stop("SIGINT", interrupts=True))

    runs.run()

    assert steps_in(tmp_path) == [2]


def test_where_it_was_and_how_good_stand_in_the_manifest(tmp_path: Path) -> None:
    runs, _ = judged(tmp_path, [0.25])

    runs.run()

    manifest = Saver(tmp_path).find()
    assert (manifest.step, manifest.epoch, manifest.samples) == (1, 1, 8)
    assert manifest.info["valid/acc"] == 0.25


# --------------------------------------------------------------------------------------------------------------- best


@pytest.mark.row("C66")
@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("max", [0.1, 0.3, 0.2], [1, 2]),
        ("min", [0.3, 0.1, 0.2], [1, 2]),
        ("max", [0.5, 0.5, 0.5], [1]),
        ("min", [0.5, 0.5, 0.4], [1, 3]),
        ("max", [math.nan, 0.1, math.nan, 0.2], [2, 4]),
        ("min", [math.nan, 0.2, math.nan, 0.1], [2, 4]),
        ("max", [math.nan, math.nan], []),
        ("max", [-math.inf, -5.0], [2]),
        ("min", [0.0, -1.0, math.inf], [1, 2]),
    ],
)
def test_only_what_improves_is_the_best_and_nan_never_is(
    mode: str, values: list[float], best: list[int], tmp_path: Path
) -> None:
    runs, told = judged(tmp_path, values, mode=mode)

    runs.run()

    assert told == [
        ("valid/acc", mode, values[step - 1], step, f"step-{step:09d}") for step in best
    ]
    assert Saver(tmp_path).best() == (f"step-{best[-1]:09d}" if best else None)
    if best:
        last = best[-1]
        assert runs.state.best == {
            "metric": "valid/acc",
            "mode": mode,
            "value": values[last - 1],
            "step": last,
        }
    else:
        assert runs.state.best is None


def test_the_best_stays_beside_the_newest_and_its_predecessor_goes(tmp_path: Path) -> None:
    runs, _ = judged(tmp_path, [0.1, 0.9, 0.2, 0.3, 0.4], background=False)
    kept: list[list[int]] = []
    runs.on("epoch_begin")(lambda: kept.append(steps_in(tmp_path)))

    runs.run()

    assert kept == [[], [1], [2], [2, 3], [2, 4]]
    assert steps_in(tmp_path) == [2, 4, 5]  # the final one takes no other's place


def test_the_best_is_kept_where_nothing_else_is_saved(tmp_path: Path) -> None:
    runs, _ = judged(tmp_path, [0.1, 0.9, 0.2], every="never")

    runs.run()

    assert steps_in(tmp_path) == [2]
    assert Saver(tmp_path).find("best").kind == "best"


def test_the_weights_of_the_best_are_those_that_were_measured(tmp_path: Path) -> None:
    runs, _ = judged(tmp_path, [0.1, 0.9, 0.2])
    weights: dict[int, Any] = {}
    runs.on("eval_end")(lambda state, model: weights.update({state.step: weights_of(model)}))

    runs.run()

    best = load_parts(tmp_path / Saver(tmp_path).find("best").name)
    assert same_bits(best["model"], weights[2])
    assert best["state"]["best"]["value"] == 0.9


def test_the_metric_of_any_of_several_splits_can_decide(tmp_path: Path) -> None:
    values = {"valid": [0.9, 0.1, 0.1], "other": [0.1, 0.2, 0.15]}
    script = [value for pair in zip(*values.values(), strict=True) for value in pair]
    runs = engine(supervised(metrics={"acc": Scripted(script)}), loader(8), epochs=3)
    runs.bus.extend(Evaluate({"valid": loader(4), "other": loader(4)}).handlers())
    save = Save(Saver(tmp_path), best=("other/acc", "max"))
    runs.bus.extend(save.handlers())

    runs.run()

    assert Saver(tmp_path).best() == "step-000000002"


def test_the_evaluation_at_the_end_can_be_the_best(tmp_path: Path) -> None:
    runs = engine(supervised(metrics={"acc": Scripted([0.1, 0.5])}), loader(8), steps=5)
    runs.bus.extend(Evaluate({"valid": loader(4)}, every="3 steps").handlers())
    save = Save(Saver(tmp_path), every="2 steps", best=("valid/acc", "max"))
    runs.bus.extend(save.handlers())

    runs.run()

    assert Saver(tmp_path).best() == "step-000000005"


def by_hand(runs: Engine) -> None:
    """Run a loop that leaves backward and update to the engine."""
    for inputs, targets in runs:
        runs.backward(nn.functional.mse_loss(runs.process.model(inputs), targets))


STYLES: dict[str, Any] = {
    "each epoch": lambda runs, test: runs.bus.extend(test.handlers()),
    "some steps": lambda runs, test: runs.bus.extend(
        Evaluate(test.splits, every="2 steps").handlers()
    ),
    "before saving": lambda runs, test: runs.on("step_end", every=2)(test.run),
    "after saving": lambda runs, test: runs.on("step_end", every=2, priority=50)(test.run),
    "epochs, after saving": lambda runs, test: runs.on("epoch_end", priority=50)(test.run),
    "as an epoch begins": lambda runs, test: runs.on("epoch_begin")(test.run),
    "as a step begins": lambda runs, test: runs.on("step_begin")(test.run),
    "as the run ends": lambda runs, test: runs.on("run_end", priority=50)(test.run),
    "behind all others": lambda runs, test: runs.on("run_end", priority=5000)(test.run),
}


@pytest.mark.parametrize("every", ["1 epoch", "1 step", "never"])
@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_the_best_holds_the_weights_that_were_evaluated_however_that_is_written(
    style: str, is_by_hand: bool, every: str, tmp_path: Path
) -> None:
    model = net()
    process = supervised(model, metrics={"acc": Scripted([0.1, 0.9, *[0.2] * 20])})
    runs = engine(process, loader(8), epochs=6)
    measured: list[Any] = []
    runs.on("eval_end")(lambda model: measured.append(weights_of(model)))
    runs.bus.extend(Save(Saver(tmp_path), every=every, best=("valid/acc", "max")).handlers())
    STYLES[style](runs, Evaluate({"valid": loader(4)}))

    by_hand(runs) if is_by_hand else runs.run()

    saver = Saver(tmp_path)
    best = saver.load("best")
    assert runs.state.best is not None
    assert saver.find("best").step == runs.state.best["step"]
    assert same_bits(best["model"], measured[min(1, len(measured) - 1)])


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_an_evaluation_within_a_step_cannot_be_the_best(is_by_hand: bool, tmp_path: Path) -> None:
    runs = engine(supervised(metrics={"acc": Scripted([0.1, 0.9])}), loader(8), epochs=6)
    runs.bus.extend(Save(Saver(tmp_path), best=("valid/acc", "max")).handlers())
    test = Evaluate({"valid": loader(4)})

    def evaluate_inside() -> None:
        for inputs, targets in runs:
            runs.backward(nn.functional.mse_loss(runs.process.model(inputs), targets))
            test.run(runs)

    if not is_by_hand:
        runs.on("backward_end")(test.run)
    with pytest.raises(InputError, match="within one"):
        evaluate_inside() if is_by_hand else runs.run()


def test_two_evaluations_of_different_periods_may_share_a_run(tmp_path: Path) -> None:
    runs = engine(supervised(metrics={"acc": Scripted([0.5] * 9)}), loader(8), epochs=4)
    runs.bus.extend(Evaluate({"valid": loader(4)}).handlers())
    runs.bus.extend(Evaluate({"test": loader(4)}, every="2 epochs").handlers())
    runs.bus.extend(Save(Saver(tmp_path), best=("test/acc", "max")).handlers())

    runs.run()

    assert Saver(tmp_path).find("best").step == 2


def test_a_best_that_a_killed_run_has_saved_and_not_marked_is_marked(tmp_path: Path) -> None:
    first, _ = judged(tmp_path, [0.1, 0.9])
    first.run()
    (tmp_path / "best.json").unlink()
    second, told = judged(tmp_path, [0.1, 0.9, 0.2])
    second.process.metrics["acc"].values = iter([0.2])  # type: ignore[attr-defined]
    second.resume(Saver(tmp_path))

    second.run()

    assert [(value, step) for _, _, value, step, _ in told] == [(0.9, 2)]
    assert Saver(tmp_path).find("best").step == 2


@pytest.mark.row("A77")
def test_a_resumed_run_still_knows_what_was_best(tmp_path: Path) -> None:
    first, _ = judged(tmp_path, [0.1, 0.9])
    first.run()
    second, told = judged(tmp_path, [0.5, 0.95, 0.7, 0.8])
    second.process.metrics["acc"].values = iter([0.5, 0.95])  # type: ignore[attr-defined]
    restore(second, load_parts(tmp_path / Saver(tmp_path).find().name))

    second.run()

    assert [(value, step) for _, _, value, step, _ in told] == [(0.95, 4)]
    assert Saver(tmp_path).best() == "step-000000004"


def test_another_criterion_starts_anew(tmp_path: Path) -> None:
    first, _ = judged(tmp_path, [0.9])
    first.run()
    second, told = judged(tmp_path, [0.9, 0.8], mode="min")
    second.process.metrics["acc"].values = iter([0.95])  # type: ignore[attr-defined]
    restore(second, load_parts(tmp_path / Saver(tmp_path).find().name))

    second.run()

    assert [(mode, value, step) for _, mode, value, step, _ in told] == [("min", 0.95, 2)]


def test_a_checkpoint_that_is_the_best_is_told_to_be(tmp_path: Path) -> None:
    runs, _ = judged(tmp_path, [0.1, 0.9, 0.2])

    runs.run()

    facts = [fact for fact in runs.recorder.facts if isinstance(fact, Saved)]  # type: ignore[attr-defined]
    assert [(fact.step, fact.best) for fact in facts] == [(1, True), (2, True), (3, False)]


@pytest.mark.row("E42")
@pytest.mark.parametrize(
    ("metric", "fix"),
    [("valid/ac", "did you mean `valid/acc`?"), ("vaild/acc", "valid/acc"), ("x", "there are: ")],
)
def test_a_metric_that_is_not_measured_is_named_at_the_first_evaluation(
    metric: str, fix: str, tmp_path: Path
) -> None:
    runs, _ = judged(tmp_path, [0.1, 0.2], best=(metric, "max"))

    with pytest.raises(InputError, match=f"best names '{metric}'") as caught:
        runs.run()

    assert fix in caught.value.fix
    assert runs.state.step == 1


# ------------------------------------------------------------------------------------------------------------- going on


def hard(folder: Path, every: str) -> Engine:
    model = hard_net()
    backward = OptimizerStep(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        schedule=WarmupCosine(warmup_steps=2),
        clip_norm=1.0,
    )
    process = supervised(model, backward=backward)
    runs = engine(process, Loader(Noisy(), batch_size=8, shuffle=True, micro_batch_size=4))
    runs.bus.extend(Evaluate({"valid": loader(4)}).handlers())
    save = Save(Saver(folder, keep=99), every=every, best=("valid/loss", "min"))
    runs.bus.extend(save.handlers())
    return runs


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_going_on_from_the_files_of_any_step_ends_with_the_same_bits(
    step: int, tmp_path: Path
) -> None:
    whole = hard(tmp_path / "whole", "1 step")
    whole.run()
    resumed = hard(tmp_path / "resumed", "1 step")
    restore(resumed, load_parts(tmp_path / "whole" / f"step-{step:09d}"))

    resumed.run()

    assert same_bits(capture_state(resumed), capture_state(whole))
    if step < 6:
        names = [Saver(tmp_path / name).find("latest").digest for name in ("whole", "resumed")]
        assert names[0] == names[1]


class Graph(nn.Module):
    """Graph of words: a sparse adjacency matrix, and an embedding with sparse gradients."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        torch.manual_seed(0)
        edges = (torch.rand(20, 20) < 0.2).float()
        self.register_buffer("edges", edges.to_sparse(layout=layout))
        self.embedding = nn.Embedding(20, 4, sparse=True)
        self.head = nn.Linear(4, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(
            self.embedding(words) + torch.sparse.mm(self.edges, torch.ones(20, 4))[words]
        )


def graph(folder: Path, layout: torch.layout) -> Engine:
    model = Graph(layout)
    data = TensorDataset(torch.arange(20), points(20).tensors[1])
    runs = engine(
        supervised(model), Loader(data, batch_size=8, shuffle=True)
    )  # momentum: of what is sparse too
    runs.bus.extend(Save(Saver(folder, keep=99), every="1 step").handlers())
    return runs


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_model_and_an_optimizer_with_sparse_tensors_go_on_to_the_same_bits(
    layout: torch.layout, tmp_path: Path
) -> None:
    whole = graph(tmp_path / "whole", layout)
    whole.run()
    resumed = graph(tmp_path / "resumed", layout)
    restore(resumed, load_parts(tmp_path / "whole" / "step-000000002"))

    resumed.run()

    momentum = whole.process.backward.optimizers[""].state[whole.process.model.embedding.weight][
        "momentum_buffer"
    ]
    assert momentum.is_sparse
    assert digest_state(capture_state(resumed)) == digest_state(capture_state(whole))


def test_a_checkpoint_of_another_model_says_what_does_not_fit(tmp_path: Path) -> None:
    runs, _ = saving(tmp_path)
    runs.run()
    other = engine(supervised(hard_net()))

    with pytest.raises(CheckpointError, match=r"does not fit the model[\s\S]*1.running_mean"):
        restore(other, load_parts(tmp_path / Saver(tmp_path).find().name))


# ------------------------------------------------------------------------------------------------------- when it fails


def test_a_save_that_fails_is_reported_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    runs, recorder = saving(tmp_path / "file", every="1 epoch", epochs=2)

    state = runs.run()

    assert state.step == 6
    warned = [fact for fact in recorder.facts if isinstance(fact, Warned)]
    assert {fact.step for fact in warned} == {3, 6}
    assert all("was not written" in fact.message for fact in warned)
    assert not [fact for fact in recorder.facts if isinstance(fact, Saved)]


def test_a_best_that_cannot_be_marked_is_reported_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "best.json").mkdir()
    runs, told = judged(tmp_path, [0.1, 0.2])

    state = runs.run()

    assert state.step == 2
    messages = [fact.message for fact in runs.recorder.facts if isinstance(fact, Warned)]  # type: ignore[attr-defined]
    assert [message.split(":")[0] for message in messages] == [
        "step-000000001 was not marked as the best",
        "step-000000002 was not marked as the best",
    ]
    assert told == []


def test_what_cannot_be_kept_is_named_before_the_first_step(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> object:
            return object()

        def set_extra_state(self, state: object) -> None: ...

    torch.manual_seed(0)
    runs, _ = saving(tmp_path, process=supervised(nn.Sequential(Odd(4, 2))))
    told = heard(runs)

    with pytest.raises(CheckpointError, match="_extra_state") as caught:
        runs.run()
    assert caught.value.where == "model.0._extra_state"

    assert told == ["run_begin", "exception"]


# ----------------------------------------------------------------------------------------------------------- not finite


def spoilt(batches: int = 3) -> Iterable[Any]:
    """The last of the batches holds a NaN."""
    out = [
        tuple(part.clone() for part in points(8, seed=number).tensors) for number in range(batches)
    ]
    out[-1][0][0, 0] = math.nan
    return out


def failing(folder: Path, model: nn.Module, **given: Any) -> tuple[Engine, MemoryRecorder]:
    recorder = MemoryRecorder()
    runs = engine(supervised(model), spoilt(), recorder=recorder)
    runs.bus.extend(Save(Saver(folder, keep=1), **given).handlers())
    return runs, recorder


@pytest.mark.parametrize("every", ["1 epoch", "2 steps", "1 step"])
def test_a_non_finite_stop_leaves_a_keypoint_of_the_state_before_the_step(
    every: str, tmp_path: Path
) -> None:
    runs, _ = failing(tmp_path, net(), every=every)
    good = engine(supervised(net()), spoilt(), steps=2)
    good.run()

    with pytest.raises(NonFiniteError):
        runs.run()

    saver = Saver(tmp_path, keep=1)
    manifest = saver.find("latest")
    assert (manifest.step, manifest.kind) == (2, "keypoint")
    assert same_bits(load_parts(tmp_path / manifest.name), capture_state(good))
    for step in (5, 6, 7):
        saver.save({"model": {}}, Where(step=step))
    assert steps_in(tmp_path) == [2, 7]


def test_who_saves_never_gets_no_keypoint_either(tmp_path: Path) -> None:
    runs, _ = failing(tmp_path, net(), every="never")

    with pytest.raises(NonFiniteError):
        runs.run()

    assert steps_in(tmp_path) == []


def test_running_statistics_that_the_step_spoilt_are_kept_as_they_were_before_it(
    tmp_path: Path,
) -> None:
    runs, recorder = failing(tmp_path, hard_net(), every="1 epoch")

    with pytest.raises(NonFiniteError):
        runs.run()

    assert steps_in(tmp_path) == [2]
    assert not [fact for fact in recorder.facts if isinstance(fact, Warned)]
    assert all(
        each.isfinite().all() for each in load_parts(tmp_path / "step-000000002")["model"].values()
    )


def test_running_statistics_that_were_spoilt_before_are_not_kept_and_that_is_said(
    tmp_path: Path,
) -> None:
    model = hard_net()
    runs, recorder = failing(tmp_path, model, every="1 epoch")
    runs.on("step_end", every=2)(lambda: nn.init.constant_(model[1].running_mean, math.nan))

    with pytest.raises(NonFiniteError):
        runs.run()

    assert steps_in(tmp_path) == []
    (warned,) = [fact for fact in recorder.facts if isinstance(fact, Warned)]
    assert warned.message == "No checkpoint of step 2 was written: 1.running_mean is not finite."


def test_weights_that_are_broken_are_not_kept_but_an_infinite_buffer_is(tmp_path: Path) -> None:
    def masked() -> nn.Module:
        model = net()
        model.register_buffer("mask", torch.full((2,), -math.inf))
        return model

    for name, value in {"broken": math.inf, "whole": 0.5}.items():
        model = masked()
        runs, _ = failing(tmp_path / name, model)
        runs.on("step_end", every=2)(lambda m=model, v=value: nn.init.constant_(m[2].bias, v))
        with pytest.raises(NonFiniteError):
            runs.run()

    assert steps_in(tmp_path / "broken") == []
    assert steps_in(tmp_path / "whole") == [2]


class Tally:
    """A handler with a state: the steps at which it was called."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.steps: list[int] = []
        self.fails_at = fails_at

    def note(self, state: Any) -> None:
        if state.step == self.fails_at:
            self.fails_at = 0
            raise ValueError("no network")
        self.steps.append(state.step)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = list(state["steps"])


@pytest.mark.parametrize(
    ("event", "at", "seen"), [("epoch_end", 3, [3, 6]), ("step_end", 4, [1, 2, 3, 4, 5, 6])]
)
@pytest.mark.parametrize("priority", [-5, 5, 50])
def test_a_handler_that_fails_between_steps_is_called_again_by_the_resumed_run(
    event: str, at: int, seen: list[int], priority: int, tmp_path: Path
) -> None:
    def run(*, fails_at: int = 0) -> list[list[int]]:
        runs, _ = saving(tmp_path, every="2 steps")
        tallies = [Tally(), Tally(fails_at=fails_at), Tally()]
        for tally, place in zip(tallies, (-10, priority, 60), strict=True):
            runs.on(event, priority=place)(tally.note)
        if not fails_at:
            runs.resume(Saver(tmp_path))
            runs.run()
        else:
            with pytest.raises(ValueError, match="no network"):
                runs.run()
        return [tally.steps for tally in tallies]

    run(fails_at=at)

    assert steps_in(tmp_path) == [2]
    assert run() == [seen] * 3


def test_a_handler_with_a_state_that_comes_after_saving_loses_no_call(tmp_path: Path) -> None:
    def run(*, stops: bool) -> list[int]:
        runs, _ = saving(tmp_path)
        tally = Tally()
        runs.on("epoch_end", priority=50)(tally.note)
        if stops:
            runs.on("epoch_begin")(lambda state: stop() if state.step else None)
        runs.resume(Saver(tmp_path))
        runs.run()
        return tally.steps

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stops=True)

    assert run(stops=False) == [3, 6]
