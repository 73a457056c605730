"""`assay test`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.launch import given, launch_of, launch_options, told_test
from assay.cli.permission import permission, say, trust_option
from assay.core.errors import InputError


@click.command(
    name="test",
    help="Evaluate a run on its test data: the best weights if it kept them, else the newest. A"
    " CONFIG is evaluated with the weights that --from names.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument(
    "arguments", metavar="RUN[@CKPT]|CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED
)
@click.option(
    "--from",
    "weights",
    default="",
    metavar="RUN[@CKPT]|PATH",
    help="Whose weights a CONFIG is tested with.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    help="Which split; may be repeated. Left out: test, and all test_*.",
)
@click.option(
    "--infer", is_flag=True, help="Keep what the model gives for [data.infer]: no loss, no metrics."
)
@launch_options
@trust_option
def command(
    arguments: tuple[str, ...],
    weights: str,
    splits: tuple[str, ...],
    infer: bool,
    trust: bool,
    **options: Any,
) -> int:
    addresses, overrides = given(arguments)
    if len(addresses) != 1:
        raise InputError("`assay test` looks at one run, or one config.", fix="assay test last")
    from assay.compose import test

    launch = launch_of(**options)
    found = test(
        addresses[0],
        launch,
        splits=splits,
        infer=infer,
        weights=weights,
        overrides=overrides,
        trust=permission(trust),
        tell=say,
    )
    return told_test(found, measures=not infer, pdb=options["pdb"])
