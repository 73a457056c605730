"""Classes that the README of alchemy names, in projects as its users would write them."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path

import pytest
import torch

from assay.build import Context
from assay.compat.alchemy.accelerate import Accelerator
from assay.compat.alchemy.model import AlchemyModel, NoCriterionError, make_process
from assay.compat.alchemy.optional_config import filter_optional_cfg
from assay.compat.alchemy.pipelines import DataPipeline, EvalPipeline, OutputPipeline
from assay.compat.alchemy.runner import run
from assay.compat.alchemy.symbols import sym_tbl
from assay.compat.alchemy.task import AlchemyTask
from assay.compat.names import UnmappedNameError, install
from assay.config import loads, plain
from assay.config.user_modules import UserModules
from assay.engine import (
    Collect,
    Engine,
    Evaluate,
    Loader,
    OptimizerStep,
    Save,
    Saver,
    Supervised,
    chain,
)
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.metrics.outputs import Evaluation
from engine.toys import net, points, weights_of

CRITERION = torch.nn.CrossEntropyLoss


class Wrapped(AlchemyModel):
    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self._model = net()

    def forward(self, batch, needs_loss, requires_grad):  # type: ignore[no-untyped-def]
        outputs = {"pred": self.model(batch[0]), "target": batch[1]}
        if needs_loss:
            loss = self.criterion(outputs["pred"], outputs["target"])
            if requires_grad:
                self.backward(loss)
            outputs["loss"] = loss.item()
        return outputs


def train(process: object, **given: int) -> None:
    Engine(process, Loader(points(32), batch_size=8, **given), epochs=2).run()


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.row("A91")
def test_a_model_with_its_own_loss_and_update_learns_the_bits_of_one_with_a_process() -> None:
    wrapped = Wrapped(criterion_cfg={"type": "torch.nn.CrossEntropyLoss"})
    plain_model = net()
    plain_model.load_state_dict(wrapped.model.state_dict())

    train(make_process(wrapped, backward=OptimizerStep(sgd(wrapped))))
    train(Supervised(plain_model, CRITERION(), sgd(plain_model)))

    learned = weights_of(wrapped.model)
    assert all(torch.equal(learned[k], v) for k, v in weights_of(plain_model).items())


@pytest.mark.row("A91")
def test_a_config_without_criterion_evaluates_and_tells_who_asks_for_a_loss() -> None:
    wrapped = Wrapped()
    process = make_process(wrapped)

    output = process.validation_step(next(iter(Loader(points(8), batch_size=8))))

    assert output.keys() == {"pred", "target"}
    with pytest.raises(NoCriterionError, match="no criterion"):
        wrapped.forward([torch.zeros(1, 4), torch.zeros(1)], needs_loss=True, requires_grad=False)


@pytest.mark.row("A92")
def test_the_default_handler_accumulates_to_the_step_of_one_batch() -> None:
    from assay.compat.alchemy.model import DefaultBackwardHandler

    learned = []
    for period in (1, 4):
        torch.manual_seed(0)
        wrapped = Wrapped(criterion_cfg=CRITERION())
        context = Context()
        context.set("optimizer", sgd(wrapped))
        with context.use():
            handler = DefaultBackwardHandler()
        train(make_process(wrapped, backward=handler), accumulate=period)
        learned.append(weights_of(wrapped))

    for name, value in learned[0].items():
        assert torch.allclose(value, learned[1][name], atol=1e-6)


@pytest.mark.row("A92")
def test_places_of_a_handler_and_of_timed_pipelines_are_sections_here() -> None:
    config = loads(
        """
plugins = [{ type = "alchemy.plugins.BasicSetup" }]
[model]
type = "own.Tagger"
backward_cfg = { type = "alchemy.DefaultBackwardHandler", period = 4, clip_norm = 1.0 }
outputpipes = [{ type = "own.Argmax" }]
[task]
evalpipes = [{ type = "own.Score" }]
[sched]
type = "own.Decay"
end_epoch = [{ type = "own.EvalEpoch" }]
begin_step_pipelines = [{ type = "own.Look" }]
"""
    )

    root = plain(config.root)

    assert root["backward"] == {"type": "alchemy.DefaultBackwardHandler"}
    assert root["train"] == {"accumulate": 4, "clip_norm": 1.0}
    assert root["process"] == {"type": "assay.compat.alchemy.model.make_process"}
    assert [each["type"] for each in root["evaluate"]["pipes"]] == ["own.Argmax", "own.Score"]
    assert root["schedule"] == {"type": "own.Decay"}
    assert root["plugins"][1] == {
        "type": "assay.engine.Pipelines",
        "end_epoch": [{"type": "own.EvalEpoch"}],
        "begin_step": [{"type": "own.Look"}],
    }


class Doubled(DataPipeline):
    def __iter__(self):  # type: ignore[no-untyped-def]
        for item in self.datapipe:
            yield torch.tensor([2.0 * item])


class Named(OutputPipeline):
    def __call__(self, **outputs):  # type: ignore[no-untyped-def]
        return {**outputs, "target": outputs["target"].long()}


class Counted(EvalPipeline):
    def begin_eval(self):  # type: ignore[no-untyped-def]
        self.seen = 0

    def __call__(self, output):  # type: ignore[no-untyped-def]
        self.seen += len(output["target"])
        return output

    def end_eval(self, **kwargs):  # type: ignore[no-untyped-def]
        return {"seen": self.seen}


class Scored(EvalPipeline):
    def __call__(self, **kwargs):  # type: ignore[no-untyped-def]
        return {**kwargs, "metrics": {"half": kwargs["evaluation"].metrics["valid/seen"] / 2}}


class Judged(EvalPipeline):
    def __call__(self, **kwargs):  # type: ignore[no-untyped-def]
        return {**kwargs, "quarter": kwargs["metrics"]["half"] / 2}


@pytest.mark.row("A93")
def test_pipes_of_an_evaluation_in_the_form_of_the_text_measure_what_they_return() -> None:
    model = net()
    process = Supervised(model, CRITERION(), sgd(model))
    pipes = [Named(), Counted(), Scored(), Judged()]
    evaluate = Evaluate({"valid": Loader(points(20), batch_size=8)}, pipes=pipes)
    engine = Engine(process, Loader(points(8), batch_size=8), epochs=1)
    engine.bus.extend(evaluate.handlers())

    state = engine.run()

    assert (state.metrics["valid/seen"], state.metrics["valid/half"]) == (20, 10)
    assert state.metrics["valid/quarter"] == 5


@pytest.mark.row("A93")
def test_a_stage_with_a_datapipe_is_iterated_anew_in_each_epoch() -> None:
    from assay.engine.data import streams

    stream = chain([[1, 2, 3], Doubled(), streams.Batch(batch_size=2)])
    loader = StreamLoader(stream, seed=0, split="train")

    epochs = [[batch.flatten().tolist() for batch in loader] for _ in range(2)]

    assert epochs == [[[2.0, 4.0], [6.0]]] * 2


@pytest.mark.row("A96")
def test_optional_arguments_that_a_config_lacks_are_told_with_their_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def optimizer(params: object, lr: float = 0.1, eps: float = 1e-8) -> None: ...

    with caplog.at_level(logging.WARNING, "assay"):
        given = filter_optional_cfg(optimizer, {"lr": 0.5, "type": "x"})

    assert given == {"lr": 0.5} == filter_optional_cfg({"lr": 0.5}, ["lr"])
    assert "`eps` is not in the config: the default 1e-08 counts" in caplog.text


@pytest.mark.row("A96")
def test_reset_frees_what_the_table_held() -> None:
    model = net()
    kept = weakref.ref(model)
    sym_tbl().set("case_study", model)
    del model

    sym_tbl().reset()
    gc.collect()

    assert kept() is None


@pytest.mark.row("A96")
def test_an_accelerator_of_a_lone_process_leaves_everything_as_it_is() -> None:
    accelerator, model = Accelerator(), net()

    assert accelerator.is_main_process and accelerator.is_local_main_process
    assert accelerator.prepare(model, 1) == (model, 1)
    assert accelerator.unwrap_model(model) is model


@pytest.mark.row("A97", "A41")
def test_a_config_that_fails_is_an_exception_in_the_list_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "own_data.py").write_text(
        "import torch\n\n\ndef sixteen():\n    return [(torch.ones(4) * i, i % 2) for i in range(16)]\n",
        encoding="utf-8",
    )
    good = plain(
        loads(
            """
plugins = [{ type = "alchemy.plugins.Seeding", seed = 1 }]
[model]
type = "torch.nn.Linear"
in_features = 4
out_features = 2
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
[optim]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 1
[task.datasets.train]
source = { type = "own_data.sixteen" }
batch_size = 8
"""
        ).unaliased
    )
    bad = {**good, "model": {**good["model"], "in_features": 5}}

    first, failed, last = run([good, bad, good], device=-1, no_file=True)

    assert (first.status, last.status) == ("finished", "finished")
    assert isinstance(failed, Exception) and "shapes" in str(failed)


class Decoded(OutputPipeline):
    def __call__(self, pred, target, **kwargs):  # type: ignore[no-untyped-def]
        return {**kwargs, "guess": pred.argmax(1), "gold": target.argmax(1)}


class Accuracy(EvalPipeline):
    def __call__(self, outputs, **kwargs):  # type: ignore[no-untyped-def]
        right = (outputs["guess"] == outputs["gold"]).float().mean()
        return {**kwargs, "metrics": {"acc": float(right)}}


class LogBest(EvalPipeline):
    def __init__(self) -> None:
        self.best = -1.0
        self.calls = 0

    def __call__(self, metrics, **kwargs):  # type: ignore[no-untyped-def]
        self.calls += 1
        self.best = max(self.best, metrics["acc"])
        return {**kwargs, "metrics": metrics}


def judging_engine(epochs: int, best: LogBest) -> Engine:
    model = net()
    pipes = [Decoded(), Collect(), Accuracy(), best]
    batches = Loader(points(16), batch_size=8)
    engine = Engine(Supervised(model, CRITERION(), sgd(model)), batches, epochs=epochs)
    evaluate = Evaluate({"dev": Loader(points(20), batch_size=8)}, pipes=pipes)
    engine.bus.extend(evaluate.handlers())
    return engine


@pytest.mark.row("A93")
def test_pipes_name_the_fields_and_the_collected_outputs_that_they_take() -> None:
    state = judging_engine(1, LogBest()).run()

    assert 0 <= state.metrics["dev/acc"] <= 1


def test_the_best_value_that_a_pipe_remembers_is_that_of_before_after_a_resume(
    tmp_path: Path,
) -> None:
    saver, before, after = Saver(tmp_path), LogBest(), LogBest()
    engine = judging_engine(2, before)
    engine.bus.extend(Save(saver).handlers())
    engine.run()

    resumed = judging_engine(3, after)
    resumed.resume(saver)

    assert (after.calls, after.best) == (before.calls, before.best) == (2, before.best)


class ClsTask(AlchemyTask):
    def begin_eval(self, split, **kwargs):  # type: ignore[no-untyped-def]
        super().begin_eval(split)
        self.begun = split


def test_a_task_may_pass_the_split_on_to_its_base_class() -> None:
    task = ClsTask()

    task.pipes[0].begin_eval(Evaluation(split="dev"))

    assert task.begun == "dev"


@pytest.mark.parametrize("message", ["acc {:.2f} of {}", "acc %.2f of %s"])
def test_the_logger_of_loguru_fills_braces_and_percent_signs(
    caplog: pytest.LogCaptureFixture, message: str
) -> None:
    install("alchemy")
    from loguru import logger  # type: ignore[import-not-found]

    with caplog.at_level(logging.INFO, "assay"):
        logger.info(message, 0.5, "dev")
        logger.success("{}")

    assert [each.getMessage() for each in caplog.records] == ["acc 0.50 of dev", "{}"]
    assert {each.filename for each in caplog.records} == {Path(__file__).name}
    with pytest.raises(UnmappedNameError, match="logger"):
        logger.add("out.log")


MODEL = """
from alchemy import *


class Base(Registrable):
    pass


@Base.register("Pad")
class Pad(Base):
    pass


@AlchemyModel.register("Tagger")
class Tagger(AlchemyModel):
    def __init__(self, dim, model_path="", **kwargs):
        super().__init__(**kwargs)


@AlchemyModel.register("Other")
class Other(AlchemyModel):
    pass
"""


def test_a_class_below_an_own_base_has_its_short_name_with_any_form_of_import(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")

    assert {"Pad", "Tagger", "Other"} <= UserModules([tmp_path]).registered.keys()


def test_a_model_that_reads_its_weights_itself_keeps_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "best").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    text = 'runner = "alchemy.runner.Tester"\nmodel = { type = "NAME", model_path = "best" }'

    own = plain(loads(text.replace("NAME", "Tagger")).written)
    other = plain(loads(text.replace("NAME", "Other")).written)

    assert own["model"]["model_path"] == "best" and "load_weights" not in own
    assert other["model"] == {"type": "Other"}
    assert other["load_weights"]["path"] == "best" and other["load_weights"]["pickled"]


def test_a_config_with_timed_pipelines_is_evaluated_by_them_alone() -> None:
    text = """
    model = { type = "own.Model" }
    plugins = [{ type = "alchemy.plugins.BasicSetup" }]
    sched = { end_epoch = [{ type = "own.EvalEpoch" }] }
    """
    period = "evaluate = { every = '2 epochs' }"

    assert plain(loads(text).written)["evaluate"] == {"every": "never"}
    assert plain(loads(period + text).written)["evaluate"] == {"every": "2 epochs"}
