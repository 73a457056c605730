"""`assay run`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.launch import given, launch_of, launch_options, told
from assay.core.errors import ConfigError, InputError


@click.command(
    name="run",
    help="Train what a config asks for. KEY=VALUE overrides a key of the file: assay run a.toml optimizer.lr=0.01",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", metavar="CONFIG... [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@launch_options
@click.option("--user-dir", type=click.Path(), help="Where your modules are. Left out: beside the config, then src/.")
@click.option("--tag", help="Instead of the config's tag.")
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the config's seed.")
def command(arguments: tuple[str, ...], user_dir: str | None, tag: str | None, seed: int | None, **options: Any) -> int:
    from assay.config import check_shape, open_config

    files, overrides = given(arguments)
    if not files:
        raise InputError("`assay run` needs a config file.", fix="assay run digits.toml")
    overrides += [f"tag={tag}"] if tag is not None else []
    overrides += [f"seed={seed}"] if seed is not None else []
    unknown = [file for file in files if file.startswith("-")]
    if unknown:
        raise InputError(f"`assay run` has no option `{unknown[0]}`.", fix="`assay run --help` shows them")
    configs = [open_config(file, overrides, user_dir=user_dir) for file in files]
    # All shapes first: a typo in the last file must not come to light after a night of training the others.
    problems = [p for config in configs for p in check_shape(config) if p.severity == "error"]
    if problems:
        raise ConfigError(problems)
    from assay.compose import train

    launch = launch_of(**options)
    codes = [told(train(config, launch)) for config in configs]
    return max(codes)
