"""What the commands that train have in common: their options, and how they end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.cli.terminal import paint, use_color
from assay.core.errors import AssayError, InputError

if TYPE_CHECKING:
    from assay.compose import Launch, RunResult


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Settings of one launch. They are recorded, and kept out of the config and its hash."""
    for option in reversed(
        (
            click.option("--device", help="cpu, cuda, cuda:1, mps. Left out: the accelerator if there is one."),
            click.option("--desc", default="", help="What this run is for; the body of its README."),
            click.option("--debug", is_flag=True, help="Say more, and name the op that fails in backward."),
            click.option("--no-file", is_flag=True, help="Leave no record and no other file."),
            click.option("--max-steps", type=click.IntRange(min=1), help="Stop after that many steps at the latest."),
            click.option("--quiet", is_flag=True, help="Print nothing but problems and the end."),
        )
    ):
        command = option(command)
    return command


def launch_of(**options: Any) -> Launch:
    """The launch that the options of `launch_options` describe."""
    from assay.compose import Launch

    if options["debug"]:
        _debug()
    return Launch(**options, command=("assay", *sys.argv[1:]))


def told(result: RunResult) -> int:
    """Tell a person how a run ended; the exit code."""
    color = use_color(sys.stderr)
    where = f"  {result.record_dir}" if result.record_dir is not None else ""
    error = result.exception
    if result.status == "finished":
        values = "  ".join(f"{name} {value:.4f}" for name, value in result.value.items())
        click.echo(f"{paint('finished', 'green bold', on=color)} {result.id}  step {result.step}  {values}", err=True)
    elif result.status == "stopped":
        click.echo(f"{paint('stopped', 'yellow bold', on=color)} {result.id}  at step {result.step}", err=True)
    else:
        _explain(error, color)
    if where:
        click.echo(f"record:{where}", err=True)
    if result.status != "finished" and result.record_dir is not None:
        click.echo(f"go on with: assay resume {result.id}", err=True)
    return result.exit_code


def given(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Config files and overrides among positional arguments; `--a.b=v` is answered with how to write it."""
    from assay.config import is_override

    files: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and "=" in argument and "." in argument.split("=")[0]:
            raise InputError(f"There is no option `{argument}`.", fix=f"write `{argument.lstrip('-')}`")
        (overrides if is_override(argument) else files).append(argument)
    return files, overrides


def _explain(error: BaseException | None, color: bool) -> None:
    if isinstance(error, AssayError):
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"{paint('error:', 'red bold', on=color)} {error}{notes}", err=True)
    elif error is not None:
        from assay.record.recorder import ending

        _, _, trimmed = ending(error)
        text = trimmed or "".join(traceback.format_exception_only(error))
        click.echo(text.rstrip(), err=True)


def _debug() -> None:
    import logging
    import os

    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    logging.getLogger("assay").setLevel(logging.DEBUG)
