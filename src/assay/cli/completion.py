"""Completion of arguments in a shell: runs, metrics, config files and their keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem

from assay.core.errors import AssayError

if TYPE_CHECKING:
    import click

    from assay.config.tree import Table
    from assay.query.table import RunRow

_MOST_RUNS = 50
_ADDRESSES = {"last": "the newest run", "last-1": "the run before it"}


def complete_runs(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return addresses of runs that begin so: `last`, tags and ids, the newest first."""
    items = [CompletionItem(name, help=text) for name, text in _ADDRESSES.items()]
    rows = list(reversed(_rows()))[:_MOST_RUNS]
    tags = dict.fromkeys(row.tag for row in rows if row.tag and " " not in row.tag)
    items += [CompletionItem(tag, help="tag") for tag in tags]
    items += [CompletionItem(row.id, help=row.tag) for row in rows]
    return [item for item in items if item.value.startswith(incomplete)]


def complete_metrics(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return metrics that begin so: those of the runs on the command line, else of all."""
    names = _metrics_of(_given_runs(context)) or _metrics_of_all()
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_config(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return `KEY=` for the keys of a config that is on the line already, and files."""
    given = context.params.get("arguments") or ()
    keys: dict[str, None] = {}
    for file in given:
        if "=" not in file and Path(file).is_file():
            keys |= dict.fromkeys(_keys_of(file))
    items = [CompletionItem(f"{key}=") for key in keys if key.startswith(incomplete)]
    return [*items, CompletionItem(incomplete, type="file")]


def complete_run_or_config(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return runs, files, and keys once a config is named."""
    return [
        *complete_runs(context, parameter, incomplete),
        *complete_config(context, parameter, incomplete),
    ]


def _rows() -> list[RunRow]:
    from assay.query.project_lookup import project_here
    from assay.query.table import rows_of

    with contextlib.suppress(AssayError, OSError):  # a completion says nothing about mistakes
        return [row for row in rows_of(project_here()) if row.written.kind == "train"]
    return []


def _given_runs(context: click.Context) -> list[str]:
    given: Any = context.params.get("runs") or context.params.get("run") or ()
    return [given] if isinstance(given, str) else list(given)


def _metrics_of(runs: Iterable[str]) -> list[str]:
    from assay.query.find import find_run

    names: dict[str, None] = {}
    for address in runs:
        with contextlib.suppress(AssayError, OSError):
            names |= dict.fromkeys(find_run(address).metrics)
    return list(names)


def _metrics_of_all() -> list[str]:
    from assay.query.table import metric_names

    return metric_names(_rows())


def _keys_of(file: str) -> list[str]:
    """Return the keys that a text config assigns, and those of the standard sections."""
    from assay.config import load

    if Path(file).suffix == ".py":  # it is a program, which a completion does not run
        return []
    with contextlib.suppress(AssayError, OSError):
        return [*_assigned(load(file).root, ""), *_standard_keys()]
    return []


def _assigned(table: Table, prefix: str) -> Iterator[str]:
    from assay.config.tree import Table

    for key, value in table.items.items():
        name = f"{prefix}{key}"
        if isinstance(value, Table):
            yield from _assigned(value, f"{name}.")
        elif key != "type":
            yield name


def _standard_keys() -> list[str]:
    from assay.core.schema import SECTIONS

    names = [key.name for key in SECTIONS if not key.keys]
    return names + [f"{section.name}.{key.name}" for section in SECTIONS for key in section.keys]
