"""Output pipes: they change, collect and save an evaluation's outputs; training calls none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.core.errors import InputError, RecordError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Accuracy,
    Collect,
    Engine,
    Evaluate,
    Evaluation,
    Loader,
    SaveOutputs,
    Supervised,
    evaluate,
)
from assay.engine.metrics.outputs import Pipes, as_plain
from engine.callbacks.test_evaluate import classes
from engine.toys import engine, hard_net, net, same_bits


class Scores(nn.Module):
    """Gives its scores class by class, (classes, batch): no metric of ours reads that."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.inner(inputs)).T


class Turned(Supervised):
    def forward_step(self, batch: Any) -> Any:
        inputs, target = batch
        scores = self.model(inputs)
        return nn.functional.cross_entropy(scores.T, target), {
            "by_class": scores.detach(),
            "truth": target,
        }


class Counting:
    """A pipe that counts its calls."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.calls = 0

    def __call__(self, output: Any) -> Any:
        self.calls += 1
        return self.make(output)


def plain(model: nn.Module, **given: Any) -> Supervised:
    return Supervised(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), **given
    )


def turned(model: nn.Module, **given: Any) -> Turned:
    return Turned(Scores(model), None, torch.optim.SGD(model.parameters(), lr=0.1), **given)


@pytest.mark.row("A74")
def test_two_models_with_different_outputs_share_a_metric_through_a_pipe_each_and_training_calls_none() -> (
    None
):
    same = Counting(lambda output: output)
    turn = Counting(lambda output: {"pred": output["by_class"].T, "target": output["truth"]})
    metric, found = Accuracy(), []

    for process, pipe in ((plain(net()), same), (turned(net()), turn)):
        runs = engine(process, Loader(classes(20), batch_size=8), epochs=2)
        runs.bus.extend(
            Evaluate(
                {"valid": Loader(classes(10), batch_size=4)}, pipes=[pipe], metrics={"acc": metric}
            ).handlers()
        )
        calls: list[int] = []
        runs.on("step_end")(lambda calls=calls, pipe=pipe: calls.append(pipe.calls))
        runs.run()
        found.append(runs.state.metrics["valid/acc"])
        assert calls == [0, 0, 0, 3, 3, 3]
        assert pipe.calls == 6

    assert found[0] == found[1]


def test_pipes_are_called_in_their_order_and_the_loss_is_that_of_before() -> None:
    process = plain(net(), metrics={"acc": Accuracy()})
    told: list[str] = []

    def first(output: Any) -> Any:
        told.append("first")
        return {**output, "pred": -output["pred"], "loss": None}

    def second(output: Any) -> Any:
        told.append("second")
        return {**output, "pred": -output["pred"]}

    given_pipes, _ = evaluate(
        process, Loader(classes(10), batch_size=5), split="valid", pipes=[first, second]
    )
    without, _ = evaluate(process, Loader(classes(10), batch_size=5), split="valid")

    assert told == ["first", "second"] * 2
    assert given_pipes == without


def test_what_a_pipe_draws_and_does_changes_no_bit_of_the_training() -> None:
    def noisy(output: Any) -> Any:
        return {**output, "pred": output["pred"] + torch.rand(()) + float(np.random.rand())}

    models = []
    for pipes in ([], [noisy, Collect(), SaveOutputs()]):
        runs = engine(plain(hard_net()), Loader(classes(20), batch_size=8, shuffle=True), epochs=2)
        evaluation = Evaluate(
            {"valid": Loader(classes(10), batch_size=4)}, every="1 step", pipes=pipes
        )
        runs.bus.extend(evaluation.handlers())
        runs.run()
        models.append(runs.process.model.state_dict())

    assert same_bits(*models)


class Told:
    """Pipe that only listens to the begin and end of a split, and measures something at its end."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin_eval(self, evaluation: Evaluation) -> None:
        self.told.append(("begin", evaluation.split, evaluation.step, evaluation.samples))
        evaluation.data["mine"] = []

    def end_eval(self, evaluation: Evaluation) -> Mapping[str, Any]:
        self.told.append(
            ("end", evaluation.split, evaluation.samples, dict(evaluation.metrics), evaluation.data)
        )
        return {"double": 2 * evaluation.metrics[f"{evaluation.split}/acc"], "pair": [1, 2]}


def test_a_pipe_hears_of_the_beginning_and_the_end_and_what_it_measures_becomes_metrics() -> None:
    pipe, recorder = Told(), MemoryRecorder()
    runs = engine(
        plain(net(), metrics={"acc": Accuracy()}),
        Loader(classes(20), batch_size=8),
        steps=3,
        recorder=recorder,
    )
    runs.bus.extend(Evaluate({"valid": Loader(classes(10), batch_size=4)}, pipes=[pipe]).handlers())

    runs.run()

    begin, end = pipe.told
    assert begin == ("begin", "valid", 3, 0)
    assert (
        end[:3] == ("end", "valid", 10)
        and end[3].keys() == {"valid/acc", "valid/loss"}
        and end[4] == {"mine": []}
    )
    assert runs.state.metrics["valid/double"] == 2 * runs.state.metrics["valid/acc"]
    assert recorder.curve("valid/pair/1") == [(3, 2.0)]


def test_a_pipe_may_not_measure_under_a_name_that_is_taken() -> None:
    class Again:
        def end_eval(self, evaluation: Evaluation) -> Any:
            return {"loss": 0.0}

    with pytest.raises(InputError, match="'valid/loss', which is there already"):
        evaluate(plain(net()), Loader(classes(10), batch_size=5), split="valid", pipes=[Again()])


def test_what_is_no_pipe_and_what_loses_the_output_is_refused() -> None:
    def lost(output: Any) -> None:
        pass

    with pytest.raises(InputError, match="Pipe 1 of the evaluation is a int"):
        Pipes([lost, 3])
    with pytest.raises(InputError, match="The pipe lost returned nothing"):
        evaluate(plain(net()), Loader(classes(10), batch_size=5), split="valid", pipes=[lost])


def test_two_metrics_of_one_name_are_refused() -> None:
    process = plain(net(), metrics={"acc": Accuracy()})
    with pytest.raises(InputError, match="Two metrics are called 'acc'"):
        evaluate(
            process, Loader(classes(10), batch_size=5), split="valid", metrics={"acc": Accuracy()}
        )


# ------------------------------------------------------------------------------------------------------------- collect


@pytest.mark.row("A75")
@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 99])
def test_after_an_evaluation_as_much_is_collected_as_the_split_has_samples(batch_size: int) -> None:
    collect, model = Collect(), net()
    inputs, targets = classes(10).tensors

    for _ in range(2):
        evaluate(
            plain(model), Loader(classes(10), batch_size=batch_size), split="valid", pipes=[collect]
        )

        assert len(collect) == 10
        assert torch.equal(collect["target"], targets)
        assert torch.allclose(collect["pred"], model(inputs).detach())
        assert [sample["target"].item() for sample in collect.items()] == targets.tolist()


def test_a_later_pipe_scores_what_an_earlier_one_has_collected() -> None:
    class Best:
        def end_eval(self, evaluation: Evaluation) -> Any:
            return {"best": evaluation.data["outputs"]["pred"].max()}

    model = net()
    results, _ = evaluate(
        plain(model),
        Loader(classes(10), batch_size=4),
        split="valid",
        pipes=[Collect(["pred"]), Best()],
    )

    assert results["valid/best"] == pytest.approx(
        model(classes(10).tensors[0]).max().item(), abs=1e-6
    )


def test_what_differs_in_shape_or_is_no_tensor_is_collected_as_a_list() -> None:
    collect = Collect()
    pipes = Pipes([collect])
    evaluation = Evaluation(split="valid", size=2)
    pipes.begin(evaluation)
    one = torch.zeros(2, 3)
    pipes({"words": one, "text": ["a", "b"], "loss": torch.zeros(2), "lone": torch.tensor(1.0)})
    one += 1  # a batch may be written into when the next one is made
    pipes({"words": torch.zeros(2, 5), "text": ("c", "d")})

    assert [tuple(words.shape) for words in collect["words"]] == [(3,), (3,), (5,), (5,)]
    assert collect["words"][0].sum() == 0
    assert collect["text"] == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="no field 'txt'") as caught:
        collect["txt"]
    assert "did you mean `text`?" in caught.value.fix
    with pytest.raises(InputError, match="no field 'loss'"):
        collect["loss"]


@pytest.mark.parametrize(
    ("pipe", "said"),
    [
        (Collect(["pred", "prd"]), "Collect: the output has no part 'prd'"),
        (
            SaveOutputs(["loss"]),
            "SaveOutputs: 'loss' does not hold one value for each of the 4 samples",
        ),
    ],
)
def test_a_field_that_is_not_there_or_not_about_samples_is_named(pipe: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate(plain(net()), Loader(classes(10), batch_size=4), split="valid", pipes=[pipe])


def test_an_output_without_anything_about_samples_is_told() -> None:
    pipes = Pipes([SaveOutputs()])
    pipes.begin(Evaluation(split="valid", size=3))
    with pytest.raises(InputError, match="SaveOutputs finds nothing"):
        pipes({"loss": torch.zeros(3), "mean": torch.tensor(1.0)})


# ---------------------------------------------------------------------------------------------------------------- save


def lines_of(recorder: MemoryRecorder, name: str) -> list[Any]:
    return [json.loads(line) for line in recorder.artifacts[name].decode().splitlines()]


@pytest.mark.row("A78")
def test_outputs_of_a_step_are_one_line_for_each_sample_whatever_they_are_made_of() -> None:
    def mixed(output: Any) -> Any:
        pred = output["pred"]
        return {
            "pred": pred,
            "array": pred.double().numpy(),
            "number": [np.float32(0.5), np.int64(3)],
            "t": ["x", "y"],
        }

    recorder = MemoryRecorder()
    runs = engine(plain(net()), Loader(classes(20), batch_size=8), steps=100, recorder=recorder)
    given_pipes = [mixed, SaveOutputs()]
    data = {"valid": Loader(classes(10), batch_size=2), "other": Loader(classes(4), batch_size=2)}
    runs.bus.extend(Evaluate(data, every="50 steps", pipes=given_pipes).handlers())

    runs.run()

    names = [
        f"{split}/outputs_step{step}.jsonl" for step in (50, 100) for split in ("valid", "other")
    ]
    assert list(recorder.artifacts) == names
    lines = lines_of(recorder, "valid/outputs_step100.jsonl")
    assert [(line["step"], line["split"], line["index"]) for line in lines] == [
        (100, "valid", i) for i in range(10)
    ]
    assert lines[3].keys() == {"step", "split", "index", "pred", "array", "number", "t"}
    wanted = runs.process.model(classes(10).tensors[0])[3]
    assert lines[3]["pred"] == lines[3]["array"] == pytest.approx(wanted.tolist(), abs=1e-6)
    assert (lines[2]["number"], lines[3]["number"], lines[3]["t"]) == (0.5, 3, "y")


@pytest.mark.parametrize("limit", [1, 4, 5, 10, 99])
def test_at_most_the_first_samples_are_saved(limit: int) -> None:
    recorder = MemoryRecorder()
    pipe = SaveOutputs(["target"], limit=limit, name="examples")

    evaluate(
        plain(net()),
        Loader(classes(10), batch_size=4),
        split="v",
        step=7,
        pipes=[pipe],
        recorder=recorder,
    )

    lines = lines_of(recorder, "v/examples_step7.jsonl")
    assert [line["target"] for line in lines] == classes(10).tensors[1][:limit].tolist()


def test_outputs_that_cannot_be_kept_are_a_warning_and_never_end_the_training() -> None:
    class Full(MemoryRecorder):
        def artifact(self, source: bytes, name: str) -> str:
            raise RecordError("the disk is full")

    recorder = Full()
    evaluate(
        plain(net()),
        Loader(classes(4), batch_size=4),
        split="v",
        pipes=[SaveOutputs()],
        recorder=recorder,
    )

    assert recorder.facts == [
        Warned(message="v/outputs_step0.jsonl was not kept: the disk is full", step=0)
    ]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        SaveOutputs(limit=0)


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor([1 + 2j]), [[1.0, 2.0]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.bool_(True), True),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (b"ab\xff", "ab\\xff"),
        (Color.RED, "red"),
        (Path("a/b"), "a/b"),
        ({1: (None, True)}, {"1": [None, True]}),
        ({"b", "a"}, ["a", "b"]),
    ],
)
def test_values_become_what_json_knows(value: Any, plain: Any) -> None:
    assert as_plain(value, "x") == plain
    json.dumps(as_plain(value, "x"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner),
        max_leaves=9,
    )
)
def test_what_json_knows_stays_what_it_is(value: Any) -> None:
    assert as_plain(value, "x") == value


def test_what_cannot_be_written_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"'x.a' holds a object"):
        as_plain({"a": [1, object()]}, "x")


# ----------------------------------------------------------------------------------------------------------- inference


def test_inference_gives_the_outputs_to_the_pipes_and_measures_nothing() -> None:
    model, recorder = net(), MemoryRecorder()
    inputs, _ = classes(10).tensors
    process = Supervised(model, None, metrics={"acc": Accuracy()})

    results, samples = evaluate(
        process,
        inputs.split(4),
        split="infer",
        step=3,
        pipes=[SaveOutputs()],
        recorder=recorder,
        infer=True,
    )

    assert (results, samples) == ({}, 10)
    saved = [line["pred"] for line in lines_of(recorder, "infer/outputs_step3.jsonl")]
    assert torch.allclose(torch.tensor(saved), model(inputs))


def test_a_process_without_a_criterion_is_evaluated_and_refuses_to_train() -> None:
    model = net()
    process = Supervised(
        model, None, torch.optim.SGD(model.parameters(), lr=0.1), metrics={"acc": Accuracy()}
    )

    results, _ = evaluate(process, Loader(classes(10), batch_size=4), split="valid")

    assert results.keys() == {"valid/acc"}
    with pytest.raises(InputError, match="There is no criterion"):
        Engine(process, Loader(classes(10), batch_size=4)).run()


def test_a_process_that_cannot_infer_says_what_to_write() -> None:
    with pytest.raises(InputError, match="Turned cannot infer: it has no inference_step"):
        class_of = type("Turned", (Turned,), {"inference_step": Turned.__mro__[2].inference_step})
        model = net()
        evaluate(class_of(Scores(model), None), [torch.zeros(1, 4)], split="infer", infer=True)
