"""Several runs from one file, and what is kept of where they came from."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import statistics
import subprocess
import sys
import termios
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import assay as house
from assay.cli.main import main
from assay.config import changed_keys, load, plain
from assay.core.errors import InputError
from assay.core.facts import Ended
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.jobs.isolated_process import IsolatedRunError
from assay.store.summaries import summaries
from flow.conftest import SRC
from run_folders import id_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the CPU train one after another."""
    monkeypatch.setenv("ASSAY_CORES", "1")


VARIANTS = """
[variants.wide]
"model.width" = 16
[variants.short.train]
epochs = 1
[variants.slow]
optimizer.lr = 1e-4
seed = 5
"""


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "runs").iterdir(), key=lambda run: run_file.read(run).created_ns)


CONTROL = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def shown_on_terminal(toy: Path, *arguments: str, columns: int = 80) -> tuple[int, list[str]]:
    """Run a command on a terminal; return its exit code and the lines that stand there."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    variables = {**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm-256color"}
    variables.pop("COLUMNS", None)
    command = [sys.executable, "-m", "assay", *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen(command, cwd=toy, env=variables, **streams) as process:
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                parts.append(part)
    os.close(ours)
    lines = CONTROL.sub("", b"".join(parts).decode()).split("\r\n")
    return process.returncode, [line.rpartition("\r")[2] for line in lines]


def short(toy: Path, text: str) -> None:
    whole = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    (toy / "many.toml").write_text(whole + text)


@pytest.mark.thorough
@pytest.mark.row("A05")
def test_three_variants_are_listed_and_make_three_runs_that_differ_in_the_listed_keys_only(
    assay, toy: Path
) -> None:
    (toy / "many.toml").write_text((toy / "toy.toml").read_text() + VARIANTS)
    listed = assay("check", "many.toml", "--list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()[:4]] == [
        "base",
        "wide",
        "short",
        "slow",
    ]
    assert "3 variants" in listed.stdout

    ran = assay("run", "many.toml", "--variant", "all", "--max-steps", "2")

    assert ran.returncode == 0, ran.stderr
    assert re.match(r"sweep \w{8}: 3 runs, each in an OS process of its own\n", ran.stderr)
    assert "[2/3] many.toml  short" in ran.stderr
    base = load(toy / "many.toml").root
    saved = [load(run / "config.toml").root for run in runs(toy)]
    assert [{one.key for one in changed_keys(base, root)} for root in saved] == [
        {"model.width"},
        {"train.epochs"},
        {"seed", "optimizer.lr"},
    ]
    assert [run_file.read(run).newest.launch["variant"] for run in runs(toy)] == [
        "wide",
        "short",
        "slow",
    ]
    hashes = [run_file.read(run).newest.config_hash[:16] for run in runs(toy)]
    assert hashes == [line.split()[1] for line in listed.stdout.splitlines()[1:4]]


@pytest.mark.thorough
def test_the_points_of_a_sweep_run_one_after_another_and_the_rest_runs_though_one_fails(
    assay, toy: Path
) -> None:
    short(toy, '[sweep]\n"optimizer.lr" = [1e-2, 1e30, 1e-3]\n')
    (toy / "net.py").write_text(
        (toy / "net.py").read_text()
        + "\n    def train(self, mode=True):\n        return super().train(mode)\n"
    )

    ran = assay("run", "many.toml", "--no-isolate")

    assert ": 3 runs" in ran.stderr and "[3/3] many.toml  optimizer.lr=0.001" in ran.stderr
    assert [run_file.read(run).newest.launch["point"] for run in runs(toy)] == ["1/3", "2/3", "3/3"]
    statuses = [run_file.read(run).status for run in runs(toy)]
    assert statuses[0] == statuses[2] == "finished"
    assert ran.returncode == (0 if statuses[1] == "finished" else 1)

    assert assay("run", "many.toml", "--no-sweep").returncode == 0
    assert len(runs(toy)) == 4
    assert "point" not in run_file.read(runs(toy)[-1]).newest.launch


PICKY = """
import net

class Net(net.Net):
    def __init__(self, width):
        assert width < 20, "too wide for this machine"
        super().__init__(width)
"""


@pytest.mark.thorough
def test_a_point_that_cannot_be_built_keeps_its_record_and_cause_and_the_rest_goes_on(
    assay, toy: Path
) -> None:
    (toy / "picky.py").write_text(PICKY)
    short(toy, '[sweep]\n"optimizer.eps" = [1e-3, 1e-2]\n"model.width" = [8, 24]\n')
    text = (toy / "many.toml").read_text().replace("net.Net", "picky.Net")
    (toy / "many.toml").write_text(text)

    ran = assay("run", "many.toml", "--no-isolate")

    assert ran.returncode == 1
    files = [run_file.read(run) for run in runs(toy)]
    assert [file.newest.launch["point"] for file in files] == ["1/4", "2/4", "3/4", "4/4"]
    assert [file.status for file in files] == ["finished", "failed", "finished", "failed"]
    assert files[1].newest.reason == "AssertionError: too wide for this machine"
    assert 'picky.py", line 6, in __init__' in (runs(toy)[1] / "log.txt").read_text()
    table = ran.stderr[ran.stderr.index("   4 runs   valid/acc, largest first") :].splitlines()
    assert table[1].split() == ["optimizer.eps", "model.width", "valid/acc", "step", "run"]
    assert {line.split()[2] for line in table[2:4]} == {"8"}
    failed = [line for line in table if "AssertionError: too wide for this machine" in line]
    assert [line.split()[0] for line in failed] == [files[1].id, files[3].id]
    assert "2 of 4 did not finish" in table


BLOWS_UP = """
import net

class Net(net.Net):
    def __init__(self, width):
        assert width != 9, "no width of 9"
        super().__init__(width)
        self.is_odd = width == 13

    def forward(self, x):
        return super().forward(x) * (float("nan") if self.is_odd else 1.0)
"""


@pytest.mark.row("A88")
@pytest.mark.usefixtures("forking")
def test_a_sweep_ends_with_a_table_though_one_cannot_be_built_and_one_turns_nan(
    assay, toy: Path
) -> None:
    """It is shown on a terminal of 80 columns."""
    widths = (8, 9, 12, 13)
    (toy / "blows.py").write_text(BLOWS_UP)
    short(toy, f'[sweep]\n"model.width" = {list(widths)}\n')
    (toy / "many.toml").write_text((toy / "many.toml").read_text().replace("net.Net", "blows.Net"))

    code, shown = shown_on_terminal(toy, "run", "many.toml", "--no-isolate")

    assert code == 1
    files = [run_file.read(run) for run in runs(toy)]
    assert len(files) == 4
    (sweep,) = {file.newest.launch["sweep"] for file in files}
    by_width = {
        load(run / "config.toml").root.items["model"].items["width"].value: file
        for run, file in zip(runs(toy), files, strict=True)
    }
    titles = [line for line in shown if re.match(r"\[\d/4\]", line)]
    assert titles == [
        f"[{i}/4] many.toml  model.width={width}" for i, width in enumerate(widths, 1)
    ]
    assert "while building model = blows.Net (many.toml:4:2)" in shown
    table = shown[shown.index(f"sweep {sweep}   4 runs   valid/acc, largest first") :]
    assert max(map(len, table)) <= 80
    ranked = [line.split() for line in table[2:4]]
    assert [row[0] for row in ranked] == ["1", "2"]
    assert {row[1] for row in ranked} == {"8", "12"}
    folders = dict(zip([file.id for file in files], runs(toy), strict=True))
    ids = [by_width[int(row[1])].id for row in ranked]
    scores = [summaries(folders[each] / "metrics")["valid/acc"].max for each in ids]
    assert scores == sorted(scores, reverse=True)
    assert "did not finish:" in table and "2 of 4 did not finish" in table
    causes = {line.split()[0]: line for line in table[6:8]}
    assert causes[by_width[9].id].endswith("model.width=9   AssertionError: no width of 9")
    assert "The loss is nan at step 1" in causes[by_width[13].id]
    listed = assay("ls", f"sweep = {sweep} and status = failed", "--columns", "id,sweep,point")
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
        [by_width[13].id, sweep, "4/4"], [by_width[9].id, sweep, "2/4"]
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.row("C77")
def test_repeats_under_other_seeds_are_one_line_with_mean_deviation_and_interval(
    assay, toy: Path
) -> None:
    (toy / "picky.py").write_text(
        "import torch\n"
        + PICKY.replace("width < 20, ", "torch.initial_seed() != 0 and width < 20, ")
    )
    short(toy, '[sweep]\n"model.width" = [8, 24]\n')
    (toy / "many.toml").write_text((toy / "many.toml").read_text().replace("net.Net", "picky.Net"))

    ran = assay("run", "many.toml", "--seeds", "3", "--no-isolate")

    assert ran.returncode == 1
    configs = [plain(load(run / "config.toml").root) for run in runs(toy)]
    assert [(each["model"]["width"], each["seed"]) for each in configs] == [
        (width, seed) for width in (8, 24) for seed in (3, 4, 5)
    ]
    table = ran.stderr[ran.stderr.index("   6 runs   valid/acc") :].splitlines()
    scores = [summaries(run / "metrics")["valid/acc"].max for run in runs(toy)[:3]]
    mean, half = statistics.mean(scores), 4.30265 * statistics.stdev(scores) / 3**0.5
    found = re.fullmatch(r"1  8 +(\S+) ± (\S+)  (\S+) to (\S+) +3  \w{8}", table[2])
    assert found and float(found[1]) == pytest.approx(mean, abs=0.01)
    assert float(found[4]) - float(found[3]) == pytest.approx(2 * half, rel=0.01)
    assert [line.split()[3] for line in table[5:8]] == ["seed=3", "seed=4", "seed=5"]
    swept = assay("run", "many.toml", "sweep.seed=[1, 2]", "--seeds", "2")
    assert swept.returncode == 2 and "The sweep varies `seed` itself." in swept.stderr


@pytest.mark.row("C77")
def test_seeds_that_are_named_are_run_and_the_failed_and_the_missing_one_are_shown(
    assay, toy: Path
) -> None:
    (toy / "picky.py").write_text(
        PICKY.replace("self, width", "self, width, seed", 1).replace("width < 20", "seed != 1")
    )
    short(toy, "")
    text = (toy / "many.toml").read_text().replace("net.Net", "picky.Net")
    text = text.replace("width = 8", 'width = 8\nseed = "${seed}"')
    (toy / "many.toml").write_text(text)
    asked = ("--seeds", "7,1,4", "--stop-at-first", "--no-isolate")

    ran = assay("run", "many.toml", *asked)

    assert ran.returncode == 1
    assert [plain(load(run / "config.toml").root)["seed"] for run in runs(toy)] == [7, 1]
    table = ran.stderr[ran.stderr.index("   3 runs   valid/acc") :].splitlines()
    assert table[2].split()[-2:] == ["of", "3"] or "1 of 3" in table[2]
    below = table[table.index("did not finish:") + 1 :]
    assert [line.split()[1:3] for line in below[:1]] == [["failed", "seed=1"]]
    assert below[1].split() == ["-", "not", "run", "seed=4"]
    for wrong in ("1,1", "a", "0", "1,,2", "-1"):
        said = assay("run", "many.toml", "--seeds", wrong)
        assert said.returncode == 2 and "--seeds" in said.stderr, wrong


@pytest.mark.thorough
def test_points_that_were_not_run_are_named_after_a_signal(assay, toy: Path) -> None:
    (toy / "picky.py").write_text(
        PICKY.replace("assert width < 20, ", "os.kill(os.getpid(), 2) if width == 9 else ")
    )
    (toy / "picky.py").write_text("import os\n" + (toy / "picky.py").read_text())
    short(toy, '[sweep]\n"model.width" = [8, 9, 10, 11]\n')
    (toy / "many.toml").write_text((toy / "many.toml").read_text().replace("net.Net", "picky.Net"))

    ran = assay("run", "many.toml")

    assert ran.returncode == 130
    assert len(runs(toy)) == 1
    table = ran.stderr[ran.stderr.index("did not finish:") :].splitlines()
    assert table[1].split()[1] == "stopped"
    assert [line.split() for line in table[2:4]] == [
        ["-", "not", "run", "model.width=10"],
        ["-", "not", "run", "model.width=11"],
    ]


def test_a_mistake_in_the_last_point_is_told_before_the_first_is_trained(assay, toy: Path) -> None:
    short(toy, '[sweep]\n"model.width" = [8, 16, "wide"]\n"optimizer.lr" = [1e-3, "fast"]\n')

    ran = assay("run", "many.toml")

    assert ran.returncode == 2
    assert "`lr` of `torch.optim.AdamW`" in ran.stderr and 'not "fast"' in ran.stderr
    assert not (toy / "runs").exists()


@pytest.mark.thorough
@pytest.mark.row("B05")
def test_a_number_drawn_at_the_start_is_kept_and_never_drawn_again(assay, toy: Path) -> None:
    short(toy, "")
    text = (
        (toy / "many.toml").read_text().replace("seed = 3", 'seed = "${random:int:0:1000000000}"')
    )
    (toy / "many.toml").write_text(text)

    for _ in range(2):
        assert assay("run", "many.toml").returncode == 0

    first, second = (plain(load(run / "config.toml").root)["seed"] for run in runs(toy))
    assert first != second
    assert [run_file.read(run).newest.seeds["seed"] for run in runs(toy)] == [first, second]
    again = assay("run", str(runs(toy)[0] / "config.toml"), "--user-dir", ".")
    assert again.returncode == 0, again.stderr
    assert plain(load(runs(toy)[2] / "config.toml").root)["seed"] == first
    assert assay("resume", id_of(runs(toy)[1]), "train.steps=4").returncode == 0
    assert plain(load(runs(toy)[1] / "config.toml").root)["seed"] == second


@pytest.mark.thorough
@pytest.mark.row("B05")
def test_the_devices_of_a_machine_are_counted_at_the_start_and_kept(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short(toy, "")
    text = (toy / "many.toml").read_text()
    (toy / "many.toml").write_text(text.replace("width = 8", 'width = "${device:count}"'))
    monkeypatch.chdir(toy)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)

    result = house.run("many.toml", device="cpu")
    main(["check", "many.toml"])

    assert result.exception is None
    (run,) = runs(toy)
    newest = run_file.read(run).newest
    assert plain(load(run / "config.toml").root)["model"]["width"] == 4
    assert newest.config_hash[:16] == capsys.readouterr().out.split()[-1]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    again = house.run(run / "config.toml", device="cpu", user_dir=".")
    assert again.config is not None and again.record_dir is not None
    assert plain(again.config.root)["model"]["width"] == 4
    assert run_file.read(again.record_dir).newest.config_hash == newest.config_hash
    explained = assay("config", "explain", "model.width", "many.toml").stdout
    assert "a run keeps the number it found" in explained


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["123", "0x10", "true", "plain"])
def test_a_variable_that_looks_like_a_number_is_text_for_a_parameter_that_wants_text(
    toy: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    net = (
        (toy / "net.py")
        .read_text()
        .replace("width):", "width, name: str = ''):\n        self.name = name")
    )
    (toy / "net.py").write_text(net)
    short(toy, "")
    text = (toy / "many.toml").read_text().replace("width = 8", 'width = 8\nname = "${env:A_NAME}"')
    (toy / "many.toml").write_text(text)
    monkeypatch.chdir(toy)
    monkeypatch.setenv("A_NAME", variable)

    result = house.run("many.toml")

    assert result.exception is None
    assert house.load_model(f"{result.id}@latest").name == variable


@pytest.mark.thorough
@pytest.mark.row("C53")
def test_a_variable_of_the_machine_is_in_the_saved_config_and_a_secret_is_not(
    assay, toy: Path
) -> None:
    (toy / "points.py").write_text(
        (toy / "points.py").read_text().replace("noisy=False,", "noisy=False, root='', token='',")
    )
    short(toy, "")
    text = (
        (toy / "many.toml")
        .read_text()
        .replace("noisy = true", 'root = "${global:sets}/a", token = "${env:A_TOKEN}"')
    )
    (toy / "many.toml").write_text(text)
    unset = assay("run", "many.toml", A_TOKEN="sesame")
    assert unset.returncode == 2 and "assay config set --global sets VALUE" in unset.stderr

    for root in ("/here", "/there"):
        assert assay("config", "set", "--global", "sets", root).returncode == 0
        ran = assay("run", "many.toml", A_TOKEN="sesame")
        assert ran.returncode == 0, ran.stderr

    one, other = (run_file.read(run).newest for run in runs(toy))
    assert one.config_hash != other.config_hash
    assert list(one.launch["outside"]) == ["env:A_TOKEN"]
    assert one.launch["outside"]["env:A_TOKEN"].startswith("<redacted> ")
    assert one.launch["outside"] == other.launch["outside"]
    for run, root in zip(runs(toy), ("/here", "/there"), strict=True):
        kept = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
        assert b"sesame" not in kept
        assert f'root = "{root}/a"  # from global:sets\n' in (run / "config.toml").read_text()


@pytest.mark.thorough
@pytest.mark.row("A13")
def test_settings_of_a_launch_are_recorded_and_change_neither_the_config_nor_its_hash(
    assay, toy: Path
) -> None:
    short(toy, "")
    assert assay("run", "many.toml").returncode == 0
    assert assay("run", "many.toml", "--desc", "why", "--debug", "--device", "cpu").returncode == 0
    assert assay("run", "many.toml", "--no-file", "--desc", "x").returncode == 0

    plain_run, told = (run_file.read(run).newest for run in runs(toy))
    assert plain_run.config_hash == told.config_hash
    assert (told.launch["debug"], told.launch["device"]) == (True, "cpu")
    assert "why" in (runs(toy)[1] / "README.md").read_text()
    assert (runs(toy)[0] / "config.toml").read_bytes() == (
        runs(toy)[1] / "config.toml"
    ).read_bytes()
    assert assay("run", "many.toml", "device=cpu").returncode == 2


@pytest.mark.thorough
@pytest.mark.row("A01", "A02")
def test_a_config_and_a_folder_of_modules_are_all_an_experiment_needs(
    assay, toy: Path, tmp_path: Path
) -> None:
    short(toy, "")
    assert assay("run", "many.toml", "model.width=64").returncode == 0
    assert plain(load(runs(toy)[0] / "config.toml").root)["model"]["width"] == 64

    (toy / "src" / "deep").mkdir(parents=True)
    (toy / "src" / "deep" / "nets.py").write_text((toy / "net.py").read_text())
    assert assay("run", "many.toml", "model.type=deep.nets.Net").returncode == 0

    elsewhere = tmp_path / "mylib"
    elsewhere.mkdir()
    (elsewhere / "task.py").write_text((toy / "net.py").read_text().replace("Net", "T"))
    (elsewhere / "points.py").write_text((toy / "points.py").read_text())
    ran = assay(
        "run", str(toy / "many.toml"), "model.type=task.T", "--user-dir", "mylib", cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert plain(load(runs(toy)[2] / "config.toml").root)["model"]["type"] == "task.T"


@pytest.mark.thorough
@pytest.mark.row("E12")
def test_every_section_that_can_be_done_without_has_the_same_switch(assay, toy: Path) -> None:
    short(toy, "")
    off = [f"{section}.enabled=false" for section in ("evaluate", "checkpoint", "display")]

    on = assay("run", "many.toml", "checkpoint.enabled=true")
    ran = assay("run", "many.toml", *off)

    assert (on.returncode, ran.returncode) == (0, 0), ran.stderr
    first, second = runs(toy)
    assert "valid/acc" in summaries(first / "metrics") and any((first / "checkpoints").iterdir())
    assert (
        "valid/acc" not in summaries(second / "metrics") and not (second / "checkpoints").exists()
    )
    assert run_file.read(first).newest.config_hash == run_file.read(second).newest.config_hash
    wrong = assay("run", "many.toml", "evaluate.enabled=1")
    assert wrong.returncode == 2 and "`evaluate.enabled` must be true or false" in wrong.stderr


@pytest.mark.thorough
def test_python_runs_the_same_variants_and_points_in_order(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(toy, "[variants.wide]\nmodel.width = 16\n[sweep]\nseed = [1, 2]\n")
    monkeypatch.chdir(toy)

    results = house.run("many.toml", variant="all", no_file=True, isolate=False)

    assert [
        (one.config.variant, one.config.point, one.status) for one in results if one.config
    ] == [
        ("wide", "1/2", "finished"),
        ("wide", "2/2", "finished"),
    ]
    assert [one.step for one in house.run(["many.toml"], sweep=False, no_file=True)] == [2]
    assert house.run("many.toml", variant="wdie", no_file=True, check=False).exit_code == 2


@pytest.fixture
def three(toy: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Configs of which the middle one fails in its second step."""
    short(toy, "")
    net = (toy / "net.py").read_text() + BROKEN
    (toy / "net.py").write_text(net)
    text = (toy / "many.toml").read_text()
    (toy / "bad.toml").write_text(text.replace("net.Net", "net.Broken"))
    (toy / "other.toml").write_text(text.replace("width = 8", "width = 4"))
    monkeypatch.chdir(toy)
    return ["many.toml", "bad.toml", "other.toml"]


BROKEN = """

class Broken(Net):
    times = 0

    def forward(self, x):
        self.times += self.training  # one batch of each split is evaluated after the first step
        if self.times == 2:
            raise ZeroDivisionError("planted")
        return super().forward(x)
"""


@pytest.mark.thorough
@pytest.mark.row("A41", "A42")
def test_results_come_in_the_order_of_the_configs_and_a_failure_is_kept_in_its_own(
    three: list[str],
) -> None:
    results = house.run(three, device="cpu", user_dir=".", desc="three", check=False)

    assert [one.status for one in results] == ["finished", "failed", "finished"]
    assert [one.config.path.name for one in results if one.config and one.config.path] == three
    assert [one.step for one in results] == [2, 1, 2]
    first, failed, last = results
    assert (
        first.exception is None
        and last.exception is None
        and first.value.keys() == last.value.keys() != set()
    )
    assert isinstance(failed.exception, IsolatedRunError) and failed.exit_code == 1
    assert (failed.exception.kind, failed.exception.failure) == ("ZeroDivisionError", "exception")
    shown = "".join(traceback.format_exception(failed.exception))
    assert 'raise ZeroDivisionError("planted")' in shown and "net.py" in shown
    assert failed.record_dir is not None and first.record_dir is not None
    ended = [
        event.fact
        for event in read_events(failed.record_dir / "events.jsonl")
        if isinstance(event.fact, Ended)
    ]
    assert 'raise ZeroDivisionError("planted")' in ended[0].traceback
    assert "three" in (first.record_dir / "README.md").read_text()


@pytest.mark.thorough
def test_a_config_that_is_wrong_or_not_there_is_a_result_among_the_others(three: list[str]) -> None:
    Path("bad.toml").write_text("[modle]\n")

    results = house.run(
        [three[0], "bad.toml", "not there.toml", three[2]],
        no_file=True,
        check=False,
        isolate=False,
    )

    assert [(one.status, one.exit_code) for one in results] == [
        ("finished", 0),
        ("failed", 2),
        ("failed", 2),
        ("finished", 0),
    ]
    assert all(one.record_dir is None for one in results)
    assert "modle" in str(results[1].exception) and "not there.toml" in str(results[2].exception)


@pytest.mark.thorough
@pytest.mark.row("A46")
def test_what_a_run_held_is_freed_before_the_next_is_built(
    three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that failed too: its exception is kept, and with it the frames that led there."""
    alive: list[int] = []
    kept: weakref.WeakSet[Any] = weakref.WeakSet()
    begin = torch.nn.Module.__init__

    def counted(module: Any, *given: Any, **named: Any) -> None:
        begin(module, *given, **named)
        if type(module).__name__ in ("Net", "Broken"):
            gc.collect()
            alive.append(len(kept))
            kept.add(module)

    monkeypatch.setattr(torch.nn.Module, "__init__", counted)

    results = house.run([*three, *three], no_file=True, check=False, isolate=False)

    assert [one.status for one in results] == ["finished", "failed", "finished"] * 2
    assert alive == [0] * 6
    gc.collect()
    assert len(kept) == 0


@pytest.mark.thorough
@pytest.mark.row("A41")
def test_the_command_trains_all_that_can_be_and_says_in_the_end_that_one_was_not(
    assay, three: list[str]
) -> None:
    ran = assay("run", *three, "--no-file")

    assert ran.returncode == 1
    said = ran.stderr
    places = [said.index(f"[{i}/3] {name}") for i, name in enumerate(three, 1)]
    assert places == sorted(places)
    assert (
        "ZeroDivisionError: planted" in said and said.count("finished") == 2
    )  # the table at the end has their values
    assert said.rstrip().endswith("1 of 3 did not finish")


@pytest.mark.thorough
@pytest.mark.row("E11")
def test_sets_that_are_joined_are_trained_on_as_one_and_each_set_of_a_test_has_numbers_of_its_own(
    assay, toy: Path
) -> None:
    one = '{ type = "points.Points", split = 0, noisy = true }'
    short(
        toy,
        '[data.test_far]\nsource = { type = "points.Points", split = 7, size = 30 }\nbatch_size = 8\n',
    )
    text = (toy / "many.toml").read_text()
    joined = f'{{ type = "torch.utils.data.ConcatDataset", datasets = [{one}, {one.replace("0", "5")}] }}'
    (toy / "many.toml").write_text(
        text.replace(f"source = {one}", f"source = {joined}").replace("steps = 2", "epochs = 1")
    )

    ran = assay("run", "many.toml")
    tested = assay("test", "last")
    alone = assay("test", id_of(runs(toy)[0]), "--split", "test_far")

    assert ran.returncode == 0, ran.stderr
    first, both, far = runs(toy)
    assert summaries(first / "metrics")["train/loss"].count == 120 / 8
    assert not any(name.startswith("test") for name in summaries(first / "metrics"))
    names = {"test/loss", "test/acc", "test_far/loss", "test_far/acc"}
    assert (
        tested.returncode == 0 and {line.split()[0] for line in tested.stdout.splitlines()} == names
    )
    assert summaries(both / "metrics").keys() == names
    assert summaries(far / "metrics").keys() == {"test_far/loss", "test_far/acc"}
    assert alone.stdout in tested.stdout


@pytest.mark.thorough
@pytest.mark.row("E40")
def test_an_evaluation_of_a_part_says_so_in_the_log_of_the_run(assay, toy: Path) -> None:
    short(toy, "")
    text = (
        (toy / "many.toml")
        .read_text()
        .replace("split = 1 }\nbatch_size = 16", "split = 1 }\nbatch_size = 2")
    )
    (toy / "many.toml").write_text(text)

    ran = assay("run", "many.toml", "evaluate.limit=20")

    assert ran.returncode == 0, ran.stderr
    said = assay("log", "last", "--events")
    assert "20 of 30 batches" in said.stdout
    assert assay("run", "many.toml", "evaluate.limit=0").returncode == 2


@pytest.mark.thorough
@pytest.mark.row("A82")
def test_deterministic_names_the_op_and_the_module_that_cannot_be(assay, toy: Path) -> None:
    short(toy, "")
    put = (
        "\n    def forward(self, x):\n        x = x.clone().put_(torch.arange(4), torch.ones(4))\n"
    )
    net = (toy / "net.py").read_text().replace("\n    def forward(self, x):\n", put)
    (toy / "net.py").write_text("import torch\n" + net)

    refused = assay("run", "many.toml", "train.deterministic=true")

    assert refused.returncode == 2
    assert "`put_` has no deterministic form here" in refused.stderr
    assert "at:  the model (Net)" in refused.stderr
    assert assay("run", "many.toml").returncode == 0


@pytest.mark.thorough
@pytest.mark.row("D27")
def test_runs_take_the_devices_of_a_list_in_turn(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(toy, VARIANTS)
    monkeypatch.chdir(toy)
    taken = []

    def train(config: Any, launch: Any, **_: Any) -> house.compose.RunResult:
        taken.append((config.variant, launch.device))
        return house.compose.RunResult(record_dir=None, config=config, status="finished")

    monkeypatch.setattr("assay.compose.run_many.train", train)

    house.run(["many.toml", "toy.toml"], variant="all", device=[0, 1], isolate=False, check=False)

    assert taken == [("wide", "cuda:0"), ("short", "cuda:1"), ("slow", "cuda:0")]
    taken.clear()
    house.run(
        ["many.toml", "many.toml", "many.toml"], device="cuda:2,5", isolate=False, check=False
    )
    assert taken == [("", "cuda:2"), ("", "cuda:5"), ("", "cuda:2")]


@pytest.mark.thorough
@pytest.mark.row("D27")
def test_a_list_of_devices_is_looked_at_before_anything_is_begun(assay, toy: Path) -> None:
    short(toy, VARIANTS)
    for given, said in (
        ("cpu,cpu", "names cpu twice"),
        ("cuda:0,,1", "is no list of devices"),
        ("cpu,cude", "did you mean `cuda`?"),
        ("cpu,cuda:9999", "cuda"),
    ):
        ran = assay("run", "many.toml", "--variant", "all", "--device", given)
        assert ran.returncode == 2 and said in ran.stderr, ran.stderr
    one = assay("check", "many.toml")
    assert one.returncode == 0
    assert not (toy / "runs").exists() or not list((toy / "runs").iterdir())


def test_one_run_takes_one_device(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.compose import Launch
    from assay.compose.run_scope import the_one_device

    assert the_one_device(Launch(device="cuda:1")) == "cuda:1" and the_one_device(Launch()) is None
    with pytest.raises(InputError, match="uses one device; here are 2: cuda:0, cuda:1"):
        the_one_device(Launch(device="cuda:0,1"))
