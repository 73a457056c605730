"""Options of the commands that train, alone and together, as a user types them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from assay.cli.main import main
from assay.compose.run_scope import BLOCKING_VARIABLE
from assay.config import load, plain
from assay.core.facts import Evaluated, Saved
from assay.engine.checkpoint.folder import load_parts
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.store.series import read_series
from flow.conftest import SRC
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

EVENTS = """\
run_begin        Save.rehearse
run_begin        Throughput.begin
run_begin        Display
run_begin        Display.opening
run_begin        Tracer.begin
run_end          Save.cut
run_end          Throughput.look
run_end          Tracer.leave
run_end          Evaluate
run_end          Save
run_end          Throughput.record
run_end          Display
run_end          Save.wait
epoch_begin      Display
epoch_begin      Throughput.begin_epoch
epoch_end        Throughput.look
epoch_end        Evaluate
epoch_end        Save
epoch_end        Memory
epoch_end        Throughput.record
epoch_end        Display
step_begin       Tracer.open_step
step_begin       Tracer.open_step
step_end         Evaluate.rehearse
eval_begin       Tracer.open_evaluation
eval_end         Display
eval_end         Tracer.close_evaluation
checkpoint_begin Tracer.checkpoint
exception        Tracer.leave
exception        Display
exception        Save.rescue
exception        Save.wait
"""

TREE = """\
README.md
artifacts/
checkpoints/
checkpoints/step-000000003/
checkpoints/step-000000003/manifest.json
config.toml
config/
config/toy.toml
defaults.json
events.jsonl
log.txt
metrics/
metrics/names.jsonl
run.json
trace/
trace/1-0.bin
"""

NEIGHBOURS = """
import os
import torch
from points import Points

class Seen(Points):
    def __getitem__(self, i):
        print("worker", os.environ.get("CUDA_LAUNCH_BLOCKING"), flush=True)
        return super().__getitem__(i)

def batches():
    return torch.utils.data.DataLoader(Seen(0), batch_size=8, num_workers=1)
"""


TOLD = """
from points import Points

class Told(Points):
    def __getitem__(self, i):
        print(i)
        return super().__getitem__(i)
"""


def without(toy: Path, *sections: str, name: str = "plain.toml") -> str:
    """A copy of the toy's config that leaves sections out."""
    text = (toy / "toy.toml").read_text()
    for section in sections:
        text = re.sub(rf"^\[{re.escape(section)}\]\n(?:[^\[\n].*\n)*", "", text, flags=re.MULTILINE)
    (toy / name).write_text(text)
    return name


# --------------------------------------------------------------------------------------------------- trials, evaluation


@pytest.mark.thorough
@pytest.mark.row("E53")
def test_a_trial_takes_the_whole_way_and_can_be_gone_on_with_and_tested(assay, toy: Path) -> None:
    tried = assay("run", "toy.toml", "--fast-dev-run")
    run = only_run(toy)
    events = [timed.fact for timed in read_events(run / "events.jsonl")]
    assert tried.returncode == 0, tried.stderr
    assert (run_file.read(run).status, run_file.read(run).newest.to_step) == ("finished", 20)
    assert [(fact.step, fact.partial) for fact in events if isinstance(fact, Evaluated)] == [
        (10, "2 of 4 batches"),
        (20, "2 of 4 batches"),
    ]
    assert [fact.step for fact in events if isinstance(fact, Saved)] == [10, 20]

    resumed = assay("resume", "last")
    tested = assay("test", "last")

    assert resumed.returncode == 0, resumed.stderr
    assert run_file.read(run).newest.to_step == 32
    assert tested.returncode == 0, tested.stderr
    assert "test/acc" in tested.stdout


def test_a_trial_never_takes_longer_than_the_run(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)

    assert main(["run", "toy.toml", "--fast-dev-run", "train.epochs=1", "--device", "cpu"]) == 0
    assert run_file.read(only_run(toy)).newest.to_step == 8


def without_torch(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the one that torch sets once, when a part of it is imported."""
    return {name: value for name, value in variables.items() if name != "TORCHINDUCTOR_CACHE_DIR"}


@pytest.mark.thorough
@pytest.mark.row("F11")
def test_the_flags_of_a_run_go_together(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy)
    flags = ["--fast-dev-run", "--debug", "--no-file", "--quiet", "--max-steps=3"]
    before = without_torch(os.environ)

    for chosen in itertools.product((False, True), repeat=len(flags)):
        given = [flag for flag, on in zip(flags, chosen, strict=True) if on]
        count = len(list((toy / "runs").glob("*")))
        assert main(["run", "toy.toml", "--device", "cpu", "train.epochs=3", *given]) == 0, given
        made = sorted((toy / "runs").glob("*"), key=lambda run: run_file.read(run).created_ns)[
            count:
        ]
        assert len(made) == ("--no-file" not in given)
        for run in made:
            steps = 3 if "--max-steps=3" in given else 20 if "--fast-dev-run" in given else 24
            assert run_file.read(run).newest.to_step == steps, given
            assert run_file.read(run).newest.launch["debug"] == ("--debug" in given)
            assert ("DEBUG" in (run / "log.txt").read_text()) == ("--debug" in given)

    assert without_torch(os.environ) == before
    assert not torch.is_anomaly_enabled()


@pytest.mark.thorough
@pytest.mark.row("F11")
def test_the_flags_of_a_test_and_of_a_resume_go_together(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    assert main(["run", "toy.toml", "--device", "cpu", "--max-steps", "4"]) == 0
    flags = ["--no-file", "--json", "--pdb"]

    for chosen in itertools.product((False, True), repeat=len(flags)):
        given = [flag for flag, on in zip(flags, chosen, strict=True) if on]
        assert main(["test", "last", "--device", "cpu", *given]) == 0, given
    for steps in range(5, 9):
        given = ["--debug"] * (steps % 2) + ["--quiet"] * (steps // 2 % 2)
        assert (
            main(["resume", "last", "--device", "cpu", "--max-steps", str(steps), *given]) == 0
        ), given
        assert run_file.read(
            max((toy / "runs").glob("*-toy"), key=lambda run: run_file.read(run).kind)
        ).id


# -------------------------------------------------------------------------------------------------------- debug and pdb


@pytest.mark.thorough
@pytest.mark.row("A14")
def test_debug_is_known_to_the_process_and_its_workers_and_says_more_in_console_and_log(
    assay, toy: Path
) -> None:
    (toy / "seen.py").write_text(NEIGHBOURS)
    config = without(toy, "data.train")
    (toy / config).write_text(
        (toy / config).read_text() + '[data.train]\nsource = { type = "seen.batches" }\n'
    )
    (toy / "net.py").write_text(
        (toy / "net.py")
        .read_text()
        .replace(
            "super()",
            f"print('process', __import__('os').environ.get('{BLOCKING_VARIABLE}'))\n        super()",
            1,
        )
    )
    lines = re.compile(
        r" DEBUG +\[\S+\] \S+  step (\d+): loss [\d.]+, float32 \(8, 4\) and int64 \(8,\), [\d.]+ ms$",
        re.MULTILINE,
    )

    for flags, told in ((["--debug"], "1"), ([], "0")):
        ran = assay(
            "run", config, *flags, "--max-steps", "4", **({} if flags else {BLOCKING_VARIABLE: "0"})
        )
        assert ran.returncode == 0, ran.stderr
        run = max((toy / "runs").iterdir(), key=lambda run: run_file.read(run).created_ns)
        log = (run / "log.txt").read_text()
        assert f"process {told}" in ran.stdout and f"worker {told}" in ran.stdout
        assert lines.findall(ran.stderr) == (["1", "2", "3", "4"] if flags else [])
        assert len(re.findall(r" DEBUG .*  step \d: loss", log)) == (4 if flags else 0)


def test_debug_names_the_op_that_fails_in_backward(assay, toy: Path) -> None:
    net = (toy / "net.py").read_text()
    bad = "return self.layers(x) + (self.layers[0].weight.sum() * 0).sqrt()"
    (toy / "net.py").write_text(net.replace("return self.layers(x)", bad))

    failed = assay("run", "toy.toml", "--debug", "--no-file")

    assert failed.returncode == 1
    assert "'MulBackward0' returned nan values" in failed.stderr
    assert "net.py" in failed.stderr  # the line of the forward pass that made it


@pytest.mark.thorough
@pytest.mark.row("C65")
@pytest.mark.usefixtures("forking")
def test_with_pdb_a_failure_can_be_looked_at_where_it_happened(assay, toy: Path) -> None:
    net = (toy / "net.py").read_text()
    (toy / "net.py").write_text(
        net.replace("return self.layers(x)", "secret = 'xyzzy'\n        return self.leyers(x)")
    )

    ended = subprocess.run(
        [sys.executable, "-m", "assay", "run", "toy.toml", "--pdb", "--device", "cpu"],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        input="up\np secret\np x.shape\nq\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 1
    assert "'xyzzy'" in ended.stdout and "torch.Size([8, 4])" in ended.stdout
    assert "leyers" in ended.stderr
    assert run_file.read(only_run(toy)).status == "failed"


def test_a_validation_step_that_cannot_run_is_told_after_the_first_training_step(
    assay, toy: Path
) -> None:
    net = (toy / "net.py").read_text()
    broken = "x if self.training else x[:, :3])"
    (toy / "net.py").write_text(
        net.replace("return self.layers(x)", f"return self.layers({broken}")
    )

    told = assay("run", "toy.toml")

    assert told.returncode == 1 and "(16x3 and 4x8)" in told.stderr
    run = only_run(toy)
    assert run_file.read(run).status == "failed"
    assert len(read_series(run / "metrics")["train/loss"].values) == 1
    assert assay("run", "toy.toml", "evaluate.enabled=false", "train.epochs=1").returncode == 0


# ---------------------------------------------------------------------------------------- what a run leaves, what it is


@pytest.mark.thorough
@pytest.mark.row("C61")
def test_a_config_that_asks_for_nothing_is_evaluated_saved_timed_and_shown(
    assay, toy: Path
) -> None:
    config = without(toy, "checkpoint", "schedule")

    listed = assay("check", "--show", "callbacks", config)

    assert listed.returncode == 0, listed.stderr
    shown = [f"{line.split()[0]:<17}{line.split()[-1]}" for line in listed.stdout.splitlines()[1:]]
    assert "\n".join(shown) + "\n" == EVENTS
    off = assay(
        "check", "--show", "callbacks", config, "evaluate.enabled=false", "checkpoint.enabled=false"
    )
    assert not re.search("Evaluate|Save", off.stdout)


@pytest.mark.thorough
@pytest.mark.row("E28")
def test_a_run_folder_has_the_files_of_its_page_and_lies_where_it_was_asked_for(
    assay, toy: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "records"

    assert (
        assay("run", "toy.toml", "--max-steps", "3", ASSAY_RUNS_DIR=str(elsewhere)).returncode == 0
    )

    (run,) = elsewhere.iterdir()
    assert re.fullmatch(r"\d{6}-\d{4}-[a-z2-7]{8}-toy", run.name)
    assert not (toy / "runs").exists()
    found = {f"{path.relative_to(run).as_posix()}{'/' * path.is_dir()}" for path in run.rglob("*")}
    assert set(TREE.splitlines()) - {"artifacts/"} <= found
    known = {*TREE.splitlines(), "output.txt", "edits.jsonl"}
    known |= {f"checkpoints/{name}.json" for name in ("best", "final", "latest")}
    known |= {name for name in found if name.startswith("metrics/")}
    parts = re.compile(r"checkpoints/step-000000003/[\w.]+\.(json|safetensors)")
    assert [name for name in sorted(found) if name not in known and not parts.fullmatch(name)] == []


@pytest.mark.thorough
@pytest.mark.row("A33")
def test_one_seed_gives_the_same_bits_and_another_one_others(assay, toy: Path) -> None:
    digests = []
    for seed in (5, 5, 6):
        assert assay("run", "toy.toml", f"seed={seed}", "train.epochs=2").returncode == 0
        run = only_run(toy)
        digests.append(last_digest(run))
        run.rename(toy / f"kept-{len(digests)}")

    assert digests[0] == digests[1] != digests[2]


@pytest.mark.row("F10")
def test_the_seed_alone_changes_every_generator_and_debug_lists_them(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / "told.py").write_text(TOLD)
    monkeypatch.chdir(toy)

    def run(seed: int) -> tuple[list[str], dict[str, str]]:
        given = [
            "data.train.source.type=told.Told",
            f"seed={seed}",
            "--no-file",
            "--debug",
            "--device",
            "cpu",
        ]
        assert main(["run", "toy.toml", "--max-steps", "8", *given]) == 0
        said = capsys.readouterr()
        return said.out.split(), dict(
            re.findall(
                r" DEBUG +\[\S+\] \S+  generator for (.+): seed (\d+)$", said.err, re.MULTILINE
            )
        )

    (order, seeds), again, (other_order, other_seeds) = run(1), run(1), run(2)

    assert again == (order, seeds)
    assert order != other_order and set(order) == set(other_order)
    assert {
        "weights",
        "order of an epoch",
        "a step",
        "samples of train",
        "evaluation of valid",
    } <= seeds.keys()
    assert seeds.keys() == other_seeds.keys()
    assert not set(seeds.values()) & set(other_seeds.values())


@pytest.mark.thorough
@pytest.mark.row("E54")
def test_a_finished_run_says_where_it_finished_and_how_it_is_trained_longer(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml").returncode == 0
    run = run_file.read(only_run(toy)).id

    again = assay("resume", "last")

    assert again.returncode == 2
    assert f"The run {run} finished at step 32" in again.stderr
    assert f"assay resume {run} train.epochs=" in again.stderr
    assert run_file.read(only_run(toy)).newest.number == 1
    assert assay("resume", "last", "train.epochs=6").returncode == 0
    assert run_file.read(only_run(toy)).newest.to_step == 48


@pytest.mark.parametrize("length", [["train.epochs=1"], ["train.epochs=@delete", "train.steps=8"]])
def test_a_finished_run_has_nothing_left_though_its_last_checkpoint_was_made_within_the_epoch(
    length: list[str], assay, toy: Path
) -> None:
    often = 'checkpoint.every="1 step"'
    assert assay("run", "toy.toml", *length, often).returncode == 0
    run = run_file.read(only_run(toy)).id

    again = assay("resume", "last")

    assert again.returncode == 2
    assert f"The run {run} finished at step 8" in again.stderr
    assert run_file.read(only_run(toy)).newest.number == 1


# --------------------------------------------------------------------------------------------------- changed on the way


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", [False, True])
def test_a_setting_of_the_optimizer_that_is_changed_on_resume_counts_and_is_said(
    schedule: bool, assay, toy: Path
) -> None:
    config = "toy.toml" if schedule else without(toy, "schedule")
    assert assay("run", config, "--max-steps", "8").returncode == 0

    resumed = assay(
        "resume", "last", "optimizer.lr=0.5", "optimizer.betas=[0.5, 0.9]", "train.epochs=2"
    )

    assert resumed.returncode == 0, resumed.stderr
    assert "changed: optimizer.lr  0.01 -> 0.5\n" in resumed.stderr
    assert "changed: optimizer.betas  not given -> [0.5, 0.9]\n" in resumed.stderr
    assert "changed: optimizer.lr  0.01 -> 0.5\n" in (only_run(toy) / "log.txt").read_text()
    rates = read_series(only_run(toy) / "metrics")["train/lr"].values
    assert plain(load(only_run(toy) / "config.toml").root)["optimizer"]["lr"] == 0.5
    if schedule:
        assert max(rates[:8]) <= 0.01 < 0.1 < max(rates[8:])
    else:
        assert list(rates) == [0.01] * 8 + [0.5] * 8


def test_a_class_of_optimizers_that_is_changed_on_resume_has_its_own_settings_or_is_refused(
    assay, toy: Path
) -> None:
    config = without(toy, "schedule")
    keys = ("optimizer.type=torch.optim.AdamW", "optimizer.weight_decay=0.1")
    assert assay("run", config, *keys, "--max-steps", "8").returncode == 0

    refused = assay("resume", "last", "optimizer.type=torch.optim.SGD")
    other = assay("resume", "last", "optimizer.type=torch.optim.Adam", "train.epochs=2")

    assert refused.returncode == 2
    assert "amsgrad, betas" in refused.stderr and "not of SGD" in refused.stderr
    assert other.returncode == 0, other.stderr
    parts = load_parts(sorted((only_run(toy) / "checkpoints").glob("step-*"))[-1])
    (group,) = parts["optimizer"]["groups"]
    assert (group["decoupled_weight_decay"], group["weight_decay"]) == (False, 0.1)


def test_a_resume_without_changes_keeps_what_a_handler_had_set(assay, toy: Path) -> None:
    config = without(toy, "schedule")
    plugin = 'plugins=[{ type = "assay.engine.SetValue", key = "optimizer.lr", value = 0.002, step = 4 }]'
    assert assay("run", config, plugin, "--max-steps", "8").returncode == 0

    resumed = assay("resume", "last", "train.epochs=2")

    assert resumed.returncode == 0, resumed.stderr
    assert (
        list(read_series(only_run(toy) / "metrics")["train/lr"].values) == [0.01] * 4 + [0.002] * 12
    )


@pytest.mark.parametrize(
    "given", [["seed=9223372036854775808"], ["--seed", "99999999999999999999"], ["seed=-1"]]
)
def test_a_seed_that_fits_into_no_64_bits_is_refused_before_anything_is_written(
    given: list[str], assay, toy: Path
) -> None:
    refused = assay("run", "toy.toml", *given)

    assert refused.returncode == 2
    assert "seed" in refused.stderr and "Traceback" not in refused.stderr
    assert not (toy / "runs").exists()
    assert (
        assay(
            "run", "toy.toml", "seed=9223372036854775807", "--max-steps", "1", "--no-file"
        ).returncode
        == 0
    )


@pytest.mark.parametrize("tag", ["none", "None", "null"])
def test_the_word_none_is_a_tag_like_any_other(assay, toy: Path, tag: str) -> None:
    ran = assay("run", "toy.toml", "--tag", tag, "--max-steps", "1", "--device", "cpu", "--quiet")

    assert ran.returncode == 0, ran.stderr
    (run,) = (toy / "runs").iterdir()
    assert run_file.read(run).tag == tag
