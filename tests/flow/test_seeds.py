"""The snippets that the texts before assay show run as they stand in `examples/seeds`, and print what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from assay.config import get_at, load, plain
from examples import EXAMPLES

SEEDS = EXAMPLES / "seeds"
SRC = EXAMPLES.parent / "src"

BUILT_IN = "('epoch', {epoch}),\n ('eidx', 1),\n ('idx', 0),\n ('global_step', 0),\n ('device', 'cpu')"
OF_THE_CLASS = (
    f"Params[{BUILT_IN.format(epoch=10)},\n ('batch_size', 50),\n ('topk', (1, 2, 3, 4)),\n"
    " ('optim', {'lr': 0.009, 'moment': 0.9})]\n"
)
PLUGINS = """\
plugins = [
    { type = "alchemy.plugins.BasicSetup" },
    { type = "alchemy.plugins.FileLogger", log_dir = "records/weixin/tagger/train", subdirs = ["detail_log"] },
    { type = "alchemy.plugins.Backup", paths = ["alchemy", "src"] },
    { type = "alchemy.plugins.TensorboardLogger" },
    { type = "alchemy.plugins.Seeding", seed = 0, use_deterministic_algorithms = true },
    { type = "alchemy.plugins.DisplayRunningInfo" },
]
"""
PIPES = """\
pipes = [
    { type = "alchemy.pipeline.lst.SequenceWrapper", datapipe = ["/home/wsh/data/datasets/ace04/train.jsonl"] },
    { type = "src.task.ner.datapipe.JsonLOpener" },
    { type = "alchemy.pipeline.itr.SplitByWorker" },
    { type = "alchemy.pipeline.itr.Shuffle" },
    { type = "src.task.ner.datapipe.ParseJsonDoc" },
    { type = "src.task.ner.datapipe.PruneLongText" },
    { type = "src.task.ner.datapipe.Sample2Encoding" },
    { type = "alchemy.pipeline.itr.Batch", batch_size = 8 },
]
"""


PLUGIN_NAMES = ["BasicSetup", "FileLogger", "Backup", "TensorboardLogger", "Seeding", "DisplayRunningInfo"]
PIPE_NAMES = ["SequenceWrapper", "JsonLOpener", "SplitByWorker", "Shuffle"]
PIPE_NAMES += ["ParseJsonDoc", "PruneLongText", "Sample2Encoding", "Batch"]


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a snippet in a process of its own that sees no GPU."""
    done = subprocess.run(
        [sys.executable, str(SEEDS / script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.row("S-C1", "C02")
def test_the_basic_use_of_parameters(tmp_path: Path) -> None:
    done = run("params_basic.py", folder=tmp_path)

    assert done.stdout == f"Params[{BUILT_IN.format(epoch=400)},\n ('batch_size', 25)]\n"
    assert done.stderr == ""


@pytest.mark.row("S-C2", "C05", "C06")
def test_parameters_with_a_class_of_their_own(tmp_path: Path) -> None:
    done = run("params_class.py", folder=tmp_path)

    assert done.stdout == f"Base{OF_THE_CLASS}Assigned{OF_THE_CLASS}"
    assert done.stderr == ""


@pytest.mark.row("S-C3", "C07")
def test_parameters_from_the_command_line(tmp_path: Path) -> None:
    done = run("params_command_line.py", "--epoch=400", "--optim.lr=0.01", folder=tmp_path)

    assert done.stdout == f"Params[{BUILT_IN.format(epoch=400)},\n ('optim', {{'lr': 0.01}})]\n"
    assert "UserWarning: unknown parameter `optim`: it is added" in done.stderr


@pytest.mark.row("S-C4", "C16", "C17")
def test_measured_values_and_their_forms(tmp_path: Path) -> None:
    values = torch.rand(20, generator=torch.Generator().manual_seed(0))  # the snippet draws 1, 1, 2 and 16

    first, second = run("meter.py", folder=tmp_path).stdout.splitlines()

    assert re.fullmatch(
        r"@a=1  @b=2  @c=0\.\d{4}  @c1=0\.\d{4}  @c2=tensor\(\[0\.\d{4}, 0\.\d{4}\]\)"
        r"  @c3=tensor\(\[\[(0\.\d{4}, ){3}0\.\d{4}\],\.\.\.",
        first,
    )
    assert first.startswith(f"@a=1  @b=2  @c={values[0]:.4f}  @c1=")
    assert second == "@a=23.60%"


@pytest.mark.row("S-C5", "C20")
def test_means_over_what_was_measured(tmp_path: Path) -> None:
    lines = run("meter_average.py", folder=tmp_path).stdout.splitlines()

    form = re.compile(
        r"@a=1  @b=2  @c=\d+\.\d\d%\((?P<c>\d+\.\d\d)%\)  @c1=0\.\d{4}\((?P<c1>0\.\d{4})\)"
        r"  @c2=tensor\(\[0\.\d{4}, 0\.\d{4}\]\)  @c3=tensor\(\[\[(0\.\d{4}, ){3}0\.\d{4}\],\.\.\."
        r"  @d=\[4\]  @e=\{5: '6'\}"
    )
    assert len(lines) == 5
    found = [form.fullmatch(line) for line in lines]
    assert all(found)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [[torch.rand(n).double().mean() for n in (1, 1, 2, 16)] for _ in range(500)]
    c, c1, *_ = torch.tensor(drawn, dtype=torch.float64).mean(dim=0).tolist()
    assert found[-1] is not None
    assert (found[-1]["c"], found[-1]["c1"]) == (f"{100 * c:.2f}", f"{c1:.4f}")


@pytest.mark.row("A04")
def test_blocks_of_plugins_and_pipes_load_as_they_stand() -> None:
    text = (SEEDS / "tagger" / "tagger.toml").read_text(encoding="utf-8")
    plugins = PLUGINS.replace("alchemy.", "")
    pipes = PIPES.replace("alchemy.pipeline.", "assay.engine.pipes.")
    pipes = re.sub(r'"(alchemy|src\.task\.ner)\.', '"', pipes).replace("/home/wsh/data/datasets/ace04/", "")
    assert plugins in text and pipes in text

    root = load(SEEDS / "tagger" / "tagger.toml").root

    found = plain(get_at(root, ("plugins",)) or root)
    assert [each["type"].split(".")[-1] for each in found] == PLUGIN_NAMES
    assert found[4] == {"type": "plugins.Seeding", "seed": 0, "use_deterministic_algorithms": True}
    found = plain(get_at(root, ("data", "train", "source", "pipes")) or root)
    assert [each["type"].split(".")[-1] for each in found] == PIPE_NAMES


@pytest.mark.row("S-A1", "S-A2", "A64")
def test_plugins_and_pipes_are_checked_built_and_entered_in_order(tmp_path: Path) -> None:
    done = run("tagger/show.py", folder=tmp_path)
    for command in (["check"], ["run", "--no-file"]):
        ran = subprocess.run(
            [sys.executable, "-m", "assay", *command, str(SEEDS / "tagger" / "tagger.toml")],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:6]] == [["enter", name] for name in PLUGIN_NAMES]
    assert lines[1] == "enter FileLogger records/weixin/tagger/train ['detail_log']"
    assert lines[6] == "batches of 8 8 8 8 8 4"
    assert [line.split() for line in lines[7:]] == [["leave", name] for name in reversed(PLUGIN_NAMES)]


@pytest.mark.row("S-E1", "E10")
def test_a_config_in_python_with_its_imports_and_objects_of_omegaconf(tmp_path: Path) -> None:
    done = run("mnist/show.py", folder=tmp_path)

    assert done.stdout.splitlines() == [
        "Linear(in_features=512, out_features=10, bias=True)",
        "Linear(in_features=512, out_features=10, bias=True)",
        "['losses'] [64]",
        "['prediction_scores'] (32, 10)",
        "0 20 128 10 1234",
        "Section(enabled=True)",
    ]
    file = SEEDS / "mnist" / "config.py"
    config = load(file)
    assert {"model", "dataloader", "train"} <= config.root.items.keys()
    assert plain(get_at(config.root, ("train", "seed")) or config.root) == 1234  # of the imported defaults
    assert plain(get_at(config.root, ("evaluate", "every")) or config.root) == "100 steps"
    lines = file.read_text(encoding="utf-8").splitlines()
    told = {note.key: lines[note.origin.line - 1].strip() for note in config.notes}
    for key, text in {
        "eval_period": "eval_period=100,",
        "topk": "topk=(1,),",
        "recompute_grad": "recompute_grad=",
    }.items():
        assert told[f"train.{key}"].startswith(text)
