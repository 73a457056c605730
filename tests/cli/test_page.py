"""The page of commands names every command, and their help fits a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from assay.cli.main import COMMANDS, commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


def helps() -> Iterator[tuple[str, str]]:
    """Yield each command with its help."""
    top = click.Context(commands, info_name="assay", terminal_width=80, **commands.context_settings)
    for name in COMMANDS:
        command = commands.get_command(top, name)
        assert command is not None
        context = click.Context(command, parent=top, info_name=name, terminal_width=80)
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for inner, each in command.commands.items():
                under = click.Context(each, parent=context, info_name=inner, terminal_width=80)
                yield under.command_path, each.get_help(under)


def test_the_page_of_commands_names_every_command_and_no_other() -> None:
    tables = re.findall(r"^\| (`assay .*?) \|(.*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`(assay \w+(?:[ -]\w+)*)`", "".join(sum(tables, ())))

    groups = {path.rpartition(" ")[0] for path, _ in helps()} - {"assay"}
    assert {*named} | groups == {path for path, _ in helps()}
    assert len({*named}) == len(named), "a command is named once"


def test_the_help_of_every_command_fits_80_columns() -> None:
    lines = [line for _, text in helps() for line in text.splitlines()]

    assert [line for line in lines if len(line) > 80] == []
    assert any("--fast-dev-run" in line for line in lines)
