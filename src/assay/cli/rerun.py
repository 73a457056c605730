"""`assay rerun`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.completion import complete_run_and_keys
from assay.cli.launch import (
    json_at_end,
    launch_of,
    launch_options,
    only_run,
    print_result,
    result_data,
    split_arguments,
)
from assay.cli.one_config import names_and_overrides
from assay.cli.permission import permission, say, trust_option


@click.command(
    name="rerun",
    help="Train the config of a run again, as a new run. KEY=VALUE changes a key: assay rerun"
    " last optimizer.lr=0.01",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("[RUN]", complete_run_and_keys)
@launch_options
@trust_option
def command(arguments: tuple[str, ...], trust: bool, **options: Any) -> int:
    runs, overrides = split_arguments(arguments)
    run = only_run("rerun", runs)
    launch = launch_of(**options)
    from assay.compose import rerun

    with json_at_end(options["as_json"]) as results:
        ended = rerun(run, overrides, launch, trust=permission(trust), tell=say)
        results.append(result_data(ended))
        return print_result(ended, pdb=options["pdb"])
