"""`assay check`."""

from __future__ import annotations

import json
import sys

import click

from assay.cli.launch import given
from assay.cli.terminal import paint, use_color
from assay.core.diagnostics import render, summary, to_json
from assay.core.errors import InputError


@click.command(
    name="check",
    help="Say everything that is wrong with a config, without running it.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--shape", is_flag=True, help="Only what can be told without importing anything.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--user-dir", type=click.Path(), help="Where your modules are. Left out: beside the config, then src/.")
def command(arguments: tuple[str, ...], shape: bool, as_json: bool, user_dir: str | None) -> int:
    from assay.config import check_shape, config_hash, open_config

    files, overrides = given(arguments)
    if len(files) != 1:
        raise InputError("`assay check` looks at one config.", fix="assay check digits.toml")
    config = open_config(files[0], overrides, user_dir=user_dir)
    problems = check_shape(config)
    shape_is_bad = any(problem.severity == "error" for problem in problems)
    if not shape and not config.problems:
        from assay.compose import problems_of_signatures

        told = {(str(problem.origin), problem.key) for problem in problems}
        further = problems_of_signatures(config)
        problems += [problem for problem in further if (str(problem.origin), problem.key) not in told]
    bad = shape_is_bad or any(problem.severity == "error" for problem in problems)
    color = use_color(sys.stdout)
    if as_json:
        click.echo(json.dumps(to_json(problems), indent=1))
    elif problems:
        click.echo(render(problems, color=color) + f"\n\n{summary(problems)}")
    if not bad and not as_json:
        click.echo(f"{paint('fine', 'green bold', on=color)}  {files[0]}  {config_hash(config.root)[:16]}")
    return 2 if bad else 0
