"""The one config that a command looks at: a file or a recorded run, with variant and overrides."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import complete_config, complete_run_or_config, complete_variants
from assay.cli.launch import split_arguments
from assay.cli.one_run import LAST
from assay.cli.permission import permission, say, trust_option
from assay.core.errors import InputError

if TYPE_CHECKING:
    from assay.config import Config

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def one_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments `[CONFIG|RUN] [KEY=VALUE ...]`, `--variant` and `--trust`."""
    command = trust_option(command)
    text = "A variant of the file."
    command = click.option(
        "--variant", metavar="NAME", shell_complete=complete_variants, help=text
    )(command)
    return names_and_overrides("[CONFIG|RUN]", complete_run_or_config)(command)


def config_to_open(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments `CONFIG [KEY=VALUE ...]`, of a command that takes no run."""
    return names_and_overrides("CONFIG", complete_config)(command)


def names_and_overrides(names: str, complete: Callable[..., Any]) -> Decorator:
    """Return the argument `NAMES [KEY=VALUE ...]`, for `split_arguments` to take apart."""
    return click.argument(
        "arguments",
        metavar=f"{names} [KEY=VALUE ...]",
        nargs=-1,
        type=click.UNPROCESSED,
        shell_complete=complete,
    )


def variants_option(help: str) -> Decorator:
    """Return the option `--variant`, which may be repeated."""
    return click.option(
        "--variant", "variants", multiple=True, shell_complete=complete_variants, help=help
    )


user_dir_option = click.option(
    "--user-dir",
    type=click.Path(),
    help="Where your modules are. Left out: beside the config, then src/.",
)
user_dirs_option = click.option(
    "--user-dir",
    "user_dirs",
    type=click.Path(),
    multiple=True,
    help="Where your modules are; may be repeated. Left out: beside the config, then src/.",
)


def read_config(
    command: str,
    arguments: Sequence[str],
    variant: str | None = None,
    *,
    user_dir: str | None = None,
    trust: bool = False,
) -> Config:
    """Return the config that the arguments of `assay COMMAND` name; without a name the last run's.

    InputError for several, for a run without a config, and for a run that was not made here
    without `trust`.
    """
    names, overrides = split_arguments(arguments)
    if len(names) > 1:
        raise InputError(
            f"`assay {command}` looks at one config, or at the config of one run.",
            fix=f"assay {command} digits.toml, or assay {command} last",
        )
    name = names[0] if names else LAST
    config = _open(command, name, overrides, user_dir=user_dir, trust=trust)
    return config if variant is None else _variant_of(config, variant)


def config_to_train(
    command: str,
    arguments: Sequence[str],
    variants: Sequence[str],
    *,
    user_dir: str | None,
    trust: bool,
    example: str,
) -> Config:
    """Return the one config that `assay COMMAND` trains; InputError for none or several."""
    from assay.compose import open_given
    from assay.config import expand

    files, overrides = split_arguments(arguments)
    if len(files) != 1:
        raise InputError(f"`assay {command}` trains one config.", fix=f"assay {command} {example}")
    config = open_given(files[0], overrides, user_dir=user_dir, trust=permission(trust), tell=say)
    configs = expand(config, variants, sweep=False)
    if len(configs) != 1:
        raise InputError(f"That names {len(configs)} configs.", fix="give one --variant")
    return configs[0]


def _open(
    command: str, name: str, overrides: Sequence[str], *, user_dir: str | None, trust: bool
) -> Config:
    """Return the config of a file, or that of a run where no such file is."""
    from assay.compose import config_of_run, open_given

    use = f"look at it with `assay {command}`"
    how: dict[str, Any] = {"use": use, "trust": permission(trust), "tell": say}
    if not _is_run(name):
        return open_given(name, overrides, user_dir=user_dir, **how)
    return config_of_run(name, overrides, **how)


def _is_run(name: str) -> bool:
    """Return whether `name` is a run: nothing that lies there or looks like a config file."""
    from assay.query.find import find, is_expression

    # os.path, which takes a name that is too long for what it is: not there.
    if os.path.isfile(name) or name == "-":
        return False
    if not Path(name).suffix or os.path.isdir(name) or is_expression(name):
        return True
    try:
        find(name)
    except InputError:
        return False
    return True


def _variant_of(config: Config, variant: str) -> Config:
    from assay.config import expand

    return expand(config, [variant], sweep=False)[0]
