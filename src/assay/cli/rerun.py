"""`assay rerun`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.launch import given, launch_of, launch_options, told
from assay.cli.permission import permission, say, trust_option
from assay.core.errors import InputError


@click.command(
    name="rerun",
    help="Train the config of a run again, as a new run. KEY=VALUE changes a key: assay rerun"
    " last optimizer.lr=0.01",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", metavar="RUN [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@launch_options
@trust_option
def command(arguments: tuple[str, ...], trust: bool, **options: Any) -> int:
    runs, overrides = given(arguments)
    if len(runs) != 1:
        raise InputError("`assay rerun` needs one run.", fix="assay rerun last optimizer.lr=0.01")
    from assay.compose import rerun

    return told(rerun(runs[0], overrides, launch_of(**options), trust=permission(trust), tell=say))
