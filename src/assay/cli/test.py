"""`assay test`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.completion import complete_run_or_config
from assay.cli.launch import (
    json_at_end,
    launch_of,
    only_run,
    result_data,
    split_arguments,
    test_options,
    told_test,
)
from assay.cli.one_config import names_and_overrides
from assay.cli.permission import permission, say, trust_option


@click.command(
    name="test",
    help="Evaluate a run on its test data: the best weights if it kept them, else the newest. A"
    " CONFIG is evaluated with the weights that --from names.",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("[RUN[@CKPT]|CONFIG]", complete_run_or_config)
@click.option(
    "--from",
    "weights",
    default="",
    metavar="RUN[@CKPT]|PATH",
    shell_complete=complete_run_or_config,
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
@test_options
@trust_option
def command(
    arguments: tuple[str, ...],
    weights: str,
    splits: tuple[str, ...],
    infer: bool,
    trust: bool,
    **options: Any,
) -> int:
    addresses, overrides = split_arguments(arguments)
    address = only_run("test", addresses)
    from assay.compose import test

    launch = launch_of(**options)
    how: dict[str, Any] = {"trust": permission(trust), "tell": say}
    what: dict[str, Any] = {"splits": splits, "infer": infer, "weights": weights}
    with json_at_end(options["as_json"]) as results:
        found = test(address, launch, overrides=overrides, **what, **how)
        results.append(result_data(found))
        return told_test(found, measures=not infer, pdb=options["pdb"])
