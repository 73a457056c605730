"""What a config says of its optimizer, its schedule and its precision is what the run does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.store.series import read_series

pytestmark = pytest.mark.slow

GROUPS = """\
lr = 1e-2
betas = [0.9, 0.95]
weight_decay = 0.1

[optimizer.params]
type = "assay.engine.Groups"
rules = [
    { kind = ["norm", "bias"], weight_decay = 0.0 },
    { match = "layers.4.*", lr = 1e-3 },
]
"""


def with_groups(toy: Path, change: tuple[str, str] = ("", "")) -> None:
    config = (toy / "toy.toml").read_text()
    (toy / "toy.toml").write_text(config.replace("lr = 1e-2\n", GROUPS.replace(*change)))


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.mark.row("A55")
def test_norm_and_bias_are_not_decayed_when_a_config_says_so_and_the_sizes_are_told(
    assay, toy: Path
) -> None:
    with_groups(toy)

    ran = assay("run", "toy.toml", "train.epochs=2")

    assert ran.returncode == 0, ran.stderr
    told = [line for line in ran.stderr.splitlines() if line.startswith("group")]
    assert told == [
        "group 1 of 4: lr 0.01, weight_decay 0.1: 32 parameters (layers.0.weight)",
        "group 2 of 4: lr 0.01, weight_decay 0: 24 parameters (layers.0.bias, layers.1.weight, layers.1.bias)",
        "group 3 of 4: lr 0.001, weight_decay 0.1: 16 parameters (layers.4.weight)",
        "group 4 of 4: lr 0.001, weight_decay 0: 2 parameters (layers.4.bias)",
    ]
    assert "betas = [\n    0.9,\n    0.95,\n]" in (only_run(toy) / "config.toml").read_text()


def test_a_pattern_that_fits_nothing_is_shown_where_it_is_written(assay, toy: Path) -> None:
    with_groups(toy, ("layers.4.*", "layer.4.*"))

    ran = assay("run", "toy.toml")

    lines = (toy / "toy.toml").read_text().splitlines()
    number, line = next((i, line) for i, line in enumerate(lines, 1) if "layer.4.*" in line)
    column = line.index('"layer') + 1
    assert ran.returncode == 2
    assert "error: No parameter of the model fits 'layer.4.*'" in ran.stderr
    assert f"--> toy.toml:{number}:{column}" in ran.stderr
    assert "did you mean `layers.4.*`?" in ran.stderr
    assert not (toy / "runs").exists()


def test_a_setting_that_the_optimizer_lacks_is_shown_where_it_is_written(assay, toy: Path) -> None:
    with_groups(toy, ('bias"], weight_decay', 'bias"], weigth_decay'))

    ran = assay("run", "toy.toml")

    assert ran.returncode == 2
    assert "error: AdamW has no setting 'weigth_decay'" in ran.stderr
    assert "did you mean `weight_decay`?" in ran.stderr


@pytest.mark.thorough
def test_a_run_with_groups_goes_on_with_them(assay, toy: Path) -> None:
    with_groups(toy)
    died = assay("run", "toy.toml", DIE_AT="100", DIE_BY="SIGTERM")
    assert died.returncode == 143, died.stderr
    first = only_run(toy)

    went_on = assay("resume", "last")

    assert went_on.returncode == 0, went_on.stderr
    assert "group 4 of 4: lr 0.001, weight_decay 0: 2 parameters (layers.4.bias)" in went_on.stderr
    assert assay("run", "toy.toml").returncode == 0
    (second,) = [run for run in (toy / "runs").iterdir() if run != first]
    one, other = (read_series(run / "metrics")["train/loss"] for run in (first, second))
    assert list(one.values) == list(other.values)


@pytest.mark.thorough
def test_an_optimizer_is_fused_unless_the_config_says_otherwise_and_the_record_knows(
    assay, toy: Path
) -> None:
    told, kept = [], []
    for written in ([], ["optimizer.foreach=false"], ["optimizer.type=torch.optim.NAdam"]):
        assert (
            assay("run", "toy.toml", "train.epochs=1", "--tag", str(len(told)), *written).returncode
            == 0
        )
        (run,) = (toy / "runs").glob(f"*-{len(told)}")
        lines = (run / "log.txt").read_text().splitlines()
        told.append(
            [
                line.split("default ")[1].split(" (")[0]
                for line in lines
                if "optimizer.fused" in line
            ]
        )
        kept.append(json.loads((run / "run.json").read_text())["attempts"][0]["launch"]["fused"])

    assert told == [["optimizer.fused = True"], ["optimizer.fused = False"], []]
    assert kept == [True, False, False]


def test_the_length_of_a_run_is_told_at_its_start(assay, toy: Path) -> None:
    ran = assay(
        "run", "toy.toml", "data.train.drop_last=true", "train.accumulate=4", "train.epochs=1"
    )

    assert ran.returncode == 0, ran.stderr
    assert "1 epoch x 7 (60 samples / 8, the last 4 left out) = 7 steps" in ran.stderr
    assert "a step has 8 = 4 accumulate x 2" in ran.stderr
    quiet = assay("run", "toy.toml", "train.epochs=1", "display.quiet=true")
    assert "60 samples" not in quiet.stderr


@pytest.mark.thorough
def test_a_schedule_of_torch_and_one_by_the_epoch_are_followed(assay, toy: Path) -> None:
    config = (toy / "toy.toml").read_text()
    warm = 'type = "assay.engine.WarmupCosine"\nwarmup_ratio = 0.1\n'
    forms = {
        "step": 'type = "torch.optim.lr_scheduler.StepLR"\nstep_size = 8\ngamma = 0.5\n',
        "torch": 'type = "assay.engine.TorchSchedule"\nunit = "epoch"\n'
        'scheduler = { type = "torch.optim.lr_scheduler.ExponentialLR", gamma = 0.5 }\n',
        "own": 'type = "assay.engine.WarmupExponential"\nunit = "epoch"\ngamma = 0.5\n',
    }

    for tag, form in forms.items():
        (toy / f"{tag}.toml").write_text(config.replace(warm, form))
        ran = assay("run", f"{tag}.toml", "--tag", tag)
        assert ran.returncode == 0, ran.stderr
        (run,) = (toy / "runs").glob(f"*-{tag}")
        rates = list(read_series(run / "metrics")["train/lr"].values)
        assert rates == pytest.approx([0.01 * 0.5 ** (step // 8) for step in range(32)]), tag


@pytest.mark.thorough
def test_half_precision_trains_from_a_config_and_goes_on_with_its_scale(assay, toy: Path) -> None:
    died = assay("run", "toy.toml", "train.precision=fp16", DIE_AT="100", DIE_BY="SIGTERM")
    assert died.returncode == 143, died.stderr
    first = only_run(toy)
    went_on = assay("resume", "last")
    assert went_on.returncode == 0, went_on.stderr

    assert assay("run", "toy.toml", "train.precision=fp16").returncode == 0
    (second,) = [run for run in (toy / "runs").iterdir() if run != first]
    one, other = (read_series(run / "metrics")["train/loss"] for run in (first, second))
    assert list(one.values) == list(other.values)
