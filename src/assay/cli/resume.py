"""`assay resume`."""

from __future__ import annotations

import os
from typing import Any

import click

from assay.cli.completion import complete_run_and_keys
from assay.cli.launch import (
    json_at_end,
    launch_of,
    only_run,
    print_result,
    result_data,
    resume_options,
    split_arguments,
)
from assay.cli.one_config import names_and_overrides
from assay.cli.permission import permission, say, trust_option
from assay.cli.script_run import resume_if_script
from assay.core.errors import InputError


@click.command(
    name="resume",
    help="Resume a stopped, failed or killed run from its newest checkpoint.",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("[RUN[@CKPT]]", complete_run_and_keys)
@resume_options
@click.option(
    "--take-over", is_flag=True, help="Even if another process seems to be writing this run."
)
@click.option("--force", is_flag=True, help="Even with another seed or other data.")
@click.option(
    "--no-verify", is_flag=True, help="Do not compare the checkpoint with its digests first."
)
@trust_option
def command(
    arguments: tuple[str, ...],
    take_over: bool,
    force: bool,
    no_verify: bool,
    trust: bool,
    **options: Any,
) -> int:
    runs, overrides = split_arguments(arguments)
    run = only_run("resume", runs)
    if os.path.isfile(run):
        raise InputError(
            f"{run} is a file, not a run.", fix=f"assay run {run}, or assay resume last"
        )
    resume_if_script(run, overrides, is_configured=trust or force or take_over or no_verify)
    from assay.compose import resume

    launch = launch_of(**options)
    how = {"take_over": take_over, "verify": not no_verify, "force": force}
    with json_at_end(options["as_json"]) as results:
        ended = resume(run, overrides, launch, trust=permission(trust), tell=say, **how)
        results.append(result_data(ended))
        return print_result(ended, pdb=options["pdb"])
