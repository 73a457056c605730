"""`assay verify-resume`."""

from __future__ import annotations

import secrets
import shlex
import sys
from typing import TYPE_CHECKING

import click

from assay.cli.one_config import config_to_open, config_to_train, user_dir_option, variants_option
from assay.cli.permission import trust_option
from assay.cli.terminal import echo, paint, use_color, width
from assay.core.terminal import fold

if TYPE_CHECKING:
    from assay.proof import ResumeCheck


@click.command(
    name="verify-resume",
    help="Train a config once undisturbed and once killed (kill -9) and resumed at random steps,"
    " and compare the bits of the end: weights, optimizer, state, metrics and the order of the"
    " samples. The first step, phase, module and operation that differ are named. It happens in a"
    " temporary project.",
    context_settings={"ignore_unknown_options": True},
)
@config_to_open
@click.option(
    "--kills", type=click.IntRange(min=1), default=3, metavar="N", help="How often it is killed; 3."
)
@click.option(
    "--kill-seed", type=click.IntRange(min=0), metavar="N", help="Kill where another time did."
)
@variants_option("A variant of the file.")
@user_dir_option
@click.option("--device", help="cpu, cuda, cuda:1, mps. Left out: the accelerator if there is one.")
@click.option(
    "--max-steps",
    type=click.IntRange(min=2),
    metavar="N",
    help="Stop after that many steps at the latest.",
)
@trust_option
def command(
    arguments: tuple[str, ...],
    kills: int,
    kill_seed: int | None,
    variants: tuple[str, ...],
    user_dir: str | None,
    device: str | None,
    max_steps: int | None,
    trust: bool,
) -> int:
    from assay.compose import Launch
    from assay.proof import verify_resume
    from assay.proof.differences import format_comparisons
    from assay.proof.verify_resume import runs_of

    config = config_to_train(
        "verify-resume",
        arguments,
        variants,
        user_dir=user_dir,
        trust=trust,
        example="digits.toml --kills 5",
    )
    seed = secrets.randbelow(10**6) if kill_seed is None else kill_seed
    echo(f"kills: {kills}, drawn with --kill-seed {seed}", err=True)
    launch = Launch(device=device, max_steps=max_steps)
    check = verify_resume(
        config, launch, kills=kills, seed=seed, tell=lambda line: echo(line, err=True)
    )
    for line in format_comparisons(check.compared):
        for part in fold(line, width(sys.stdout)):
            echo(part)
    color = use_color(sys.stdout)
    times = "once" if len(check.left_at) == 1 else f"{len(check.left_at)} times"
    tried = ", ".join(map(str, check.resumed_from))
    what = f": {check.steps} steps, killed {times}, resumed from {tried}"
    what += f"; from {check.untried} steps it was not tried"
    if check.equal:
        echo(paint("equal", "green bold", on=color) + what)
        return 0
    echo(paint("not equal", "red bold", on=color) + what)
    for line in _where(check):
        echo(line)
    if check.kept is not None:
        left, right = (shlex.quote(str(run.path)) for run in runs_of(check.kept))
        echo(f"both are kept: assay diff {left} {right}", err=True)
    return 1


def _where(check: ResumeCheck) -> list[str]:
    """Say whether resuming made the difference, as far as the curves tell."""
    first = check.first_step
    if first is None or check.difference is None:
        return []
    place = [f"First difference: step {first}, {check.difference.place}", f"cause: {check.cause}"]
    if not check.resumed_from:
        return place
    if not check.blames_resume:
        return [
            *place,
            f"It differs from step {first} on, before anything was resumed (from step"
            f" {check.resumed_from[0]}):",
            "two runs that nobody kills would differ, too. `assay check CONFIG --data` tries the"
            " data;",
            "on a GPU [train] deterministic = true names what cannot be.",
        ]
    resumed = max(step for step in check.resumed_from if step < first)
    return [
        *place,
        f"It was equal up to step {first - 1}; the run had been resumed from step {resumed}.",
    ]
