"""Texts of the README of alchemy, run as they stand there, in projects as its users have them."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from assay.build import Context
from assay.config import check_shape, load, open_config, plain
from assay.core.errors import InputError
from assay.core.facts import Evaluated
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.query.run import RunView
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from event_reader import read
from examples import SRC
from snippets import executed
from warm_python import Run
from warm_python import run as cold

POINTS = '''
import torch


class Points:
    """Points whose class is the sign of their sum."""

    def __init__(self, seed, size=20):
        self.points = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i], int(self.points[i].sum() > 0)
'''
TRAINING = """
[model]
type = "torch.nn.Linear"
in_features = {features}
out_features = 2
[process]
type = "assay.engine.Supervised"
criterion = {{ type = "torch.nn.CrossEntropyLoss" }}
metrics = {{ acc = {{ type = "assay.engine.Accuracy" }} }}
[optim]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = {epochs}
"""
DATASETS = """
[task.datasets.{split}]
source = {{ type = "points.Points", seed = {seed} }}
batch_size = 8
"""


def training(*splits: str, epochs: int = 2) -> str:
    """Sections of a run over points, with the given splits."""
    data = [DATASETS.format(split=split, seed=seed) for seed, split in enumerate(splits)]
    return TRAINING.format(features=4, epochs=epochs) + "".join(data)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "points.py").write_text(POINTS, encoding="utf-8")
    return tmp_path


def records(project: Path) -> list[RunView]:
    return [RunView(folder) for folder in run_folders(open_project(project))]


@pytest.mark.row("S-A1", "A04", "A30")
def test_the_six_plugins_of_the_text_do_what_they_are_called(python: Run, project: Path) -> None:
    config = f'tag = "tagger"\n{executed("S-A1")}{training("train", "dev")}'
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    done = python("-m", "assay", "run", "cfg.toml", "--device", "cpu")

    (view,) = records(project)
    folder = view.folder.path
    assert "tag tagger" in done.stdout and "python 3." in done.stdout  # DisplayRunningInfo
    link = project / "records" / "weixin" / "tagger" / "train" / folder.name
    assert link.resolve() == folder and (folder / "detail_log").is_dir()
    assert (
        load(folder / "cfg.toml").root.items.keys() == load(project / "cfg.toml").root.items.keys()
    )
    assert "[[plugins]]" in (folder / "cfg.toml").read_text(encoding="utf-8")
    assert (folder / "backup" / "src" / "points.py").read_text(encoding="utf-8") == POINTS
    assert (folder / "backup" / "alchemy" / "plugins.py").is_file()
    assert (folder / "checkpt" / "latest" / "manifest.json").is_file()
    saved = plain(load(folder / "config.toml").root)
    assert (saved["seed"], saved["train"]["deterministic"]) == (0, True)
    losses = read(folder / "board").scalars["train/loss"]
    assert [step for step, _ in losses] == read_series(view.folder.metrics)[
        "train/loss"
    ].steps.tolist()


HASHES = """
class Hashes:
    def __enter__(self):
        print("names", list({"weight", "bias", "scale", "shift", "mean", "variance"}))

    def __exit__(self, *error):
        pass
"""


@pytest.mark.thorough
@pytest.mark.row("A33")
def test_a_set_of_strings_has_one_order_in_every_process_that_trains(
    project: Path,
) -> None:
    (project / "src" / "hashes.py").write_text(HASHES, encoding="utf-8")
    plugins = '{ type = "alchemy.plugins.Seeding", seed = 1 }, { type = "hashes.Hashes" }'
    config = f"plugins = [{plugins}]\n{training('train', epochs=1)}"
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    def order(*arguments: str, **variables: str) -> str:
        own = {**os.environ, "PYTHONPATH": str(SRC)}
        own.pop("PYTHONHASHSEED", None)
        command = ["-m", "assay", *arguments, "--device", "cpu"]
        done = cold(command, folder=project, variables={**own, **variables})
        assert done.returncode == 0, done.stderr
        (line,) = (each for each in done.stdout.splitlines() if each.startswith("names "))
        return line

    one = order("run", "cfg.toml", "--max-steps", "1")
    assert order("resume", "last") == one
    assert order("rerun", "last", PYTHONHASHSEED="5") != one
    known = [each.file.newest.environment["variables"] for each in records(project)]
    assert sorted(each["PYTHONHASHSEED"] for each in known) == ["0", "5"]


@pytest.mark.row("A33")
def test_the_seed_of_the_plugin_is_that_of_the_run(project: Path) -> None:
    config = executed("S-A1").replace("seed = 0", "seed = 7")
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    assert plain(load(project / "cfg.toml").root)["seed"] == 7

    (project / "cfg.toml").write_text(f"seed = 3\n{config}", encoding="utf-8")
    assert plain(load(project / "cfg.toml").root)["seed"] == 3  # a key of the config itself wins


def test_a_setting_of_the_plugins_seed_is_one_of_the_run(project: Path) -> None:
    (project / "cfg.toml").write_text(executed("S-A1").replace("seed = 0", "seed = 7"))

    def seed_of(*settings: str) -> int | None:
        return plain(load(project / "cfg.toml", settings).root).get("seed")

    place = [each["type"] for each in plain(load(project / "cfg.toml").root)["plugins"]].index(
        "alchemy.plugins.Seeding"
    )
    assert seed_of(f"plugins.{place}.seed=8") == 8
    assert seed_of(f"plugins.{place}.seed=8", "seed=9") == 9
    assert seed_of(f'plugins.{place}={{type="alchemy.plugins.Seeding", seed=6}}') == 6
    assert seed_of('plugins=[{type="alchemy.plugins.Seeding", seed=6}]') == 6
    assert seed_of("plugins=[]") is None
    assert seed_of(f'plugins.{place}={{type="torch.nn.ReLU", seed=8}}') is None


def test_a_value_where_a_section_belongs_is_reported_beside_plugins_that_set_its_keys(
    project: Path,
) -> None:
    seeding = '{ type = "alchemy.plugins.Seeding", use_deterministic_algorithms = true }'
    (project / "cfg.toml").write_text(f"train = 3\nplugins = [{seeding}]\n", encoding="utf-8")

    problems = [p for p in check_shape(open_config(project / "cfg.toml")) if p.severity == "error"]

    assert "train" in {problem.key for problem in problems}


@pytest.mark.parametrize("name", ["alchemy.plugins.Bakup", "alchemy.plugin.Backup"])
def test_a_name_that_is_not_mapped_is_one_error_with_the_nearest_and_what_is_said_here(
    name: str, project: Path
) -> None:
    text = f'plugins = [{{ type = "{name}", paths = ["src"] }}]\n{training("train")}'
    (project / "cfg.toml").write_text(text, encoding="utf-8")

    problems = [p for p in check_shape(open_config(project / "cfg.toml")) if p.severity == "error"]

    assert [problem.kind for problem in problems] == ["unknown-target"]
    assert f"`{name}` of alchemy" in problems[0].message
    assert "did you mean `alchemy.plugins.Backup`?" in problems[0].fix
    assert "every record has a snapshot of the code" in problems[0].fix


def test_a_mapped_name_is_used_with_a_note(project: Path) -> None:
    (project / "cfg.toml").write_text(executed("S-A1") + training("train"), encoding="utf-8")

    told = {problem.key: problem for problem in check_shape(open_config(project / "cfg.toml"))}

    assert {problem.severity for problem in told.values()} == {"note"}
    assert "`train.deterministic`" in told["plugins.4.type"].message
    assert "`optim` is `optimizer` here" in told["optim"].message


@pytest.mark.parametrize("path", ["/tmp", "../other", "a/../b", "out/logs", "circle", "a\0b"])
def test_no_plugin_writes_or_reads_outside_of_the_working_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.compat.alchemy.plugins import Backup, FileLogger

    here = tmp_path / "here"
    here.mkdir()
    (here / "out").symlink_to(tmp_path, target_is_directory=True)
    (here / "circle").symlink_to(here / "circle")
    monkeypatch.chdir(here)

    for plugin in (
        lambda: FileLogger(log_dir=path),
        lambda: FileLogger(log_dir="logs", subdirs=[path]),
        lambda: Backup(paths=[path]),
    ):
        with pytest.raises(InputError, match="is no path inside of the working directory"):
            plugin()


def test_a_backup_and_a_copied_config_hold_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.compat.alchemy.plugins import Backup, FileLogger

    secret = "hunter2-hunter2"
    monkeypatch.chdir(tmp_path)
    project = open_project(tmp_path, create=True)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    for name in (".env", "src/.env", "src/token.txt", "src/data.bin", "src/deep/id_rsa"):
        (tmp_path / name).write_text(secret, encoding="utf-8")
    (tmp_path / "src" / "net.py").write_text(f'password = "{secret}"\nX = 1\n', encoding="utf-8")
    (tmp_path / "src" / "a.py").write_text(f'X = "{secret}"\n', encoding="utf-8")
    (tmp_path / "src" / "big.txt").write_text("x" * (6 << 20), encoding="utf-8")
    (tmp_path / "src" / "link.py").symlink_to(tmp_path / ".env")
    (tmp_path / "cfg.toml").write_text(f'[user]\npassword = "{secret}"\n', encoding="utf-8")
    context = Context()
    with context.use(), start_run(project, AttemptSpec(command=("t.py",), keep_code=False)) as run:
        context.set("recorder", run)
        context.set("run_config", load("cfg.toml"))
        with Backup(paths=["src", ".env", "cfg.toml", "gone"]), FileLogger(log_dir="logs"):
            pass
    context.close()

    folder = run.folder.path
    texts = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    kept = sorted(str(name) for name in texts if name.parts[0] == "backup")
    assert kept == ["backup/cfg.toml", "backup/src/a.py", "backup/src/net.py"]
    assert [name for name, data in texts.items() if secret.encode() in data] == []
    assert b"X = 1" in texts[Path("backup/src/net.py")]
    told = run.folder.events.read_text(encoding="utf-8")
    assert all(f"{name} (" in told for name in (".env", "token.txt", "big.txt", "deep/id_rsa"))
    assert "there is no gone to copy" in told


DATAPIPE = """
import json

import numpy as np


class JsonLOpener:
    def __call__(self, items):
        for name in items:
            yield from open("data/" + name.rpartition("/")[2], encoding="utf-8")


class ParseJsonDoc:
    def __call__(self, items):
        return map(json.loads, items)


class PruneLongText:
    def __call__(self, items):
        for doc in items:
            yield {**doc, "text": doc["text"][:20]}


class Sample2Encoding:
    def __call__(self, items):
        for doc in items:
            counts = [doc["text"].count(chr(97 + i)) for i in range(26)]
            yield np.array(counts, dtype=np.float32), doc["label"]
"""


NOTES = """
import json

from assay.engine import on


class NoteBatches:
    @on("backward_begin")
    def note(self, state):
        features, labels = state.batch
        with open("batches.jsonl", "a") as file:
            file.write(json.dumps([*zip(features.tolist(), labels.tolist())]) + "\\n")
"""


@pytest.mark.thorough
@pytest.mark.row("S-A2", "A64", "A69")
def test_the_data_pipeline_of_the_text_makes_batches_of_eight_for_any_number_of_workers(
    python: Run, project: Path
) -> None:
    ner = project / "src" / "task" / "ner"
    ner.mkdir(parents=True)
    (ner / "datapipe.py").write_text(DATAPIPE, encoding="utf-8")
    (project / "data").mkdir()
    docs = [{"text": "abcdefgh"[: 1 + i % 7] * 3, "label": i % 2} for i in range(44)]
    lines = "".join(json.dumps(doc) + "\n" for doc in docs)
    (project / "data" / "train.jsonl").write_text(lines, encoding="utf-8")
    (project / "src" / "notes.py").write_text(NOTES, encoding="utf-8")
    config = TRAINING.format(features=26, epochs=1) + f"[task.datasets.train]\n{executed('S-A2')}"
    plugins = 'plugins = [{ type = "notes.NoteBatches" }]\n'
    (project / "cfg.toml").write_text(plugins + config, encoding="utf-8")

    letters = [[float(doc["text"][:20].count(chr(97 + i))) for i in range(26)] for doc in docs]
    expected = [[counts, doc["label"]] for counts, doc in zip(letters, docs, strict=True)]
    # Each of three workers makes batches of its own share.
    for workers, sizes in (("0", [8, 8, 8, 8, 8, 4]), ("3", [8, 8, 8, 7, 7, 6])):
        python("-m", "assay", "run", "cfg.toml", "--device", "cpu", f"data.train.workers={workers}")
        noted = project / "batches.jsonl"
        batches = [json.loads(line) for line in noted.read_text().splitlines()]
        noted.unlink()

        assert sorted(map(len, batches), reverse=True) == sizes
        found = [sample for batch in batches for sample in batch]
        assert sorted(found) == sorted(expected) and found != expected  # each once, shuffled


GO = """
(result,) = run("cfg.toml", device="cpu")
if isinstance(result, BaseException):
    raise result
"""


@pytest.mark.thorough
@pytest.mark.row("S-A3", "A62", "A63")
def test_the_pipeline_of_the_text_evaluates_at_the_end_of_every_second_epoch(
    python: Run, project: Path
) -> None:
    (project / "src" / "pipeline.py").write_text(executed("S-A3"), encoding="utf-8")
    plugin = '{ type = "EvalEpochEEPipeline", period = 2, split = "dev" }'
    config = f"""
plugins = [
    {{ type = "alchemy.plugins.Seeding", seed = 1 }},
    {{ type = "assay.engine.Pipelines", end_epoch = [{plugin}] }},
]
{training("train", "dev", epochs=6)}
[evaluate]
every = "never"
"""
    (project / "cfg.toml").write_text(config, encoding="utf-8")
    (project / "go.py").write_text(GO, encoding="utf-8")

    python("-m", "assay.compat", "go.py")

    (view,) = records(project)
    facts = [event.fact for event in read_events(view.folder.events)]
    evaluated = [(fact.split, fact.step) for fact in facts if isinstance(fact, Evaluated)]
    assert evaluated == [("dev", 6), ("dev", 12), ("dev", 18)]  # 3 steps an epoch
    log = view.folder.log.read_text(encoding="utf-8")
    said = [
        line.rpartition("EvalEpoch at ")[2] for line in log.splitlines() if "EvalEpoch at" in line
    ]
    assert said == ["epoch 1 step 5", "epoch 3 step 11", "epoch 5 step 17"]


EVALPIPE = """
class Pipe:
    def __init__(self, store_history=True):
        self.store_history = store_history

    def __call__(self, outputs):
        return outputs


class EvalNer(Pipe): ...
class LogBest(Pipe): ...
class SaveStepExamples(Pipe): ...
class SaveExamples(Pipe): ...
class SaveBest(Pipe): ...
"""
EVALPIPES = """
tag = "ner"
plugins = [
    { type = "alchemy.plugins.FileLogger", log_dir = "records/train" },
    { type = "alchemy.plugins.Seeding", seed = 0 },
]
[task]
evalpipes = [
    { type = "src.task.ner.evalpipe.EvalNer" },
    { type = "src.task.ner.evalpipe.LogBest" },
    { type = "src.task.ner.evalpipe.SaveStepExamples" },
    { type = "src.task.ner.evalpipe.SaveBest" },
]
[sched]
type = "alchemy.sched.NoamScheduler"
model_size = 4
warmup_steps = 5
[checkpoint]
best = { metric = "dev/acc", mode = "max" }
"""


@pytest.mark.row("S-A4", "A42", "A86")
def test_training_and_test_of_the_text_make_two_records_with_equal_metrics(
    python: Run, project: Path
) -> None:
    ner = project / "src" / "task" / "ner"
    ner.mkdir(parents=True)
    (ner / "evalpipe.py").write_text(EVALPIPE, encoding="utf-8")
    config = EVALPIPES + training("train", "dev", "test", epochs=4)
    config = config.replace("seed = 2", "seed = 1")  # test has the points of dev
    (project / "cfg.toml").write_text(config, encoding="utf-8")
    call = "\nfor result in train_and_test([prepare_cfg('cfg.toml')], desc='a first try'):\n"
    call += "    print(result.status, *sorted(result.value))\n"
    (project / "both.py").write_text(executed("S-A4") + call, encoding="utf-8")

    done = python("-m", "assay.compat", "both.py")

    assert done.stdout.splitlines()[-1] == "finished test/acc test/loss"
    by_kind = {view.kind: view for view in records(project)}
    train, test = by_kind["train"], by_kind["test"]
    assert train.best is not None and test.file.parent == f"{train.id}@best"
    then = [
        event.fact
        for event in train.events
        if isinstance(event.fact, Evaluated) and event.fact.step == train.best.step
    ]
    (now,) = [event.fact for event in test.events if isinstance(event.fact, Evaluated)]
    assert [now.metrics[f"test/{name}"] for name in ("acc", "loss")] == [
        then[0].metrics[f"dev/{name}"] for name in ("acc", "loss")
    ]
    assert (project / "records" / "test" / test.folder.path.name).is_symlink()
    saved = tomllib.loads((test.folder.path / "cfg.toml").read_text(encoding="utf-8"))
    pipes = saved["task"]["evalpipes"]
    kept = [(each["type"].rpartition(".")[2], each.get("store_history")) for each in pipes]
    assert kept == [("EvalNer", False), ("LogBest", None), ("SaveExamples", None)]


LOGGED = (
    'tag = "t"\nplugins = [{ type = "alchemy.plugins.FileLogger", log_dir = "records/train" }]\n'
)


def weights_at(view: RunView, step: int) -> bytes:
    return (view.folder.checkpoints / f"step-{step:09d}" / "model.safetensors").read_bytes()


@pytest.mark.row("A95", "A37")
def test_a_run_with_a_file_logger_is_resumed_to_the_bits_of_one_that_was_not_stopped(
    python: Run, project: Path
) -> None:
    (project / "cfg.toml").write_text(LOGGED + training("train", epochs=4), encoding="utf-8")
    run = ("-m", "assay", "run", "cfg.toml", "--device", "cpu")

    python(*run, "--max-steps", "5")
    python("-m", "assay", "resume", "last")
    python(*run, "--tag", "whole")

    by_tag = {view.tag: view for view in records(project)}
    stopped, whole = by_tag["t"], by_tag["whole"]
    assert len(stopped.file.attempts) == 2
    latest = stopped.path / "checkpt" / "latest"
    assert latest.resolve() == stopped.folder.checkpoints / "step-000000012"
    assert weights_at(stopped, 12) == weights_at(whole, 12)


RECALL = """
class Recall:
    def begin_eval(self, evaluation):
        self.hit = self.all = 0

    def __call__(self, output):
        is_one = output["target"] == 1
        self.hit += int((output["pred"].argmax(-1)[is_one] == 1).sum())
        self.all += int(is_one.sum())
        return output

    def end_eval(self, evaluation):
        return {"recall": self.hit / max(1, self.all)}
"""


@pytest.mark.row("A94", "A76", "A77")
def test_an_evaluation_by_a_pipeline_runs_the_evalpipes_and_chooses_the_best_checkpoint(
    python: Run, project: Path
) -> None:
    (project / "src" / "pipeline.py").write_text(
        "from typing import Any, Dict\nfrom alchemy import *\n" + executed("S-A3"),
        encoding="utf-8",
    )
    (project / "src" / "recall.py").write_text(RECALL, encoding="utf-8")
    item = '{ type = "pipeline.EvalEpochEEPipeline", period = 2, split = "dev" }'
    plugins = f'{{ type = "assay.engine.Pipelines", end_epoch = [{item}] }}'
    logged = LOGGED.replace("[{", f"[{plugins}, {{")
    config = f"""{logged}
[task]
evalpipes = [{{ type = "recall.Recall" }}]
{training("train", "dev", epochs=4)}
[evaluate]
every = "never"
[checkpoint]
best = {{ metric = "dev/recall", mode = "max" }}
"""
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    python("-m", "assay", "run", "cfg.toml", "--device", "cpu")

    (view,) = records(project)
    curve = read_series(view.folder.metrics)["dev/recall"]
    assert curve.steps.tolist() == [6, 12]
    best = curve.steps[int(np.argmax(curve.values))]
    assert view.best is not None and (view.best.metric, view.best.step) == ("dev/recall", best)
    assert (view.path / "checkpt" / "best" / "manifest.json").is_file()


def test_a_best_metric_of_a_split_that_no_plugin_could_evaluate_is_still_an_error(
    project: Path,
) -> None:
    best = 'best = { metric = "dev/loss", mode = "min" }'
    config = (
        LOGGED + training("train", "dev") + f'[evaluate]\nevery = "never"\n[checkpoint]\n{best}\n'
    )
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    problems = [p for p in check_shape(open_config(project / "cfg.toml")) if p.severity == "error"]

    assert [problem.kind for problem in problems] == ["never-measured"]


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("optim.lr=0.5", ("optimizer", "lr"), 0.5),
        ("task.datasets.train.batch_size=4", ("data", "train", "batch_size"), 4),
        ("optim.momentum=0.9", ("optimizer", "momentum"), 0.9),
    ],
)
def test_a_setting_names_the_key_of_alchemy_that_the_config_has(
    project: Path, setting: str, key: tuple[str, ...], value: float
) -> None:
    (project / "cfg.toml").write_text(LOGGED + training("train"), encoding="utf-8")

    config = load(project / "cfg.toml", [setting])

    node = plain(config.root)
    for part in key:
        node = node[part]
    assert node == value
    assert any(
        note.message.startswith(f"`{setting.partition('=')[0]}` is") for note in config.notes
    )


COLLATE = """
import torch

from assay.engine import chain
from assay.engine.data import map_style


def collate_fn(samples):
    longest = max(map(len, samples))
    filled = [[*sample, *[0] * (longest - len(sample))] for sample in samples]
    sums = torch.tensor(filled, dtype=torch.float32).sum(1, keepdim=True)
    return sums, torch.tensor([sum(sample) % 2 for sample in samples])
"""
PIPES = """
    def pipeline(self, split):
        return chain([map_style.SequenceWrapper([list(range(i % 5 + 1)) for i in range(40)])])
"""


@pytest.mark.row("S-A5")
def test_the_collate_that_a_task_of_the_text_gives_makes_every_batch(
    python: Run, project: Path
) -> None:
    text = COLLATE + executed("S-A5") + PIPES
    (project / "src" / "mytask.py").write_text(text, encoding="utf-8")
    config = 'plugins = [{ type = "alchemy.plugins.Seeding", seed = 0 }]\n[task]\ntype = "mytask.MyTask"\n'
    config += TRAINING.format(features=1, epochs=1)
    config += "[data.train]\nbatch_size = 8\n[data.dev]\nbatch_size = 16\n"
    (project / "cfg.toml").write_text(config, encoding="utf-8")

    (project / "go.py").write_text(GO, encoding="utf-8")
    python("-m", "assay.compat", "go.py")

    (view,) = records(project)
    assert read_series(view.folder.metrics)["train/loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert np.isfinite(read_series(view.folder.metrics)["dev/loss"].values).all()


@pytest.mark.thorough
def test_a_config_is_run_from_a_mapping_and_from_a_list_of_mappings(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import assay

    monkeypatch.chdir(project)
    text = 'plugins = [{ type = "alchemy.plugins.BasicSetup" }]\n' + training("train", epochs=1)
    (project / "cfg.toml").write_text(text, encoding="utf-8")
    config = plain(load(project / "cfg.toml").root)

    one = assay.run(config, user_dir="src", device="cpu")
    first, second = assay.run(
        [{**config, "seed": 1}, {**config, "seed": 2}], user_dir="src", device="cpu"
    )

    assert [each.exception for each in (one, first, second)] == [None] * 3
    seeds = [
        run_file.read(result.record_dir).newest.seeds["seed"] for result in (one, first, second)
    ]
    assert seeds == [0, 1, 2]


def test_the_types_of_the_settings_are_those_of_the_parameters() -> None:
    from assay.compose import run
    from assay.jobs.isolated_runs import RunSettings

    given = set(inspect.signature(run).parameters) - {"configs", "train_apart"}

    assert set(RunSettings.__annotations__) == given


@pytest.mark.usefixtures("forking")
def test_an_import_of_an_unmapped_name_is_one_error_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from alchemy import sym_tabl\n", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "assay.compat", "own.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "`alchemy.sym_tabl` of alchemy" in done.stderr and "`alchemy.sym_tbl`" in done.stderr


LOADING = """
import numpy as np
import torch
from alchemy import AlchemyModel, AlchemyTask, DataPipeline


class Numbers(DataPipeline):
    def __iter__(self):
        for number in self.datapipe:
            yield np.full(4, number, dtype=np.float32), number % 2


class Last(DataPipeline):
    def __iter__(self):
        yield from self.datapipe


def collate(batch):
    print("collate of", len(batch))
    inputs, targets = zip(*batch)
    return torch.tensor(np.stack(inputs)), torch.tensor(targets)


class Loads(AlchemyTask):
    def load_dataset(self, split, **kwargs):
        print("loads", split)
        self._datasets[split] = (self.datasets[split], {"collate_fn": collate, **kwargs})


class Shows(AlchemyModel):
    def __init__(self, **given):
        super().__init__(**given)
        self._model = torch.nn.Linear(4, 2)

    def forward(self, batch, needs_loss, requires_grad, **given):
        inputs, target = batch
        print("forward of", len(inputs))
        loss = torch.nn.functional.cross_entropy(self.model(inputs), target)
        if requires_grad:
            self.backward(loss)
        return {"loss": loss.item()}
"""
LOADED = """
[task]
type = "loading.Loads"
[task.datasets.train]
pipes = [
  { type = "alchemy.pipeline.lst.SequenceWrapper", datapipe = [0, 1, 2, 3, 4, 5, 6, 7] },
  { type = "loading.Numbers" }, PIPE
]
[model]
type = "loading.Shows"
[optim]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 1
"""
IN_FOURS = '{ type = "alchemy.pipeline.itr.Batch", batch_size = 4 }'


@pytest.mark.row("S-A5", "A72")
@pytest.mark.parametrize(
    "pipe",
    [
        f"{IN_FOURS} ]",
        f'{IN_FOURS}, {{ type = "loading.Last" }} ]',
        '{ type = "alchemy.pipeline.lst.ItrToLst" } ]\nbatch_size = 4',
    ],
)
def test_the_task_loads_what_pipes_of_the_config_describe_and_its_collate_is_used(
    python: Run, project: Path, pipe: str
) -> None:
    (project / "src" / "loading.py").write_text(LOADING, encoding="utf-8")
    (project / "c.toml").write_text(LOADED.replace("PIPE\n]", pipe), encoding="utf-8")

    done = python("-m", "assay", "run", "c.toml", "--device", "cpu")

    assert done.stdout.count("loads train") == 1
    assert done.stdout.count("collate of 4") == done.stdout.count("forward of 4") == 2


@pytest.mark.parametrize(
    ("data", "settings", "size"),
    [
        ("source", [], 8),
        ("pipe", [], 4),
        ("source", ["task.datasets.train.batch_size=4"], 4),
    ],
)
def test_a_batch_of_alchemy_is_that_of_a_forward_pass_whatever_the_period(
    python: Run, project: Path, data: str, settings: list[str], size: int
) -> None:
    (project / "src" / "loading.py").write_text(LOADING, encoding="utf-8")
    config = LOADED.replace("PIPE\n]", f"{IN_FOURS} ]")
    if data == "source":
        config = DATASETS.format(split="train", seed=0) + config[config.index("[model]") :]
    handler = 'backward_cfg = { type = "alchemy.DefaultBackwardHandler", period = 2 }'
    config = config.replace("[optim]", f"{handler}\n[optim]")
    (project / "c.toml").write_text(config, encoding="utf-8")

    done = python("-m", "assay", "run", "c.toml", "--device", "cpu", *settings)

    assert f"forward of {size}\n" in done.stdout
    assert {f"forward of {n}" in done.stdout for n in (2, 4, 8)} == {True, False}
