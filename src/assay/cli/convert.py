"""`assay convert`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from assay.cli.completion import complete_config
from assay.cli.one_config import user_dir_option
from assay.cli.permission import permission, say
from assay.cli.prove import verdict_lines
from assay.cli.terminal import echo, paint, use_color, width
from assay.core.errors import InputError
from assay.core.terminal import cell_count, fold
from assay.formats.json_codec import write_atomic

if TYPE_CHECKING:
    from assay.config import Config
    from assay.config.conversion import ConversionNote

_ENDING = ".assay.toml"
_MOST_FILES = 20_000


@click.command(
    name="convert",
    help="Write a config of an older system (alchemy, LiBai) as one of assay in TOML, with its"
    " comments, and list what was translated and what needs a hand. Of a folder it is every config"
    " in it, and the list names what its code imports of thexp, flame and the others, too."
    " NAME.toml becomes NAME.assay.toml beside it.",
)
@click.argument("given", metavar="CONFIG|DIR", shell_complete=complete_config)
@click.option("--to", "target", metavar="FILE", help="Write this file instead.")
@click.option(
    "--check",
    is_flag=True,
    help="Train both configs one step first, in temporary projects, and write nothing unless the"
    " bits are equal; else the exit code is 1.",
)
@click.option("--device", help="Of --check: cpu, cuda, cuda:1, mps.")
@user_dir_option
def command(
    given: str, target: str | None, check: bool, device: str | None, user_dir: str | None
) -> int:
    from assay.compose import open_given
    from assay.config.conversion import convert, imports_by_hand, is_older_config

    folder = Path(given) if os.path.isdir(given) else None
    files = _files(folder) if folder is not None else [Path(given)]
    configs = [each for each in files if is_older_config(each)]
    if folder is None:
        if not configs and files[0].suffix.lower() == ".py" and files[0].is_file():
            raise InputError(
                f"{given} is a program, not a config: one of LiBai has `model` and `dataloader`.",
                fix=f"assay convert {shlex.quote(str(files[0].parent))} lists what in its code"
                " needs a hand",
            )
        configs = files
    elif target is not None:
        raise InputError("`--to` names one file.", fix=f"assay convert CONFIG --to {target}")
    targets = [_target_of(each) if target is None else Path(target) for each in configs]
    for path in targets:
        if targets.count(path) > 1:
            several = " and ".join(
                map(str, (configs[i] for i, to in enumerate(targets) if to == path))
            )
            fix = "convert each by itself, with --to FILE"
            raise InputError(f"{several} would become one file.", where=str(path), fix=fix)
        if os.path.lexists(path):
            fix = "move it away, or give --to FILE"
            raise InputError("This file exists already.", where=str(path), fix=fix)
    opened = [
        open_given(
            each,
            user_dir=user_dir or _user_dirs(each, folder),
            use="convert it",
            trust=permission(False),
            tell=say,
        )
        for each in configs
    ]
    made = [convert(each) for each in opened]
    by_hand = [
        line
        for path in files
        if folder is not None and path.suffix == ".py" and path not in configs
        for line in imports_by_hand(path, str(path))
    ]
    if not made and not by_hand:
        raise InputError(f"Nothing in {given} is of an older system.", fix="give another folder")
    if check and not all(
        _is_equal(config, new.text, path, device)
        for config, new, path in zip(opened, made, targets, strict=True)
    ):
        return 1
    blocks: list[str] = []
    for new, path in zip(made, targets, strict=True):
        _write(path, new.text)
        blocks += [f"written: {path}", *_block("translated", new.translated)]
        blocks += _block("by hand", new.by_hand)
    echo("\n\n".join([*blocks, *_block("by hand, in code", by_hand)]))
    return 0


def _files(folder: Path) -> list[Path]:
    """Return the files of a project, without those of records and environments."""
    from assay.record.snapshot import file_names

    return [folder / name for name in islice(sorted(file_names(folder)), _MOST_FILES)]


def _user_dirs(config: Path, folder: Path | None) -> list[Path] | None:
    """Return where the modules of a config in a project are; None for a config by itself."""
    places = (folder, config.parent, config.parent / "src")
    return None if folder is None else [each for each in places if each and each.is_dir()]


def _target_of(config: Path) -> Path:
    return config.with_name(f"{config.stem}{_ENDING}")


def _is_equal(config: Config, text: str, path: Path, device: str | None) -> bool:
    """Print whether the first step of both has the same bits, and return it."""
    from assay.compose import Launch
    from assay.config import expand, open_text
    from assay.proof import compare_first_steps

    new = replace(open_text(text, source=str(path)), user_dirs=config.user_dirs)
    old, new = (expand(each, [], sweep=False)[0] for each in (config, new))
    echo(f"{config.path}, its first step")
    verdict = compare_first_steps(old, new, Launch(device=device), steps=1)
    for line in verdict_lines(verdict, color=use_color(sys.stdout), now="converted"):
        for part in fold(line, width(sys.stdout)):
            echo(part)
    return verdict.equal


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"It cannot be written: {error.strerror}.", where=str(path)) from error


def _block(title: str, findings: Sequence[ConversionNote]) -> list[str]:
    """Return a list of findings as one text, or no text where there are none."""
    columns = width(sys.stdout) or 10_000
    lines = [f"{paint(title, 'bold', on=use_color(sys.stdout))}, {len(findings)}"]
    for found in findings:
        line = f"  {found.where}  {found.message}"
        if cell_count(line) <= columns:
            lines.append(line)
        else:
            lines.append(f"  {found.where}")
            lines += [f"      {part}" for part in wrap(found.message, columns - 6)]
    return ["\n".join(lines)] if findings else []
