"""Texts of the README of thexp, run as they stand there but for the repairs of `rows.toml`."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.compat.names import install
from assay.config import load, plain
from assay.core.facts import Evaluated
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.query.run import RunView
from assay.store.blobs import FileBlobs
from assay.store.file_changes import files_left
from assay.store.layout import open_project, run_folders
from event_reader import read
from examples import SRC
from snippets import executed, original
from warm_python import Run

FIELDS = (
    "('epoch', {epoch}),\n ('eidx', 1),\n ('idx', 0),\n ('global_step', 0),\n ('device', 'cpu')"
)
SEEDED = "import torch\ntorch.manual_seed(0)\n"  # before a text that prints what it draws
TORCHVISION = '''
import torch


class FakeData(torch.utils.data.Dataset):
    """Stands for torchvision.datasets.FakeData: 1,000 grey images of noise."""

    def __init__(self, image_size, transform=None):
        self.size = image_size

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        image = torch.randn(1, *self.size, generator=draw)
        return image, int(torch.randint(10, (1,), generator=draw))


class datasets:
    FakeData = FakeData


class transforms:
    ToTensor = staticmethod(lambda: None)
'''


@pytest.fixture
def snippet(warm: Run, tmp_path: Path) -> Run:
    """Runs the text of a row in a process of its own, in a new folder, to a good end."""
    variables = {
        "PYTHONPATH": str(SRC),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }

    def run(
        name: str, *arguments: str, before: str = "", after: str = ""
    ) -> subprocess.CompletedProcess[str]:
        script = f"{name}.py"
        text = executed(name).replace("time.sleep(0.2)", "time.sleep(0.002)")
        (tmp_path / script).write_text(before + text + after, encoding="utf-8")
        done = warm(
            ["-m", "assay.compat", script, *arguments],
            folder=tmp_path,
            variables={**os.environ, **variables},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.mark.row("S-C1")
def test_the_basic_use_of_parameters_prints_what_the_text_prints(snippet: Run) -> None:
    printed = snippet("S-C1").stdout

    assert printed == f"Params[{FIELDS.format(epoch=400)},\n ('batch_size', 25)]\n"


@pytest.mark.row("S-C2")
def test_parameters_of_a_class_of_ones_own_have_the_fields_of_the_text(snippet: Run) -> None:
    values = (
        "('batch_size', 50),\n ('topk', (1, 2, 3, 4)),\n ('optim', {'lr': 0.009, 'moment': 0.9})"
    )

    printed = snippet("S-C2", after="print(params)").stdout

    assert printed == f"BaseParams[{FIELDS.format(epoch=10)},\n {values}]\n"


@pytest.mark.row("S-C3")
def test_parameters_come_from_the_command_line(snippet: Run) -> None:
    printed = snippet("S-C3", "--epoch=400", "--optim.lr=0.01").stdout

    assert printed == f"Params[{FIELDS.format(epoch=400)},\n ('optim', {{'lr': 0.01}})]\n"


@pytest.mark.row("S-C4")
def test_a_meter_prints_in_the_forms_of_the_text(snippet: Run) -> None:
    number = r"0\.\d{4}"
    row = rf"\[(?:{number}, ){{3}}{number}\]"
    printed = snippet("S-C4.1", before=SEEDED).stdout
    form = rf"@a=1  @b=2  @c={number}  @c1={number}  @c2=tensor\(\[{number}, {number}\]\)  @c3=tensor\(\[{row},\.\.\.\n"

    assert re.fullmatch(form, printed)
    assert snippet("S-C4.2").stdout == "@a=23.60%\n"


@pytest.mark.row("S-C5")
def test_means_of_an_epoch_stand_in_parentheses(snippet: Run) -> None:
    lines = snippet("S-C5", before=SEEDED).stdout.splitlines()

    assert len(lines) == 5
    for line in lines:
        assert re.match(r"@a=1  @b=2  @c=\d+\.\d\d%\(\d+\.\d\d%\)  @c1=0\.\d{4}\(0\.\d{4}\)", line)
        assert line.endswith("@d=[4]  @e={5: '6'}")


@pytest.mark.row("S-C6")
def test_a_state_of_the_generators_that_is_set_again_trains_the_same(snippet: Run) -> None:
    first, second = snippet("S-C6").stdout.split("[Parameter")[1:]

    assert first == second


@pytest.mark.row("S-C7", "C32", "C34")
def test_checkpoints_rotate_and_keypoints_and_models_stay_as_files_of_torch(
    snippet: Run, tmp_path: Path
) -> None:
    lines = [ast.literal_eval(line) for line in snippet("S-C7").stdout.splitlines()]

    counts = [len(line) for line in lines]
    assert counts == [*range(1, 11), *(min(i, 3) for i in range(1, 11)), *range(1, 11)]
    for i, path in enumerate(lines[-1]):
        assert path.endswith(".pth")
        assert torch.load(tmp_path / path, weights_only=True) == {"a": i}
        assert json.loads((tmp_path / f"{path}.json").read_text(encoding="utf-8")) == {"b": i}


def test_a_state_that_only_code_could_read_back_is_refused(tmp_path: Path) -> None:
    from assay.compat.thexp.saver import TorchFileSaver
    from assay.core.errors import CheckpointError

    with pytest.raises(CheckpointError, match="is not plain data"):
        TorchFileSaver(tmp_path).save_model(1, {"model": torch.nn.Linear(1, 1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("S-C8", "C41")
def test_an_experiment_records_its_log_its_checkpoints_and_its_key_code(
    snippet: Run, tmp_path: Path
) -> None:
    def stored() -> set[str]:
        return set(FileBlobs(tmp_path / "exp" / ".assay" / "code").digests())

    first = snippet("S-C8")
    before = stored()
    snippet("S-C8")

    assert len(re.findall(r"INFO \d$", first.stderr, re.MULTILINE)) == 50
    assert stored() == before  # the same code is kept once
    folders = run_folders(open_project(tmp_path / "exp"))
    assert len(folders) == 2
    for folder in folders:
        file = run_file.read(folder.path)
        assert (file.status, file.tag) == ("finished", "exp")
        (digest,) = file.newest.code.keys.values()
        kept = FileBlobs(tmp_path / "exp" / ".assay" / "code").get(digest)
        assert kept.startswith(b"@exp.keycode()\ndef train():")
        left = files_left(folder)
        assert "log/log.log" in left
        names = {path for path in left if path.startswith("save/")}
        assert names == {f"save/{i:07d}.task.ckpt" for i in (2, 3, 4)}


@pytest.mark.row("S-C9", "C47", "C52")
def test_the_viewer_and_the_variables_of_the_text_answer(snippet: Run, tmp_path: Path) -> None:
    snippet("S-C8")
    (folder,) = run_folders(open_project(tmp_path / "exp"))
    key = run_file.read(folder.path).id

    viewed = snippet("S-C9.viewer").stdout
    (tmp_path / ".assay").mkdir()  # thexp init
    variables = (
        'from thexp.frame.experiment import globs\nglobs.update("global", "datasets", "/data")\n'
    )
    lines = snippet("S-C9.globals", before=variables).stdout.splitlines()

    assert viewed.count(f"{{'{key}': 'exp  finished'}}") == 2
    assert f"('{key}', 'save/0000004.task.ckpt')" in viewed
    assert "@exp.keycode()" in viewed and "'status': 'finished'" in viewed
    assert lines[0] == "/data"
    assert "datasets" in Path(lines[-1]).read_text(encoding="utf-8")


def test_the_logger_of_the_text_prints_whole_lines_and_one_that_is_rewritten(snippet: Run) -> None:
    lines = snippet("S-C9.logger").stderr.splitlines()

    assert lines[-2].endswith("examples 1 2 3 {4: 4}")
    assert lines[-1].endswith("long text;") and "@a=3.1352" in lines[-1]


@pytest.mark.row("S-C10", "C59", "C63")
def test_the_trainer_of_the_text_trains_tests_and_keeps_all_of_its_experiment(
    snippet: Run, tmp_path: Path
) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(TORCHVISION, encoding="utf-8")
    (package / "datasets.py").write_text("from torchvision import FakeData\n", encoding="utf-8")

    errors = snippet("S-C10").stderr

    (folder,) = run_folders(open_project(tmp_path / "experiment"))
    view = RunView(folder)
    assert (view.tag, view.status) == ("mytrainer_lr=0.01", "finished")
    assert view.file.newest.to_step == 310
    steps: dict[str, list[int]] = {"eval": [], "test": []}
    for each in read_events(folder.events):
        if isinstance(each.fact, Evaluated):
            steps[each.fact.split].append(each.fact.step)
    assert steps == {"eval": list(range(31, 311, 31)), "test": [155, 310]}
    assert len(list(folder.checkpoints.glob("step-*"))) == 4
    assert [step for step, _ in read(folder.path / "board").scalars["train/loss"]] == [
        *range(1, 311)
    ]
    assert re.search(r"epoch 10/10  .* @loss=", folder.log.read_text(encoding="utf-8"))
    assert plain(load(folder.config_toml).root)["lr"] == 0.01 and view.file.newest.code.snapshot
    assert "start mytrainer_lr=0.01: 10 epochs on cpu" in errors
    assert re.search(r"epoch 1/10  batch \d+/31  @loss=", errors)
    assert re.search(r"epoch 10/10  \d+\.\d s  ETA \d:\d\d:\d\d  @loss=", errors)


PLANTED = """
import os, signal

torch_seed = __import__("torch").manual_seed(0)  # the text leaves the initial weights to chance
_train_batch = MyTrainer.train_batch


def train_batch(self, *given):
    if self.engine.state.step == 40 and "SIGNAL" in os.environ:
        os.kill(os.getpid(), getattr(signal, os.environ.pop("SIGNAL")))
    return _train_batch(self, *given)


MyTrainer.train_batch = train_batch
"""


@pytest.fixture
def trained(forking: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs commands in a folder with the training of the text in `script.py`."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(TORCHVISION, encoding="utf-8")
    (package / "datasets.py").write_text("from torchvision import FakeData\n", encoding="utf-8")
    text = executed("S-C10")
    place = text.index("params = Params()\n")
    (tmp_path / "script.py").write_text(text[:place] + PLANTED + text[place:], encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "XDG_DATA_HOME": str(tmp_path / "data")}

    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={**os.environ, **own, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def runs_in(folder: Path) -> list[RunView]:
    views = [RunView(each) for each in run_folders(open_project(folder))]
    return sorted(views, key=lambda view: view.file.created_ns)


def final_weights(view: RunView) -> bytes:
    return (view.folder.checkpoints / "step-000000310" / "model.safetensors").read_bytes()


@pytest.mark.thorough
@pytest.mark.row("C69")
def test_a_report_of_the_training_names_parameters_metrics_pictures_and_files(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    text = (tmp_path / "script.py").read_text(encoding="utf-8")
    text = text.replace("trainer.train()", "AutoReport().hook(trainer)\ntrainer.train()")
    text = text.replace("params.lr = 0.01", "params.lr = 0.01\nparams.epoch = 2")
    imported = "from thexp.frame.callbacks import AutoReport\n"
    (tmp_path / "script.py").write_text(imported + text, encoding="utf-8")

    done = trained("assay.compat", "script.py")

    assert done.returncode == 0, done.stderr
    (view,) = runs_in(tmp_path / "experiment")
    report = view.path / "report" / "report.md"
    page = report.read_text(encoding="utf-8")
    assert page.startswith("# mytrainer\\_lr=0.01\n") and "| lr | 0.01 |" in page
    assert "| train/loss |" in page and "| test/acc |" in page
    places = re.findall(r"\]\(([^)]*)\)", page)
    assert {"pictures/0.svg", "../checkpoints/step-000000062"} <= set(places)
    assert all((report.parent / place).exists() for place in places)
    assert "<polyline" in (report.parent / "pictures" / "0.svg").read_text(encoding="utf-8")


FORMATS = """
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from thexp.frame import Meter, Params, Trainer
from thexp.frame.callbacks import AutoReport, Callback


class Halves(Trainer):
    def initial_trainer(self, params):
        self.model = nn.Linear(4, 2)
        self.optim = SGD(self.model.parameters(), lr=0.1)
        points = torch.randn(64, 4)
        data = TensorDataset(points, (points.sum(1) > 0).long())
        self.regist_databundler(train=DataLoader(data, batch_size=16))

    def train_batch(self, eidx, idx, global_step, batch_data, params, device):
        assert (eidx, idx, global_step) == (params.eidx, params.idx, params.global_step)
        meter = Meter()
        meter.percent(meter.half_)
        xs, ys = batch_data
        meter.loss = nn.functional.cross_entropy(self.model(xs), ys)
        meter.half, meter.note = 0.5, "hi"
        meter.loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        return meter


class Counts(Callback):
    def __init__(self):
        self.seen = 0

    def on_batch_end(self, trainer):
        params = trainer.params
        print("after", params.eidx, params.idx, params.global_step)

    def on_iteration_end(self, params, meter, **kwargs):
        self.seen += params.global_step == kwargs["global_step"] and meter.mean("half") == 0.5

    def on_epoch_end(self, epoch, logs=None):
        self.epoch = epoch

    def on_step_over(self):
        print("never")


params = Params()
params.epoch = 2
params.build_exp_name("halves")
trainer = Halves(params)
trainer.initial_exp("./experiment")
Counts().hook(trainer)
AutoReport().hook(trainer)
trainer.train()
print("end", params.global_step)
"""


@pytest.mark.row("C82", "C69")
def test_the_lines_have_the_formats_of_the_meter_and_the_parameters_count(
    warm: Run, tmp_path: Path
) -> None:
    (tmp_path / "halves.py").write_text(FORMATS, encoding="utf-8")
    own = {"PYTHONPATH": str(SRC), "XDG_DATA_HOME": str(tmp_path / "data")}

    done = warm(
        ["-m", "assay.compat", "halves.py"], folder=tmp_path, variables={**os.environ, **own}
    )

    assert done.returncode == 0, done.stderr
    assert "@half=50.00%(50.00%)  @note=hi" in done.stderr
    counted = [f"after {1 + step // 4} {step % 4} {step}" for step in range(8)]
    assert done.stdout.splitlines()[-9:] == [*counted, "end 8"]
    (view,) = runs_in(tmp_path / "experiment")
    page = (view.path / "report" / "report.md").read_text(encoding="utf-8")
    assert f"| run | {view.id} |\n| status | finished |" in page and ", 8 steps |" in page
    assert "[checkpoints/step-000000008](../checkpoints/step-000000008)" in page
    assert "board/" in page.partition("## Files")[2]
    last = view.folder.checkpoints / "step-000000008" / "Counts.json"
    assert json.loads(last.read_text(encoding="utf-8")) == {"epoch": 2, "seen": 8}
    assert "Counts.on_step_over is no moment" in done.stderr + view.path.joinpath(
        "log.txt"
    ).read_text(encoding="utf-8")


@pytest.mark.row("C58")
def test_a_loader_gives_its_batches_on_the_device_that_it_is_told() -> None:
    from assay.compat.parts.devices import DataLoader

    data = torch.utils.data.TensorDataset(torch.ones(6, 2), torch.zeros(6))
    loader = DataLoader(data, batch_size=4, device="meta")

    assert [[part.device.type for part in batch] for batch in loader] == [["meta", "meta"]] * 2
    assert [xs.shape[0] for xs, _ in loader] == [4, 2]
    assert next(iter(loader.to("cpu")))[0].device.type == "cpu"
    assert next(iter(DataLoader(data, batch_size=4)))[0].device.type == "cpu"


@pytest.mark.row("S-C9", "C51")
def test_the_commands_of_the_text_set_list_and_delete_variables(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    home = str(tmp_path / "config")

    def thexp(words: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = trained(
            "assay.compat", *words.split(), XDG_CONFIG_HOME=home
        )
        return done

    assert "thexp init" in original("S-C9.commands")
    assert "is a project" in thexp("thexp init").stdout
    thexp("thexp config --global datasets /path/to/all/datasets")
    thexp("thexp config --local lr 0.1")
    thexp("thexp config --global lr 0.2")
    assert thexp("thexp config -l").stdout == "datasets=/path/to/all/datasets\nlr=0.1\n"
    assert thexp("thexp config --global -l").stdout.splitlines()[-1] == "lr=0.2"
    assert thexp("thexp config --local -u lr").returncode == 0
    assert thexp("thexp config --local -l").stdout == ""
    assert thexp("thexp config -l").stdout.splitlines()[-1] == "lr=0.2"
    missing = thexp("thexp config --local -u lr")
    assert missing.returncode == 2 and "`lr` is not set" in missing.stderr
    wrong = thexp("thexp config --nonlocal -l")
    assert wrong.returncode == 2 and "is no command of thexp" in wrong.stderr


@pytest.mark.thorough
@pytest.mark.row("C56", "C64")
@pytest.mark.parametrize(
    ("name", "code", "how"), [("SIGINT", 130, "assay resume"), ("SIGTERM", 143, "--resume auto")]
)
def test_a_signalled_trainer_is_resumed_to_the_bits_of_one_that_was_not(
    name: str, code: int, how: str, trained: Callable[..., Any], tmp_path: Path
) -> None:
    compat = ("assay.compat", "script.py")

    whole = trained(*compat)
    stopped = trained(*compat, SIGNAL=name)

    assert (whole.returncode, stopped.returncode) == (0, code), stopped.stderr
    straight, cut = runs_in(tmp_path / "experiment")
    assert cut.status == "stopped" and cut.file.newest.to_step == 41
    assert (cut.folder.checkpoints / "step-000000041" / "manifest.json").is_file()

    if how == "assay resume":
        resumed = trained("assay", "resume", str(cut.path))
    else:
        resumed = trained("assay.compat", "--resume", "auto", "script.py")

    assert resumed.returncode == 0, resumed.stderr
    assert "from step 41" in resumed.stderr
    straight, ended = runs_in(tmp_path / "experiment")
    attempts = [(each.from_step, each.to_step) for each in ended.file.attempts]
    assert ended.id == cut.id and attempts == [(0, 41), (41, 310)]
    assert final_weights(ended) == final_weights(straight)
    for metric in ("train/loss", "eval/acc", "test/acc"):
        once, twice = straight.metric(metric), ended.metric(metric)
        assert (once.steps == twice.steps).all() and (once.values == twice.values).all()
    again = trained("assay", "resume", str(cut.path))
    assert again.returncode == 2 and "has finished" in again.stderr


@pytest.mark.thorough
@pytest.mark.row("C56")
def test_the_command_of_a_record_that_was_not_made_here_is_not_run(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    trained("assay.compat", "script.py", SIGNAL="SIGTERM")
    (cut,) = runs_in(tmp_path / "experiment")

    changed = trained("assay", "resume", str(cut.path), "train.epochs=3")
    file = cut.path / "run.json"
    file.write_text(file.read_text().replace('"script.py"', '"other.py"'), encoding="utf-8")
    (tmp_path / "other.py").write_text("print('planted')\n", encoding="utf-8")
    foreign = trained("assay", "resume", str(cut.path))

    assert changed.returncode == 2 and "takes no keys" in changed.stderr
    assert foreign.returncode == 2 and "planted" not in foreign.stdout
    assert "was not made here" in foreign.stderr


@pytest.mark.row("C71")
@pytest.mark.parametrize("k", [1, 5])
def test_classify_is_the_share_of_samples_whose_class_is_among_the_first_k(k: int) -> None:
    install("thexp")
    from thexp.calculate.accuracy import classify  # type: ignore[import-not-found]

    logits, labels = torch.randn(200, 10), torch.randint(0, 10, (200,))

    (share,) = classify(logits, labels, topk=(k,))

    first = [sorted(range(10), key=lambda c: -row[c])[:k] for row in logits.tolist()]
    pairs = zip(labels.tolist(), first, strict=True)
    assert share == pytest.approx(sum(label in best for label, best in pairs) / 200)


MEASURED = """
import torch
from thexp.frame import Meter, Params, Trainer
from thexp.frame.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Shown(Callback):
    def on_eval_end(self, trainer, meter, eidx):
        print("shown", eidx, {name: round(mean, 4) for name, mean in meter.means().items()})


class Measured(Trainer):
    def initial_callback(self):
        super().initial_callback()
        Shown().hook(self)

    def initial_trainer(self, params):
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.0)
        inputs = torch.arange(5.0).reshape(5, 1)
        loader = DataLoader(TensorDataset(inputs, inputs), batch_size=4)
        self.regist_databundler(train=loader, eval=loader)

    def train_batch(self, eidx, idx, global_step, batch_data, params, device):
        meter = Meter()
        meter.loss = self.model(batch_data[0]).mean()
        return meter

    def eval_batch(self, eidx, idx, global_step, batch_data, params, device):
        inputs, targets = batch_data
        meter = Meter()
        meter.loss = (self.model(inputs) - targets).abs().mean()
        meter.hits = (inputs > 1).float().mean()
        meter.name = "text"
        return meter


params = Params()
params.epoch = 2
trainer = Measured(params)
trainer.initial_exp("./experiment")
trainer.logger.info("ema", 1, [2])
trainer.train()
"""


def test_what_eval_batch_measures_is_recorded_and_reaches_the_callback(
    trained: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(MEASURED, encoding="utf-8")

    done = trained("assay.compat", "script.py")

    assert done.returncode == 0, done.stderr
    (view,) = runs_in(tmp_path / "experiment")
    right = {"loss": 2.0, "hits": 0.6}  # means over five samples in batches of four and one
    assert {name: view.metric(f"eval/{name}").values.tolist() for name in right} == {
        name: [value] * 2 for name, value in right.items()
    }
    assert [line for line in done.stdout.splitlines() if line.startswith("shown")] == [
        f"shown {epoch} {right}" for epoch in (1, 2)
    ]
    assert "ema 1 [2]" in view.folder.log.read_text(encoding="utf-8")
