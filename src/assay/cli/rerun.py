"""`assay rerun`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.completion import complete_run_and_keys
from assay.cli.job_options import NAMES, job_fields, job_options
from assay.cli.launch import (
    json_at_end,
    launch_of,
    only_run,
    print_result,
    rerun_options,
    result_data,
    split_arguments,
)
from assay.cli.one_config import names_and_overrides
from assay.cli.permission import permission, say, trust_option
from assay.core.errors import InputError


@click.command(
    name="rerun",
    help="Train the config of a run again, as a new run, with the code of the working tree."
    " KEY=VALUE changes a key: assay rerun last optimizer.lr=0.01",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("[RUN]...", complete_run_and_keys)
@rerun_options
@click.option("--queue", is_flag=True, help="Put it in line, or several runs: assay queue.")
@job_options
@trust_option
def command(arguments: tuple[str, ...], trust: bool, queue: bool, **options: Any) -> int:
    names, overrides = split_arguments(arguments)
    placed = {name: options.pop(name) for name in NAMES}
    if queue:
        return _queue(names, overrides, trust=trust, placed=placed, **options)
    if given := [name for name in NAMES if placed[name]]:
        name = given[0].replace("_", "-")
        raise InputError(f"`--{name}` is for the queue.", fix="add --queue")
    run = only_run("rerun", names)
    launch = launch_of(**options)
    from assay.compose import rerun

    with json_at_end(options["as_json"]) as results:
        ended = rerun(run, overrides, launch, trust=permission(trust), tell=say)
        results.append(result_data(ended))
        return print_result(ended)


def _queue(
    names: list[str],
    overrides: list[str],
    *,
    trust: bool,
    placed: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> int:
    from assay.cli.submission import submit_to_queue
    from assay.compose.training import config_of_run
    from assay.query.find import find_run
    from assay.query.rerun import ranks_refusal

    names = names or [only_run("rerun", names)]
    runs = [find_run(name) for name in names]
    for why in filter(None, map(ranks_refusal, runs)):
        raise InputError(why)
    configs = [
        config_of_run(name, overrides, use="train it again", trust=permission(trust), tell=say)
        for name in names
    ]
    launch = launch_of(**options)
    parents = [run.id for run in runs]
    return submit_to_queue(
        configs, launch, parents=parents, as_json=as_json, **job_fields(**placed)
    )
