"""Generator of `docs/reference/commands.md` from the help texts: `python tests/commands.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from assay.cli.main import COMMANDS, commands

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "commands.md"
HEAD = """\
# Commands

```{index} ! command line, ! commands, ! CLI
```

[中文](../zh/reference/commands.md)

Every command with its options, as `--help` prints them. A CONFIG is a file ([languages](languages.md)), KEY=VALUE an
[override](overrides.md) of one of its keys, and RUN one that was recorded: its id or the beginning of it, its tag,
`last`, `last-2`, `best:METRIC`, or a path. `RUN@CKPT` is a checkpoint of it: a step, `best`, `latest`, or a name.

<!-- numbers vary -->
```console
$ assay --version
assay 0.1.0
```

`resume`, `rerun`, `test` and `replay` ask before they run a record that [was not made here](records.md#runs-made-elsewhere).
Commands that import your modules say so at the end of their help; `assay check --shape` and all others only read data.

| exit code | what it says |
| --- | --- |
| 0 | fine |
| 1 | the run failed, or two runs differ |
| 2 | what was asked for is wrong; nothing was begun |
| 130, 143 | stopped by Ctrl-C or SIGTERM; the run was saved and can be resumed |

`ASSAY_TRACEBACK=1` shows the whole traceback of an error, not only the part that begins in your code.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## `{path}`\n\n```text\n{text}\n```\n" for path, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """Each command with its help, 80 columns wide."""
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
