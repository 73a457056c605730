"""`assay test`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.launch import launch_of, launch_options, told


@click.command(name="test", help="Evaluate a run on its test data: the best weights if it kept them, else the newest.")
@click.argument("run", metavar="RUN[@CKPT]")
@click.option("--split", "splits", multiple=True, help="Which split; may be repeated. Left out: test, and all test_*.")
@launch_options
def command(run: str, splits: tuple[str, ...], **options: Any) -> int:
    from assay.compose import test

    result = test(run, launch_of(**options), splits=splits)
    if result.status == "finished":
        for name, value in result.value.items():
            click.echo(f"{name:<20} {value:.4f}")
    return told(result, pdb=options["pdb"])
