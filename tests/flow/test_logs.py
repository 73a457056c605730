"""What a run that is started from the command line says, shows and writes into its log."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from .conftest import CONFIG, Assay

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>\w+) +\[(?P<tag>.*?)\] (?P<place>\w+\.py:\d+)  (?P<text>.*)"
)


pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"


def folder_of(toy: Path) -> Path:
    (folder,) = (toy / "runs").iterdir()
    return folder


@pytest.mark.row("A29")
def test_each_line_of_the_log_has_tag_time_level_and_place(toy: Path, assay: Assay) -> None:
    assert assay("run", "toy.toml", "--max-steps", "2").returncode == 0

    lines = [LINE.fullmatch(line) for line in (folder_of(toy) / "log.txt").read_text().splitlines()]
    assert len(lines) > 3 and all(lines)
    assert {line["tag"] for line in lines if line} == {"toy"}
    assert {line["level"] for line in lines if line} == {"INFO"}


@pytest.mark.row("B14")
def test_the_format_of_lines_and_dates_can_be_set_in_the_config(toy: Path, assay: Assay) -> None:
    text = '[display]\nlog_format = "%(asctime)s|%(levelname)s|%(message)s"\ndate_format = "%Y/%m/%d %H:%M:%S"\n'
    (toy / "toy.toml").write_text(CONFIG + text)

    assert assay("run", "toy.toml", "--max-steps", "2").returncode == 0

    lines = (folder_of(toy) / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\|INFO\|", line) for line in lines)


DEBUGGED = """
import os
from points import Points
from torch.utils.data import DataLoader, get_worker_info

class Told(Points):
    def __getitem__(self, i):
        where = "main" if get_worker_info() is None else "worker"
        print("blocking", os.environ.get("CUDA_LAUNCH_BLOCKING"), "in", where)
        return super().__getitem__(i)

def loader(workers):
    return DataLoader(Told(0), batch_size=8, num_workers=workers)
"""


@pytest.mark.thorough
@pytest.mark.row("A14")
@pytest.mark.parametrize("workers", [0, 1])
def test_debug_says_more_on_console_and_in_the_log_and_reaches_the_workers(
    toy: Path, assay: Assay, workers: int
) -> None:
    (toy / "told.py").write_text(DEBUGGED)
    text = CONFIG.replace(
        '"points.Points", split = 0, noisy = true', f'"told.loader", workers = {workers}'
    )
    (toy / "toy.toml").write_text(text.replace("batch_size = 8\n", "", 1))

    plain = assay("run", "toy.toml", "--max-steps", "2")
    assert plain.returncode == 0, plain.stderr
    plain_log = (folder_of(toy) / "log.txt").read_text()
    debugged = assay(
        "run", "toy.toml", "--max-steps", "2", "--debug", ASSAY_RUNS_DIR=str(toy / "others")
    )
    (other,) = (toy / "others").iterdir()

    assert (plain.returncode, debugged.returncode) == (0, 0)
    where = "worker" if workers else "main"
    assert f"blocking None in {where}" in plain.stdout
    assert f"blocking 1 in {where}" in debugged.stdout
    assert "DEBUG" not in plain.stderr + plain_log
    assert " DEBUG   [toy] " in (other / "log.txt").read_text()
    assert " DEBUG   [assay] " in debugged.stderr


@pytest.mark.row("A14")
def test_debug_names_the_line_of_forward_whose_backward_fails(toy: Path, assay: Assay) -> None:
    net = (
        (toy / "net.py")
        .read_text()
        .replace("return self.layers(x)", "return (self.layers(x) * 0).sqrt() * 0")
    )
    (toy / "net.py").write_text(net)

    plain = assay("run", "toy.toml", "--no-file")
    debugged = assay("run", "toy.toml", "--no-file", "--debug")

    assert "net.py" not in plain.stdout + plain.stderr
    assert debugged.returncode == 1
    assert "SqrtBackward0" in debugged.stderr
    assert "(self.layers(x) * 0).sqrt()" in debugged.stderr


@pytest.mark.row("A15")
def test_what_a_run_prints_is_in_its_folder_and_nowhere_without_files(
    toy: Path, assay: Assay
) -> None:
    done = assay("run", "toy.toml", "--max-steps", "2")
    kept = (folder_of(toy) / "output.txt").read_text()

    assert "2 steps, which come before" in kept
    assert all(line in done.stderr.splitlines() for line in kept.splitlines())

    assert (
        assay(
            "run", "toy.toml", "--no-file", "--max-steps", "2", ASSAY_RUNS_DIR=str(toy / "none")
        ).returncode
        == 0
    )
    assert not (toy / "none").exists()


@pytest.mark.row("A34")
def test_what_it_is_run_with_stands_in_the_log_and_as_data_in_the_run_file(
    toy: Path, assay: Assay
) -> None:
    done = assay("run", "toy.toml", "--max-steps", "2", "--device", "cpu")

    assert done.returncode == 0, done.stderr
    folder = folder_of(toy)
    told = [
        line["text"]
        for line in map(LINE.fullmatch, (folder / "log.txt").read_text().splitlines())
        if line
    ]
    file = json.loads((folder / "run.json").read_text())
    (attempt,) = file["attempts"]
    found = attempt["environment"]
    assert f"run {file['id']}  tag toy  attempt 1" in told
    assert any(line.startswith("device cpu") for line in told) and attempt["devices"] == ["cpu"]
    assert f"python {found['python']}  torch {found['torch']['version']}" in told
    assert [line.removeprefix("| ") for line in told if line.startswith("| ")] == (
        folder / "config.toml"
    ).read_text().splitlines()


@pytest.mark.thorough
@pytest.mark.row("A84")
def test_recorded_environments_are_compared_and_hold_versions_and_flags(
    toy: Path, assay: Assay
) -> None:
    short = ("run", "toy.toml", "--max-steps", "2", "--device", "cpu")
    assert assay(*short, OMP_NUM_THREADS="1").returncode == 0
    assert assay(*short, OMP_NUM_THREADS="2").returncode == 0

    said = assay("diff", "last-1", "last", "--env")
    found = [json.loads((run / "run.json").read_text()) for run in sorted((toy / "runs").iterdir())]

    assert said.returncode == 1
    assert re.search(r"variables\.OMP_NUM_THREADS +1 -> 2", said.stdout)
    for attempt in (file["attempts"][0] for file in found):
        recorded = attempt["environment"]["torch"]
        assert recorded["version"].startswith(torch.__version__.partition("+")[0])
        assert {"cuda", "deterministic", "cudnn_deterministic"} <= recorded.keys()


@pytest.mark.row("A30")
def test_the_folder_of_a_run_has_the_layout_that_is_documented(toy: Path, assay: Assay) -> None:
    done = assay("run", "toy.toml", "--max-steps", "3", "--desc", "A first try.\n\nOf two.")

    assert done.returncode == 0, done.stderr
    folder = folder_of(toy)
    page = (DOCS / "reference" / "record.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    there = {path.name + ("/" if path.is_dir() else "") for path in folder.iterdir()}
    always = {
        "README.md",
        "config.toml",
        "config/",
        "run.json",
        "metrics/",
        "events.jsonl",
        "log.txt",
    }
    assert always | {"defaults.json", "trace/", "output.txt", "checkpoints/"} == there
    assert there < documented
    assert (folder / "README.md").read_text().startswith("# toy\n\nA first try.\n\nOf two.\n")


@pytest.mark.row("E56", "B20")
def test_steps_and_epochs_come_as_lines_of_json_with_speed_time_rate_and_memory(
    toy: Path, assay: Assay
) -> None:
    assert assay("run", "toy.toml", "train.epochs=2").returncode == 0

    rows = [json.loads(line) for line in assay("metrics", "last", "--json").stdout.splitlines()]

    of_steps = [row for row in rows if "train/loss" in row["metrics"]]
    of_epochs = [row for row in rows if "speed/steps_per_s" in row["metrics"]]
    assert [row["step"] for row in of_steps] == list(range(1, 17))
    assert [row["step"] for row in of_epochs] == [8, 16]
    assert all(row["metrics"]["train/lr"] > 0 for row in of_steps[:-1])
    assert of_epochs[0]["metrics"]["speed/eta_s"] > 0 == of_epochs[1]["metrics"]["speed/eta_s"]
    assert all("time/data_s" in row["metrics"] for row in of_epochs)
    assert [row["step"] for row in rows if "valid/acc" in row["metrics"]] == [8, 16]
    of_memory = [row for row in rows if "memory/weights_mib" in row["metrics"]]
    assert [row["step"] for row in of_memory] == [8, 16]
    assert all(row["metrics"]["memory/optimizer_mib"] > 0 for row in of_memory)
    assert sys.platform != "linux" or all(
        row["metrics"]["memory/process_mib"] > 10 for row in of_memory
    )
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert assay("metrics", "last", "--json", "-n", "1").stdout.count("\n") == 1
    (toy / "toy.toml").write_text(
        'plugins = [{ type = "assay.engine.Memory", every = "3 steps" }]\n' + CONFIG
    )
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    rows = [json.loads(line) for line in assay("metrics", "last", "--json").stdout.splitlines()]
    assert [row["step"] for row in rows if "memory/weights_mib" in row["metrics"]] == [3, 6], (
        "once, as it says itself"
    )
