"""Errors about the arguments of a command, in the words of all other errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

from assay.core.errors import InputError, choose, did_you_mean, nearest, suggestion
from assay.core.retired import instead_of


def input_error(error: click.UsageError) -> InputError:
    """Convert an error of click's about the arguments."""
    path = error.ctx.command_path if error.ctx is not None else "assay"
    how = f"`{path} --help` shows how"
    match error:
        case click.NoSuchOption(option_name=name, possibilities=near):
            message = f"`{path}` has no option `{name}`."
            fix = instead_of(f"{path} {name}") or did_you_mean_option(name, near or ()) or how
            return InputError(message, fix=fix)
        case click.MissingParameter(param=click.Parameter() as parameter):
            if isinstance(parameter, click.Option):
                what = f"the option {' or '.join(parameter.opts)}"
            else:
                what = f"the argument {parameter.human_readable_name.removesuffix('...')}"
            return InputError(f"`{path}` needs {what}.", fix=how)
        case click.BadParameter(param=click.Option() as option):
            return _bad_value(path, option, error.message, how)
        case click.BadParameter(param=click.Parameter() as parameter):
            name = parameter.human_readable_name
            word = error.message.partition(" is not ")[0].strip("'")
            fix = instead_of(f"{path} {word}") or how
            return InputError(f"`{path}`, {name}: {_sentence(error.message)}", fix=fix)
        case _:
            return _no_such_command(path, error) or _other(path, error, how)


def did_you_mean_option(name: str, options: Iterable[str]) -> str:
    """Return `did you mean `--tag`?` with the option most like `name`, or "" when none is near.

    Options are compared without their dashes, which all of them share.

    >>> did_you_mean_option("--tga", ["--tag", "--on"])
    'did you mean `--tag`?'
    >>> did_you_mean_option("--name", ["--tag", "--on"])
    ''
    """
    by_word = {option.lstrip("-"): option for option in options if option.startswith("-")}
    return suggestion([by_word[word] for word in nearest(name.lstrip("-"), by_word)])


def _bad_value(path: str, option: click.Option, message: str, how: str) -> InputError:
    """Return the error about the value of an option."""
    name = option.opts[0]
    given, is_about_it, _ = message.partition(" is not ")
    match option.type:
        case click.IntRange(min=least, max=most):
            limit = f"of at least {least}" if most is None else f"from {least} to {most}"
            return InputError(f"`{path}`: {name} must be a whole number {limit}, not {given}.")
        case click.Choice(choices=choices) if is_about_it:
            word = given.strip("'")
            fix = instead_of(f"{path} {name} {word}")
            fix = fix or choose(word, map(str, choices), "the choices are")
            return InputError(f"`{path}`: {name} cannot be `{word}`.", fix=fix)
        case _:
            return InputError(f"`{path}`, {name}: {_sentence(message)}", fix=how)


def _no_such_command(path: str, error: click.UsageError) -> InputError | None:
    """Return the error about a word that is no command of a group; None for any other error."""
    group = error.ctx.command if error.ctx is not None else None
    found = re.fullmatch(r"No such command '(.*)'\.", error.message)
    if not isinstance(group, click.Group) or found is None:
        return None
    near = instead_of(f"{path} {found[1]}") or did_you_mean(found[1], group.commands)
    fix = near or f"the commands are {', '.join(group.commands)}"
    return InputError(f"`{path}` has no command `{found[1]}`.", fix=fix)


def _other(path: str, error: click.UsageError, how: str) -> InputError:
    if found := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message):
        return InputError(f"`{path}` takes fewer arguments: not `{found[1]}` too.", fix=how)
    return InputError(f"`{path}`: {_sentence(error.format_message())}", fix=how)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else f"{text}."
