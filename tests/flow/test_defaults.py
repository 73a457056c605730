"""A run takes nothing silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.formats import run_file

pytestmark = pytest.mark.slow


@pytest.mark.row("A09")
def test_a_run_logs_every_default_and_everything_injected_once_with_its_place(
    assay, toy: Path
) -> None:
    ran = assay("run", "toy.toml", "train.epochs=1", "optimizer.betas=0.8,0.9")

    assert ran.returncode == 0, ran.stderr
    (run,) = (toy / "runs").iterdir()
    lines = (run / "log.txt").read_text().splitlines()
    line = 1 + (toy / "toy.toml").read_text().splitlines().index('type = "torch.optim.AdamW"')
    (eps,) = [each for each in lines if "optimizer.eps" in each]
    assert eps.endswith(f"default optimizer.eps = 1e-08 (torch.optim.AdamW, toy.toml:{line}:8)")
    (params,) = [each for each in lines if "optimizer.params" in each]
    assert params.endswith(
        f"injected optimizer.params by the role `params` (torch.optim.AdamW, toy.toml:{line}:8)"
    )
    assert not any("default optimizer.betas" in each for each in lines)
    assert any("default display.quiet = false" in each for each in lines)

    # What was typed is kept as what it means.
    assert "betas = [\n    0.8,\n    0.9,\n]" in (run / "config.toml").read_text()
    checked = assay("check", str(run / "config.toml"), "--user-dir", str(toy))
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.split()[-1] == run_file.read(run).newest.config_hash[:16]


def test_a_run_that_writes_a_default_is_a_repeat_of_one_that_took_it(assay, toy: Path) -> None:
    for more in ([], ["optimizer.eps=1e-8", "evaluate.every=1 epoch", "seed=0"]):
        assert assay("run", "toy.toml", "train.epochs=1", *more).returncode == 0

    (took, wrote) = (run_file.read(folder).newest for folder in sorted((toy / "runs").iterdir()))
    assert took.seedless_hash == wrote.seedless_hash


def test_a_program_that_shows_logs_of_its_own_does_not_show_the_defaults(assay, toy: Path) -> None:
    module = next(toy.glob("*.py"))
    text = module.read_text()
    module.write_text(f"import logging\nlogging.basicConfig(level=logging.INFO)\n{text}")

    ran = assay("run", "toy.toml", "train.epochs=1")

    assert ran.returncode == 0, ran.stderr
    assert "default " not in ran.stderr + ran.stdout
    (run,) = (toy / "runs").iterdir()
    assert (run / "log.txt").read_text().count("default display.quiet = false") == 1
