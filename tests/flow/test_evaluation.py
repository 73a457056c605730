"""Evaluation from a config: tasks, pipes, tests, inference, and a test after the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from assay.core.facts import Evaluated
from assay.formats import manifest, run_file
from assay.formats.event_log import read_events
from assay.store.artifacts import artifacts
from assay.store.blobs import FileBlobs
from assay.store.layout import RunFolder
from assay.store.series import read_series
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

SCORING = """\
import os
import torch
from torch import nn
from assay.engine import Supervised, Task
from points import Points

class Argmax:
    def __call__(self, output):
        return {**output, "pred": output["pred"].argmax(1)}

class Share:
    def begin_eval(self, evaluation):
        evaluation.data["seen"] = 0
    def __call__(self, output):
        return output
    def end_eval(self, evaluation):
        return {"collected": len(evaluation.data["outputs"])}

class Halves(Task):
    def __init__(self):
        from assay.engine import Accuracy
        super().__init__(metrics={"acc": Accuracy()}, meta={"classes": ["below", "above"], "vectors": torch.eye(2)})
    def dataset(self, split):
        return Points({"train": 0, "valid": 1, "test": 2}[split])

class Told(nn.Module):
    '''A model that asks the task how many classes there are.'''
    def __init__(self, task: Halves):
        super().__init__()
        self.layer = nn.Linear(4, len(task.meta["classes"]))
    def forward(self, x):
        return self.layer(x)

class Never(nn.Module):
    def __init__(self):
        raise RuntimeError("this must not be built")

def never(params):
    raise RuntimeError("this must not be built")

class Inputs:
    '''Data without targets.'''
    def __len__(self):
        return 10
    def __getitem__(self, i):
        return Points(3).points[i]

class Killer:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def handlers(self):
        from assay.engine import Event, Handler
        return [Handler(event=Event.RUN_END, fn=self.die, priority=1000)]
    def die(self):
        if "DIE_LAST" in os.environ:
            os.kill(os.getpid(), 9)

def smaller(config):
    config["data"]["test"]["source"]["size"] = 7
    config["tag"] = "afterwards"
    del config["optimizer"], config["data"]["train"]

def wrong(config):
    config["process"]["metrics"]["acc"]["tpo"] = 2
"""


@pytest.fixture
def project(toy: Path) -> Path:
    (toy / "scoring.py").write_text(SCORING)
    return toy


def written(
    folder: Path, *changes: tuple[str, str], more: str = "", name: str = "toy.toml"
) -> Path:
    """The toy config with some text replaced and some added."""
    text = (folder / "toy.toml").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / name).write_text(f"{text}\n{more}")
    return folder / name


def the_other(folder: Path, *known: Path) -> Path:
    (found,) = set((folder / "runs").iterdir()) - set(known)
    return found


def kept(run: Path) -> dict[str, bytes]:
    """The artifacts of a run by name; the newest of each."""
    folder = RunFolder(run)
    return {one.name: FileBlobs(folder.artifacts).get(one.digest) for one in artifacts(folder)}


def evaluations(run: Path) -> list[Evaluated]:
    return [
        each.fact for each in read_events(run / "events.jsonl") if isinstance(each.fact, Evaluated)
    ]


def curves(run: Path) -> dict[str, Any]:
    """All points but those of the clock."""
    found = read_series(run / "metrics")
    return {
        name: (list(found[name].steps), list(found[name].values))
        for name in found
        if not name.startswith(("time/", "speed/", "memory/"))
    }


# ---------------------------------------------------------------------------------------------------------------- task


TASK = """\
tag = "task"
[task]
type = "scoring.Halves"
[model]
type = "net.Net"
width = 8
[data.train]
batch_size = 8
[data.valid]
batch_size = 16
[data.test]
batch_size = 16
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
[optimizer]
type = "torch.optim.AdamW"
lr = 1e-2
[train]
epochs = 1
"""


@pytest.mark.thorough
@pytest.mark.row("A48")
def test_a_task_gives_two_models_the_same_metrics_and_its_meta_data_to_their_records(
    assay, project: Path
) -> None:
    (project / "one.toml").write_text(TASK)
    (project / "two.toml").write_text(
        TASK.replace('type = "net.Net"\nwidth = 8', 'type = "scoring.Told"')
    )
    assert assay("check", "two.toml").returncode == 0

    ran = assay("run", "one.toml", "two.toml", "--quiet")
    assert ran.returncode == 0, ran.stderr
    first, second = sorted((project / "runs").iterdir())

    assert (
        evaluations(first)[0].metrics.keys()
        == evaluations(second)[0].metrics.keys()
        == {"valid/loss", "valid/acc"}
    )
    meta = {"classes": ["below", "above"], "vectors": [[1.0, 0.0], [0.0, 1.0]]}
    assert (
        json.loads(kept(first)["task/meta.json"])
        == json.loads(kept(second)["task/meta.json"])
        == meta
    )
    tested = assay("test", "last")
    assert tested.returncode == 0, tested.stderr
    assert "test/acc" in tested.stdout


def test_what_a_task_lacks_is_told_before_anything_is_written(assay, project: Path) -> None:
    (project / "one.toml").write_text(
        TASK + "[data.extra]\nbatch_size = 4\n[evaluate]\nsplits = ['extra']\n"
    )
    (project / "none.toml").write_text(TASK.replace('[task]\ntype = "scoring.Halves"\n', ""))

    wrong = assay("run", "none.toml")
    assert wrong.returncode == 2 and "`data.train` has no `source`" in wrong.stderr

    pipes = (project / "scoring.py").read_text()
    (project / "scoring.py").write_text(
        pipes.replace('"vectors": torch.eye(2)', '"vectors": object()')
    )
    wrong = assay("run", "one.toml")
    assert wrong.returncode == 2 and "'meta.vectors' holds a object" in wrong.stderr
    assert not list((project / "runs").glob("*"))


# ----------------------------------------------------------------------------------------------------------- criterion


CRITERION = ('criterion = { type = "torch.nn.CrossEntropyLoss" }\n', "")
SECTION = '[criterion]\ntype = "torch.nn.CrossEntropyLoss"\n'


@pytest.mark.thorough
@pytest.mark.row("A11")
def test_a_test_does_without_the_criterion_and_training_says_that_it_lacks_it(
    assay, project: Path
) -> None:
    with_it = written(project, CRITERION, more=SECTION, name="whole.toml")
    written(project, CRITERION, name="bare.toml")
    ran = assay("run", str(with_it), "train.epochs=1")
    assert ran.returncode == 0, ran.stderr
    trained = only_run(project)

    refused = assay("run", "bare.toml")
    assert refused.returncode == 2
    assert "`assay.engine.Supervised` needs `criterion`" in refused.stderr
    assert "or a section [criterion]" in refused.stderr and "bare.toml:" in refused.stderr
    assert only_run(project) == trained

    tested = assay("test", "bare.toml", "--from", "last")
    assert tested.returncode == 0, tested.stderr
    (fact,) = evaluations(the_other(project, trained))
    assert fact.metrics.keys() == {"test/acc"}

    bare = assay("test", "bare.toml", "--from", trained.name, "process.metrics={}")
    assert (bare.returncode, bare.stdout.count("nothing was measured")) == (0, 1), (
        bare.stdout + bare.stderr
    )


@pytest.mark.thorough
def test_a_criterion_of_its_own_section_trains_to_the_same_bits(assay, project: Path) -> None:
    assert assay("run", "toy.toml").returncode == 0
    first = only_run(project)
    assert (
        assay("run", str(written(project, CRITERION, more=SECTION, name="own.toml"))).returncode
        == 0
    )

    assert last_digest(first) == last_digest(the_other(project, first))


# ----------------------------------------------------------------------------------------------------------- inference


@pytest.mark.thorough
@pytest.mark.row("A27")
def test_inference_builds_no_loss_and_no_optimizer_and_keeps_what_the_model_gives(
    assay, project: Path
) -> None:
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    trained = only_run(project)
    infer = '[data.infer]\nsource = { type = "scoring.Inputs" }\nbatch_size = 4\n'
    never = (
        'criterion = { type = "torch.nn.CrossEntropyLoss" }',
        'criterion = { type = "scoring.Never" }',
    )
    written(
        project,
        never,
        ('type = "torch.optim.AdamW"\nlr = 1e-2', 'type = "scoring.never"'),
        more=infer,
        name="i.toml",
    )

    ran = assay("test", "i.toml", "--infer", "--from", "last@latest")

    assert ran.returncode == 0, ran.stderr
    run = the_other(project, trained)
    lines = [json.loads(line) for line in kept(run)["infer/outputs_step8.jsonl"].splitlines()]
    assert [(line["index"], line["step"], len(line["pred"])) for line in lines] == [
        (i, 8, 2) for i in range(10)
    ]
    assert [(fact.split, fact.samples, fact.metrics) for fact in evaluations(run)] == [
        ("infer", 10, {})
    ]
    assert run_file.read(run).parent == f"{run_file.read(trained).id}@step-000000008"
    assert (
        assay("test", "i.toml", "--from", "last").returncode == 1
    )  # a test does build the criterion

    wrong = assay("test", "last", "--infer")
    assert wrong.returncode == 2 and "no [data.infer]" in wrong.stderr
    assert assay("test", "last", "--infer", "--split", "test").returncode == 0

    known = list((project / "runs").iterdir())
    weights = f'runner = "infer"\nload_weights = "{run_file.read(trained).id}@latest"\n'
    (project / "r.toml").write_text(weights + (project / "i.toml").read_text())
    by_config = assay("run", "r.toml")
    assert by_config.returncode == 0, by_config.stderr
    assert kept(the_other(project, *known)).keys() == kept(run).keys()


# --------------------------------------------------------------------------------------------------------------- pipes


EVALUATE = """\
[evaluate]
pipes = [
    { type = "scoring.Argmax" },
    { type = "assay.engine.Collect" },
    { type = "scoring.Share" },
    { type = "assay.engine.SaveOutputs", fields = ["pred", "target"] },
]
"""


@pytest.mark.thorough
@pytest.mark.row("A76")
def test_without_the_items_that_save_nothing_is_saved_and_nothing_else_changes(
    assay, project: Path
) -> None:
    lean = EVALUATE.replace(
        '    { type = "assay.engine.SaveOutputs", fields = ["pred", "target"] },\n', ""
    )
    best = ('best = { metric = "valid/acc", mode = "max" }\n', "")
    found = []
    for name, changes, more in (
        ("all.toml", (), EVALUATE),
        ("no-outputs.toml", (), lean),
        ("no-best.toml", (best,), lean),
        ("no-checkpoint.toml", (('every = "3 steps"\n', "enabled = false\n"),), lean),
    ):
        before = set((project / "runs").glob("*"))
        ran = assay("run", str(written(project, *changes, more=more, name=name)))
        assert ran.returncode == 0, ran.stderr
        found.append(the_other(project, *before))
    whole, no_outputs, no_best, nothing = found

    assert set(kept(whole)) == {f"valid/outputs_step{step}.jsonl" for step in (8, 16, 24, 32)}
    assert len(kept(whole)["valid/outputs_step32.jsonl"].splitlines()) == 60
    assert kept(no_outputs) == {}
    assert curves(whole) == curves(no_outputs) == curves(no_best) == curves(nothing)
    assert curves(whole)["valid/collected"] == ([8, 16, 24, 32], [60.0] * 4)
    assert last_digest(whole) == last_digest(no_outputs)
    assert run_file.read(no_outputs).best and not run_file.read(no_best).best
    assert not list(nothing.glob("checkpoints/*"))


def test_a_pipe_that_cannot_be_is_told_at_its_place(assay, project: Path) -> None:
    written(project, more=EVALUATE.replace("Argmax", "Argmx"))
    wrong = assay("run", "toy.toml")
    assert (
        wrong.returncode == 2
        and "toy.toml:42" in wrong.stderr
        and "did you mean `Argmax`?" in wrong.stderr
    )


# ------------------------------------------------------------------------------------------------- tests of a config


@pytest.mark.row("A85")
def test_a_test_of_whatever_form_measures_bit_for_bit_what_the_training_did(
    assay, project: Path
) -> None:
    written(
        project,
        ("metrics = { acc", 'metrics = { f1 = { type = "assay.engine.F1", classes = 2 }, acc'),
        more=EVALUATE,
    )
    assert assay("run", "toy.toml", "train.epochs=2").returncode == 0
    run = only_run(project)
    folder = run / "checkpoints" / "step-000000016"
    known = [run]

    for way in (
        ["last@latest"],
        ["toy.toml", "--from", "last@16"],
        ["toy.toml", "--from", str(folder)],
    ):
        tested = assay("test", *way, "--split", "valid")

        assert tested.returncode == 0, tested.stderr
        test = the_other(project, *known)
        known.append(test)
        (again,) = evaluations(test)
        assert again.metrics == evaluations(run)[-1].metrics
        assert again.step == 16 and len(again.metrics) == 4
        assert kept(test)["valid/outputs_step16.jsonl"] == kept(run)["valid/outputs_step16.jsonl"]


def test_a_config_is_tested_with_a_file_of_weights_and_its_keys_can_be_set(
    assay, project: Path
) -> None:
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    run = only_run(project)
    weights = load_file(run / "checkpoints" / "step-000000008" / "model.safetensors")
    save_file(weights, project / "w.safetensors")

    tested = assay("test", "toy.toml", "data.test.source.size=9", "--from", "w.safetensors")

    assert tested.returncode == 0, tested.stderr
    test = the_other(project, run)
    assert evaluations(test)[0].samples == 9
    assert run_file.read(test).parent == ""


@pytest.mark.thorough
def test_what_is_wrong_with_a_test_is_told(assay, project: Path) -> None:
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    for arguments, said in (
        (["toy.toml"], "A config has no weights to test"),
        (["toy.toml", "--from", "no.safetensors"], "There is no file of weights no.safetensors"),
        (["toy.toml", "model.widht=3", "--from", "last"], "did you mean `width`?"),
        (["toy.toml", "model.width=3", "--from", "last"], "does not fit the model"),
        (["last", "model.width=3"], "A recorded run is tested as it was trained"),
        (["last", "--split", "tset"], "did you mean `test`?"),
        (["last", "last"], "`assay test` takes one run, not 2"),
    ):
        wrong = assay("test", *arguments)
        assert wrong.returncode in (1, 2) and said in wrong.stderr, wrong.stderr
        assert "Traceback" not in wrong.stderr
    only_run(project)


# ------------------------------------------------------------------------------------------------------ train and test


@pytest.mark.row("A86")
def test_a_run_is_tested_when_it_is_trained_and_the_user_may_edit_the_config_of_the_test(
    assay, project: Path
) -> None:
    ran = assay("run", "toy.toml", "--then-test", "--edit-test", "scoring.smaller")

    assert ran.returncode == 0, ran.stderr
    assert "test/acc" in ran.stdout
    kinds = {run_file.read(folder).kind: folder for folder in (project / "runs").iterdir()}
    train, test = run_file.read(kinds["train"]), run_file.read(kinds["test"])
    assert train.best is not None and test.parent == f"{train.id}@{train.best.checkpoint}"
    assert kinds["train"].parent == kinds["test"].parent
    assert (train.tag, test.tag) == ("toy", "afterwards")
    assert evaluations(kinds["test"])[0].samples == 7
    assert "optimizer" not in (kinds["test"] / "config.toml").read_text()
    assert "optimizer" in (kinds["train"] / "config.toml").read_text()


@pytest.mark.thorough
def test_what_cannot_be_tested_afterwards_is_told_before_the_training(assay, project: Path) -> None:
    for arguments, said in (
        (["--then-test", "--no-file"], "cannot be tested afterwards"),
        (["--then-test", "--edit-test", "scoring.smallr"], "did you mean `smaller`?"),
        (["--edit-test", "scoring.smaller"], "give --then-test"),
        (["--then-test", "data.test=@delete"], "no [data.test]"),
    ):
        wrong = assay("run", "toy.toml", *arguments)
        assert wrong.returncode == 2 and said in wrong.stderr, wrong.stderr
    assert not list((project / "runs").glob("*"))


@pytest.mark.thorough
def test_a_test_config_that_is_edited_wrongly_fails_the_test_and_not_the_run(
    assay, project: Path
) -> None:
    ran = assay("run", "toy.toml", "train.epochs=1", "--then-test", "--edit-test", "scoring.wrong")

    assert ran.returncode == 2
    assert "tpo" in ran.stderr and "did you mean `top`?" in ran.stderr
    assert run_file.read(only_run(project)).status == "finished"


@pytest.mark.thorough
def test_several_runs_are_each_tested_from_python_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import assay

    monkeypatch.chdir(project)
    seen: list[str] = []

    def edit(config: dict[str, Any]) -> dict[str, Any]:
        seen.append(config["tag"])
        return {**config, "tag": "edited"}

    written(project, ('tag = "toy"', 'tag = "two"'), ("epochs = 4", "epochs = 1"), name="two.toml")
    written(project, ("epochs = 4", "epochs = 2"))

    first, second = assay.run(["toy.toml", "two.toml"], then_test=True, edit_test=edit)

    assert seen == ["toy", "two"]
    for result in (first, second):
        assert (
            result.status == "finished"
            and result.test is not None
            and result.test.status == "finished"
        )
        assert result.test.value.keys() == {"test/loss", "test/acc"}
        assert run_file.read(result.test.record_dir).parent.startswith(result.id)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------- best


LAZY = """\
from assay.config import L
from points import Points
from evaluators import Margin

tag = "lazy"
model = L("net.Net")(width=8)
data = dict(
    train=dict(source=L(Points)(split=0), batch_size=8),
    valid=dict(source=L(Points)(split=1), batch_size=16),
)
process = L("assay.engine.Supervised")(
    criterion=L("torch.nn.CrossEntropyLoss")(),
    metrics={
        "Acc@1": L("assay.engine.Accuracy")(top=1),
        "Acc@2": L("assay.engine.Accuracy")(top=2),
        "own": L(Margin)(),
    },
)
optimizer = L("torch.optim.SGD")(lr=2.0)
train = dict(epochs=6)
checkpoint = dict(keep=1, best=dict(metric="valid/Acc@1", mode="max"))
"""
EVALUATORS = """\
class Margin:
    def reset(self):
        self.rows = []
    def update(self, output):
        best = output["pred"].topk(2, dim=1).values
        self.rows += (best[:, 0] - best[:, 1]).tolist()
    def value(self):
        return {"mean": sum(self.rows) / len(self.rows), "count": len(self.rows)}
"""


@pytest.mark.thorough
@pytest.mark.row("E41", "E42")
@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_model_is_that_of_the_extreme_value_of_a_metric(
    assay, project: Path, mode: str
) -> None:
    (project / "lazy.py").write_text(LAZY)
    (project / "evaluators.py").write_text(EVALUATORS)

    ran = assay("run", "lazy.py", f"checkpoint.best.mode={mode}")

    assert ran.returncode == 0, ran.stderr
    run = only_run(project)
    steps, values = curves(run)["valid/Acc@1"]
    extreme = max(values) if mode == "max" else min(values)
    assert len(set(values)) > 1
    best = run_file.read(run).best
    assert best is not None
    assert (best.value, best.step) == (extreme, steps[values.index(extreme)])
    assert curves(run)["valid/Acc@2"][1] == [1.0] * 6
    assert curves(run)["valid/own/count"][1] == [60.0] * 6
    assert assay("test", "last@best", "--split", "valid").returncode == 0
    (again,) = evaluations(the_other(project, run))
    assert (again.metrics["valid/Acc@1"], again.step) == (extreme, best.step)

    wrong = assay("run", "lazy.py", "checkpoint.best.metric=valid/mean-of-ranks")
    assert wrong.returncode == 2 and "measured are valid/loss, valid/Acc@1" in wrong.stderr


# -------------------------------------------------------------------------------------------------------------- resume


def test_a_run_killed_after_its_last_checkpoint_is_not_evaluated_again(
    assay, project: Path
) -> None:
    written(
        project,
        ('every = "3 steps"', 'every = "1 epoch"'),
        ("seed = 3", 'seed = 3\nplugins = [{ type = "scoring.Killer" }]'),
    )
    assert assay("run", "toy.toml", "train.epochs=2", DIE_LAST="1").returncode == -9
    run = only_run(project)

    resumed = assay("resume", "last")

    assert resumed.returncode == 0, resumed.stderr
    assert [fact.step for fact in evaluations(run)] == [8, 16]
    assert curves(run)["valid/acc"][0] == [8, 16]
    assert run_file.read(run).status == "finished"


def test_a_manifest_tells_of_the_weights_that_it_is_about_and_of_no_others(
    assay, project: Path
) -> None:
    assert assay("run", "toy.toml", "checkpoint.keep=99").returncode == 0
    run = only_run(project)

    measured = {fact.step: dict(fact.metrics) for fact in evaluations(run)}
    found = [manifest.read(folder) for folder in (run / "checkpoints").glob("step-*")]
    infos = {
        each.step: {name: each.info[name] for name in each.info if name != "train/loss"}
        for each in found
    }

    assert {3, 6, 9, 32} <= infos.keys()
    assert all(
        info == (measured[step] if step % 8 == 0 else {})
        for step, info in infos.items()
        if step != 24
    )
