"""`assay test`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.launch import launch_of, launch_options, told


@click.command(name="test", help="Evaluate a run on its test data: the best weights if it kept them, else the newest.")
@click.argument("run", metavar="RUN[@CKPT]")
@click.option("--split", default="test", show_default=True, help="Which split of the data.")
@launch_options
def command(run: str, split: str, **options: Any) -> int:
    from assay.compose import test

    result = test(run, launch_of(**options), split=split)
    if result.status == "finished":
        for name, value in result.value.items():
            click.echo(f"{name:<20} {value:.4f}")
    return told(result)
