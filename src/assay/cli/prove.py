"""`assay prove`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from assay.cli.completion import complete_run_or_config
from assay.cli.one_config import config_to_open, config_to_train, user_dir_option, variants_option
from assay.cli.permission import trust_option
from assay.cli.terminal import echo, echo_json, paint, use_color, width
from assay.core.errors import InputError
from assay.core.terminal import fold
from assay.formats.json_codec import to_plain
from assay.formats.verdict import Verdict


@click.command(
    name="prove",
    help="Train the first steps of a config, and compare their digests with those of a golden file"
    " or of a recorded run; --write makes the file. It happens in a temporary project. Exit code 0"
    " for equal, 1 for different, with the first step, phase and module, 2 for what does not"
    " compare.",
    context_settings={"ignore_unknown_options": True},
)
@config_to_open
@click.option(
    "--against",
    metavar="RUN|FILE",
    shell_complete=complete_run_or_config,
    help="A run, or a golden file (.json).",
)
@click.option("--write", "path", type=click.Path(), help="Write a golden file.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of steps; 20. A golden file has its own.",
)
@variants_option("A variant of the file.")
@user_dir_option
@click.option("--device", help="cpu, cuda, cuda:1, mps. Left out: the accelerator if there is one.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def command(
    arguments: tuple[str, ...],
    against: str | None,
    path: str | None,
    steps: int | None,
    variants: tuple[str, ...],
    user_dir: str | None,
    device: str | None,
    as_json: bool,
    trust: bool,
) -> int:
    from assay.compose import Launch
    from assay.proof import prove, write_golden_run
    from assay.proof.prove import DEFAULT_STEPS

    if (against is None) == (path is None):
        raise InputError(
            "`assay prove` compares, or writes a golden file.",
            fix="--against golden.json, or --write golden.json",
        )
    config = config_to_train(
        "prove",
        arguments,
        variants,
        user_dir=user_dir,
        trust=trust,
        example="digits.toml --against golden.json",
    )
    launch, count = Launch(device=device), steps or DEFAULT_STEPS
    if path is not None:
        golden = write_golden_run(config, Path(path), launch, steps=count)
        _print_written(path, golden.steps)
        return 0
    assert against is not None
    verdict = prove(config, against, launch, steps=count, tell=lambda line: echo(line, err=True))
    if as_json:
        echo_json(to_plain(verdict))
        return 0 if verdict.equal else 1
    for line in verdict_lines(verdict, color=use_color(sys.stdout)):
        for part in fold(line, width(sys.stdout)):
            echo(part)
    return 0 if verdict.equal else 1


def _print_written(path: str, steps: int) -> None:
    size = Path(path).stat().st_size
    echo(f"written: {path}, {steps} steps, {size:,} bytes")


def verdict_lines(verdict: Verdict, *, color: bool) -> Iterator[str]:
    """Yield the verdict as text."""
    first = verdict.difference
    if first is None:
        steps = f"steps {verdict.first_step} to {verdict.last_step}"
        equal = paint("equal", "green bold", on=color)
        yield f"{equal}: {steps}, {verdict.compared:,} digests compared"
    else:
        different = paint("different", "red bold", on=color)
        yield f"{different}: first at step {first.step}, {first.place}"
        yield f"  {verdict.runs[0]}  {first.left}"
        yield f"  now  {first.right}"
        yield f"cause: {verdict.cause}"
    for name, (was, now) in verdict.changed_inputs.items():
        yield f"differs: {name}  {f'{was} -> {now}' if was else now}"
