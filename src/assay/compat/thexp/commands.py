"""Commands of thexp: `init`, and `config` for the variables of this machine and project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.config import globs
from assay.config.settings import (
    Scope,
    UnknownVariableError,
    file_of,
    remove_setting,
    variable_path,
)
from assay.core.errors import InputError
from assay.store.layout import open_project

USAGE = """\
Usage:
 thexp init
 thexp config -l
 thexp config --global|--local <name> <value>
 thexp config --global|--local -u <name>
 thexp config --global|--local -l"""


def run_command(given: Sequence[str]) -> int:
    """Run `thexp ARGUMENTS`; return the exit status. InputError for what it does not know."""
    match list(given):
        case ["init"]:
            project = open_project(Path.cwd(), create=True)
            print(f"{project.root} is a project: {project.assay_dir}")
        case ["config", "-l"]:
            _list(globs.list_config())
        case ["config", ("--global" | "--local") as option, "-l"]:
            is_global = option == "--global"
            _list(globs.list_config(globa=is_global, local=not is_global))
        case ["config", ("--global" | "--local") as option, "-u", name]:
            _remove("global" if option == "--global" else "local", name)
        case ["config", ("--global" | "--local") as option, name, value] if name[:1] != "-":
            globs.update("global" if option == "--global" else "local", name, value)
        case []:
            print(USAGE)
            return 2
        case _:
            raise InputError(f"`thexp {' '.join(given)}` is no command of thexp.", fix=USAGE)
    return 0


def _list(variables: dict[str, object]) -> None:
    for name, value in sorted(variables.items()):
        print(f"{name}={value}")


def _remove(scope: Scope, name: str) -> None:
    """Remove a variable of a scope; InputError where it is not set there."""
    known = globs.list_config(globa=scope == "global", local=scope == "local")
    if name not in known:
        raise UnknownVariableError(name, known)
    remove_setting(file_of(globs.settings, scope), variable_path(name))
