"""The text of 2021, run as it stands there but for the repairs that `rows.toml` names."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.cli.main import main
from assay.compat.pasted import missing_names, supply
from assay.config import load
from assay.query.run import RunView
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from event_reader import read
from examples import SRC
from snippets import executed
from warm_python import Run

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
AROUND = """
class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(4 * 26 * 26, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x):
        return self.fc(self.conv(x))


class vutils:
    @staticmethod
    def make_grid(x, nrow):
        return x[:nrow].permute(1, 2, 0, 3).reshape(1, x.shape[2], -1)


def accuracy_score(targets, found):
    return np.float64((targets == found).float().mean().item())


torch.manual_seed(0)
MyConvNet = ConvNet()
test_data_x, test_data_y = torch.rand(20, 1, 28, 28), torch.randint(10, (20,))
batch = (torch.rand(4, 1, 28, 28), torch.randint(10, (4,)))
train_loader = [batch] * 50
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def snippet(warm: Run, tmp_path: Path) -> Run:
    """Runs the text of a row in a process of its own, in a new folder, to a good end."""

    def run(
        name: str, before: str = "", after: str = "", *, arguments: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        text = before + executed(name) + after
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = warm(
            ["-m", "assay.compat", f"{name}.py", *arguments],
            folder=tmp_path,
            variables={**os.environ, **own},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.mark.row("S-B1", "B15")
def test_logging_is_set_up_in_the_four_ways_of_the_text(snippet: Run, tmp_path: Path) -> None:
    first = snippet("S-B1.1", after='logger.info("told")').stderr
    snippet("S-B1.2", after='logger.info("told")')
    third = snippet("S-B1.3", after='logger.warning("told")').stderr
    fourth = snippet("S-B1.4").stderr
    result = (tmp_path / "result.log").read_text(encoding="utf-8")
    alibaba = (tmp_path / "Alibaba.log").read_text(encoding="utf-8")

    assert re.fullmatch(rf"{DATE} - __main__ - INFO - told\n", first)
    assert re.fullmatch(rf"{DATE} - __main__ - INFO - told\n", alibaba)
    assert re.fullmatch(r"\d{4}/\d\d/\d\d [\d:]{8} - __main__ - WARNING - told\n", third)
    assert fourth == result
    said = [line for line in result.splitlines() if re.match(DATE, line)]
    assert [line.split(" - ")[2:] for line in said] == [
        ["INFO", "Start"],
        ["WARNING", "Something maybe fail."],
        ["ERROR", "Faild to get result"],
        ["INFO", "Finished"],
    ]
    assert "ZeroDivisionError: division by zero" in result


@pytest.mark.row("S-B6", "B33")
def test_a_loop_with_a_summary_writer_is_in_event_files_and_in_a_record(
    snippet: Run, tmp_path: Path
) -> None:
    printed = snippet("S-B6.board", AROUND).stdout

    assert re.findall(r"^global_step:(\d+), loss:", printed, re.MULTILINE) == ["100", "200"]
    (folder,) = run_folders(open_project(tmp_path))
    events, curves = read(folder.path / "board"), read_series(folder.metrics)
    for name in ("train loss", "test accuary"):
        steps, values = zip(*events.scalars[name], strict=True)
        assert steps == (100, 200) and np.allclose(values, curves[name].values)
    assert [step for step, *_ in events.images["train image sample"]] == [100, 200]
    assert set(events.histograms) == {
        f"{layer}.{kind}" for layer in ("conv.0", "fc.0", "fc.2") for kind in ("weight", "bias")
    }
    assert (tmp_path / "data" / "log" / folder.path.name).resolve() == folder.path / "board"


@pytest.mark.row("S-B6", "B33")
def test_a_loop_with_a_history_and_a_canvas_is_a_run_with_curves_and_images(
    snippet: Run, warm: Run, tmp_path: Path
) -> None:
    told = snippet("S-B6.live", AROUND).stderr
    live = ["-m", "assay", "live", "last", "--metric", "test_acc", "--image", "hidden_weight"]
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
    shown = warm(live, folder=tmp_path, variables={**os.environ, **own}).stdout.splitlines()

    (folder,) = run_folders(open_project(tmp_path))
    view = RunView(folder)
    assert list(view.history("train_loss", "test_acc")) == [(1, 1), (3, 2)]  # epoch, step
    page = (folder.path / "canvas.html").read_text(encoding="utf-8")
    assert (page.count("<svg"), page.count("<img")) == (2, 1) and "refresh" not in page
    assert f"canvas: {(folder.path / 'canvas.html').as_uri()}" in told
    assert any("hidden_weight" in each.name for each in view.artifacts)
    assert "test_acc" in shown
    weight = shown[shown.index("hidden_weight  step 2") + 1 :]
    assert len(weight) > 2 and len(set("".join(weight))) > 2


TWO_PROCESSES = """
import os, sys, tempfile
from pathlib import Path

RANKS = int(sys.argv[1])
sys.stdout.flush()
RANK = 0 if RANKS == 1 or os.fork() else 1
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{Path.cwd() / 'ranks'}{RANKS}", rank=RANK, world_size=RANKS
)
"""
END_OF_TWO = """
torch.distributed.destroy_process_group()
sys.stdout.flush()
if RANK:
    os._exit(0)
if RANKS == 2 and os.wait()[1] != 0:
    sys.exit("the other process failed")
"""
SENTENCES = """
import logging
from types import SimpleNamespace
from assay.compat.parts.text import TextProcessor, WordPieces

config = SimpleNamespace(
    local_rank=RANK, data_dir="data", max_seq_len=16, use_entity_indicator=True
)
evaluate = False
cached_features_file = "cache/features.bin"
logging.basicConfig(level="INFO", stream=sys.stdout, format=f"{RANK} %(message)s")
logger = logging.getLogger("features")
processor = TextProcessor(["Cause-Effect", "Other"])
tokenizer = WordPieces("data/vocab.txt")
"""
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] $ # the fire was caus ##ed by smoke in house ."
FIRST = "[CLS] the $ fire $ was caus ##ed by # smoke # . [SEP] [PAD] [PAD]"
RELATIONS = (
    "Cause-Effect\tThe <e1>fire</e1> was caused by <e2>smoke</e2>.\n"
    "Other\tThe <e1>smoke</e1> was in the <e2>house</e2>.\n"
)


@pytest.fixture
def relations(tmp_path: Path) -> Path:
    """Folder with two sentences in each of which two entities are marked, and a vocabulary."""
    for name in ("data", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "train.tsv").write_text(RELATIONS, encoding="utf-8")
    words = "\n".join(VOCABULARY.split())
    (tmp_path / "data" / "vocab.txt").write_text(words, encoding="utf-8")
    return tmp_path


@pytest.mark.row("S-B2", "B11")
def test_features_are_made_by_the_first_of_two_processes_and_read_by_the_other(
    snippet: Run, relations: Path
) -> None:
    shown = (
        "\nlines = [f.input_ids for f in features], [f.label_id for f in features]\n"
        "sys.stdout.write(f'{RANK} {lines[0]} {features[0].e2_mask} {lines[1]}\\n')\n"
        "sys.stdout.flush()\n"  # a line in one piece: the other process writes to the same pipe
    )
    printed = snippet(
        "S-B2", TWO_PROCESSES + SENTENCES, shown + END_OF_TWO, arguments=["2"]
    ).stdout.splitlines()

    said = [line.partition(" ") for line in printed]
    assert [(rank, text) for rank, _, text in said if "features" in text] == [
        ("0", "Creating features from dataset file at data"),
        ("0", "Saving features into cached file cache/features.bin"),
        ("1", "Loading features from cached file cache/features.bin"),
    ]
    features = {rank: text for rank, _, text in said if text.startswith("[")}
    assert features["0"] == features["1"]
    ids = VOCABULARY.split().index
    assert str([ids(token) for token in FIRST.split()]) in features["0"]
    assert features["0"].endswith(f"{[int(9 <= i < 12) for i in range(16)]} [0, 1]")


TRAINING = """
from types import SimpleNamespace

torch.manual_seed(0)
opt = SimpleNamespace(
    device=torch.device("cpu"), batch_size=16 // RANKS, n_threads=0, begin_epoch=1, n_epochs=3,
    distributed=RANKS > 1,
)
x = torch.linspace(0, 1, 64, dtype=torch.float64)[:, None]
train_data = torch.utils.data.TensorDataset(x, x * x)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = []
train_batch_logger = SimpleNamespace(log=rows.append)
train_logger = tb_writer = None
if RANK == 0:
    from tensorboardX import SummaryWriter
    tb_writer = SummaryWriter(f"log{RANKS}")
"""


@pytest.mark.slow
@pytest.mark.row("S-B3", "B18")
def test_two_processes_learn_what_one_does_of_batches_of_the_same_size(
    snippet: Run, tmp_path: Path
) -> None:
    shown = (
        "\nif RANK == 0:\n    print(torch.cat([p.detach().flatten() for p in model.parameters()])"
        ".tolist())\n    print(rows[-1]['epoch'], rows[-1]['iter'], rows[-1]['lr'])\n"
    )

    lines = [
        snippet(
            "S-B3", TWO_PROCESSES + TRAINING, shown + END_OF_TWO, arguments=[ranks]
        ).stdout.splitlines()
        for ranks in ("1", "2")
    ]

    one, two = (np.array(json.loads(each[-2])) for each in lines)
    assert np.abs(one - two).max() < 1e-12 and np.abs(one).max() > 0.1
    assert [each[-1] for each in lines] == ["3 12 0.1"] * 2
    for folder in run_folders(open_project(tmp_path)):
        curves = read_series(folder.metrics)
        assert list(curves["train/loss"].steps) == [1, 2, 3]
        assert list(curves["train/lr"].values) == [0.1] * 3


def test_a_model_that_averages_its_gradients_itself_is_left_to_do_so(
    snippet: Run, tmp_path: Path
) -> None:
    wrapped = "model = nn.parallel.DistributedDataParallel(model)\n"
    shown = "\nif RANK == 0: print(sum(p.sum().item() for p in model.parameters()))\n"

    sums = [
        snippet("S-B3", around, shown + END_OF_TWO, arguments=["2"]).stdout.splitlines()[-1]
        for around in (TWO_PROCESSES + TRAINING, TWO_PROCESSES + TRAINING + wrapped)
    ]

    assert abs(float(sums[0]) - float(sums[1])) < 1e-12


LOOP = """
def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class LossCriterion(nn.CrossEntropyLoss): ...


epoch = 3
draw = torch.Generator().manual_seed(0)
train_loader = [
    (torch.rand(8, 4, generator=draw), torch.randint(2, (8,), generator=draw)) for _ in range(5)
]
model, criterion = made(), LossCriterion()
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
BY_ENGINE = """
from assay.engine import ByHand, Engine, OptimizerStep, Supervised
from torch.optim import lr_scheduler


def fresh():
    other = made()
    return other, optim.SGD(other.parameters(), lr=0.1)


def rates_of(schedule, by_engine):
    global optimizer, scheduler
    other, optimizer = fresh()
    exec(schedule, globals())
    rates = []
    if by_engine:
        step = OptimizerStep(optimizer, schedule=scheduler)
        engine = Engine(Supervised(other, criterion, backward=step), train_loader[:1], epochs=100)
        engine.on("step_begin")(lambda: rates.append(optimizer.param_groups[0]["lr"]))
        engine.run()
    else:
        for _ in range(100):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return rates


def weights(net):
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


other, optimizer = fresh()
Engine(Supervised(other, LossCriterion(), optimizer), train_loader, epochs=epoch).run()
print("engine", torch.equal(weights(model), weights(other)))
other, optimizer = fresh()
for x, y in Engine(ByHand(other, optimizer), train_loader, epochs=epoch):
    loss = criterion(other(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("by hand", torch.equal(weights(model), weights(other)))
for line in open(__file__, encoding="utf-8"):
    if line.startswith("# scheduler = "):
        schedule = line.removeprefix("# ")
        rates = rates_of(schedule, by_engine=False)
        print(schedule.split("(")[0], len(set(rates)), rates == rates_of(schedule, by_engine=True))
"""


@pytest.mark.row("S-B4", "B22", "B24")
def test_the_loop_of_the_text_and_its_four_schedules_are_those_of_an_engine(snippet: Run) -> None:
    lines = snippet("S-B4", LOOP, BY_ENGINE).stdout.splitlines()

    assert lines == [
        "engine True",
        "by hand True",
        "scheduler = lr_scheduler.StepLR 4 True",
        "scheduler = lr_scheduler.MultiStepLR 4 True",
        "scheduler = lr_scheduler.ExponentialLR 100 True",
        "scheduler = lr_scheduler.CosineAnnealingLR 100 True",
    ]


SAVED = """
from types import SimpleNamespace

net = model = nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
PATH, checkpoint_path, launchTimestamp = "net.pth", ".", "20210131"
epochID, lossMIN, loss = 6, 0.25, SimpleNamespace(alpha=0.25, gamma=2.0)
"""
RESTORED = """
from assay.engine import load_checkpoint as load_here

path = "m-20210131-0.2500.pth.tar"
for load in (load_checkpoint, lambda *given: load_here(*given, pickled=True)):
    other = nn.Linear(3, 2)
    again = torch.optim.Adam(other.parameters())
    found = load(other, path, again)
    print(torch.equal(model.weight, other.weight), torch.equal(model.bias, other.bias))
    print([float(each["step"]) for each in again.state_dict()["state"].values()])
print(dict(found.rest))
"""


@pytest.mark.row("S-B5", "B27", "B28")
def test_a_dictionary_that_holds_all_is_read_by_the_text_and_by_assay(snippet: Run) -> None:
    lines = snippet("S-B5", SAVED, RESTORED).stdout.splitlines()

    assert lines == [
        "loading checkpoint!",
        *["True True", "[1.0, 1.0]"] * 2,
        "{'epoch': 7, 'best_loss': 0.25, 'alpha': 0.25, 'gamma': 2.0}",
    ]


def test_names_that_the_text_leaves_out_are_those_of_scikit_learn_and_torchvision() -> None:
    named = supply(missing_names("import tensorboardX\naccuracy_score, vutils"))
    images = torch.arange(3 * 2 * 2, dtype=torch.float32).reshape(3, 1, 2, 2)

    grid = named["vutils"].make_grid(images, nrow=2)

    assert named["accuracy_score"]([0, 1, 1], torch.tensor([0, 1, 0])).item() == pytest.approx(
        2 / 3
    )
    assert grid.shape == (3, 10, 10)  # two rows of two images with two pixels between
    assert torch.equal(grid[0, 2:4, 6:8], images[1, 0]) and grid[0, 6:8, 2:4].sum() == 38


PLAIN = """
import argparse
import configparser
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
opt = parser.parse_args()
ini = configparser.ConfigParser()
ini.read("train.ini")
with open("config.json") as file:
    cfg = json.load(file)
torch.save({"words": [1, 2]}, "features.pt")
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr)
for epoch in range(cfg["epochs"]):
    loss = model(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("epoch", epoch)
    torch.save({"epoch": epoch, "state_dict": model.state_dict()}, "last.pth.tar")
"""


def test_a_loop_without_any_writer_leaves_its_config_its_output_and_its_checkpoints(
    python: Run, project: Path
) -> None:
    (project / "train.py").write_text(PLAIN, encoding="utf-8")
    (project / "config.json").write_text('{"epochs": 2}', encoding="utf-8")
    (project / "train.ini").write_text("[net]\nhidden = 3\n", encoding="utf-8")

    python("-m", "assay.compat", "train.py", "--lr", "0.2")

    (folder,) = run_folders(open_project(project))
    view = RunView(folder)
    assert (view.tag, view.status) == ("train", "finished")
    assert load(folder.config_toml).root.items.keys() == {"lr", "epochs", "net"}
    assert {each.name for each in view.artifacts} == {"saved/last.pth.tar"}
    assert "epoch 1" in (folder.path / "output.txt").read_text(encoding="utf-8")


def test_arguments_about_event_files_are_taken_and_an_unknown_method_is_one_error(
    python: Run, project: Path
) -> None:
    (project / "write.py").write_text(
        "import torch\n"
        "from tensorboardX import SummaryWriter\n"
        "writer = SummaryWriter(logdir='log', flush_secs=30)\n"
        "writer.add_scalar('loss', 0.5, 1, walltime=1.0)\n"
        "writer.add_image('x', torch.rand(8, 8, 3), 1, dataformats='HWC')\n"
        "writer.add_hparams({'lr': 0.1}, {'acc': 0.75})\n"
        "try:\n    writer.add_mesh('m')\nexcept AttributeError as error:\n    print(error)\n",
        encoding="utf-8",
    )

    said = python("-m", "assay.compat", "write.py").stdout

    (folder,) = run_folders(open_project(project))
    assert {"loss", "acc"} <= read_series(folder.metrics).keys()
    assert "`SummaryWriter.add_mesh` has nothing here that stands for it." in said


def test_weights_that_are_saved_without_a_step_begin_a_record_and_features_do_not(
    python: Run, project: Path
) -> None:
    text = "import sys, torch\ntorch.save({'a': torch.ones(2)} if sys.argv[1:] else [1], 'a.pt')\n"
    (project / "save.py").write_text(text, encoding="utf-8")

    python("-m", "assay.compat", "save.py")
    assert not (project / ".assay").exists()
    python("-m", "assay.compat", "save.py", "weights")

    (folder,) = run_folders(open_project(project))
    assert [each.name for each in RunView(folder).artifacts] == ["saved/a.pt"]


def test_a_script_is_no_config_to_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    (project / "train.py").write_text(PLAIN, encoding="utf-8")

    assert main(["run", "train.py"]) == 2
    assert "fix: python -m assay.compat train.py records what it trains" in capsys.readouterr().err
