"""Completion of arguments in a shell: runs, jobs, names of expressions, config files and keys."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem

from assay.core.errors import AssayError

if TYPE_CHECKING:
    import click

    from assay.config.tree import Table
    from assay.query.run_row import RunRow

_MOST_RUNS = 50
_MOST_JOBS = 50
_LAST_NAME = re.compile(r"[^\s()!,=<>~&|]*$")
_ADDRESSES = {"last": "the newest run", "last-1": "the run before it"}


def complete_runs(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return addresses of runs that begin so: `last`, tags and ids, the newest first.

    Where no run begins so: the names that an expression may have there.
    """
    items = [CompletionItem(name, help=text) for name, text in _ADDRESSES.items()]
    rows = list(reversed(_rows()))[:_MOST_RUNS]
    tags = dict.fromkeys(row.tag for row in rows if row.tag and " " not in row.tag)
    items += [CompletionItem(tag, help="tag") for tag in tags]
    items += [CompletionItem(row.id, help=row.tag) for row in rows]
    return _beginning(items, incomplete) or (_expressions(incomplete) if incomplete else [])


def complete_first_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return runs for the first of the arguments, and nothing for the others."""
    is_first = not context.params.get("arguments")
    return complete_runs(context, parameter, incomplete) if is_first else []


def complete_expression(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return an expression with its last name completed: a field, metric, result or config key."""
    return _expressions(incomplete)


def complete_columns(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return a list of columns with the last one completed."""
    head, comma, _ = incomplete.rpartition(",")
    names = [f"{head}{comma}{name}" for name in _names_of_expressions()]
    return _beginning(map(CompletionItem, names), incomplete)


def complete_jobs(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the newest jobs of the queue by number; the help is state and title."""
    from assay.store.job_journal import FILE_NAME, JobJournal, queue_dir

    if not (queue_dir() / FILE_NAME).exists():  # a completion makes no queue
        return []
    with contextlib.suppress(AssayError, OSError), JobJournal() as journal:
        newest = journal.jobs(last=_MOST_JOBS)[::-1]
        items = [
            CompletionItem(str(job.id), help=f"{job.status.state} {job.spec.title}")
            for job in newest
        ]
        return _beginning(items, incomplete)
    return []


def complete_sweeps(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return ids of sweeps, the newest first; the help is the tag of their runs."""
    tags = {row.written.sweep: row.tag for row in reversed(_rows()) if row.written.sweep}
    return _beginning((CompletionItem(id, help=tag) for id, tag in tags.items()), incomplete)


def complete_variants(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the variants of the configs that are on the line already."""
    names = (name for file in _given_files(context) for name in _variants_of(file))
    return _beginning(map(CompletionItem, dict.fromkeys(names)), incomplete)


def complete_tables(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the result tables of this project."""
    from assay.store.known_projects import project_here
    from assay.store.tables import table_names

    with contextlib.suppress(AssayError, OSError):
        return _beginning(map(CompletionItem, table_names(project_here())), incomplete)
    return []


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
    return [*_keys(context, incomplete), CompletionItem(incomplete, type="file")]


def complete_run_and_keys(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return runs, and `KEY=` for the keys of a run that is on the line already."""
    if context.params.get("arguments"):
        return _keys(context, incomplete)
    return complete_runs(context, parameter, incomplete)


def complete_files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return files, which the shell itself completes."""
    return [CompletionItem(incomplete, type="file")]


def complete_run_or_config(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return runs, files, and keys once a config is named."""
    return [
        *complete_runs(context, parameter, incomplete),
        *complete_config(context, parameter, incomplete),
    ]


def _beginning(items: Iterable[CompletionItem], incomplete: str) -> list[CompletionItem]:
    return [item for item in items if item.value.startswith(incomplete)]


def _expressions(incomplete: str) -> list[CompletionItem]:
    """Return what was typed, with each name that its last word may begin."""
    found = _LAST_NAME.search(incomplete)
    assert found is not None
    head = incomplete[: found.start()]
    return _beginning(
        (CompletionItem(f"{head}{name}") for name in _names_of_expressions()), incomplete
    )


def _names_of_expressions() -> list[str]:
    from assay.query.catalog import open_catalog
    from assay.store.known_projects import project_here

    with contextlib.suppress(AssayError, OSError):
        return open_catalog(project_here()).names().all
    return []


def _words_of(context: click.Context, name: str) -> list[str]:
    """Return the words on the line for an argument."""
    given: Any = context.params.get(name) or ()
    # While an option lacks its value click gives no argument its words: they are all left over.
    return [given] if isinstance(given, str) else [*given] or [*context.args]


def _keys(context: click.Context, incomplete: str) -> list[CompletionItem]:
    keys = dict.fromkeys(key for file in _given_files(context) for key in _keys_of(file))
    return _beginning((CompletionItem(f"{key}=") for key in keys), incomplete)


def _given_files(context: click.Context) -> Iterator[str]:
    """Yield the config files that are on the line already, those of runs too."""
    from assay.query.find import find

    for each in _words_of(context, "arguments"):
        if Path(each).is_file():
            yield each
            continue
        with contextlib.suppress(AssayError, OSError):
            yield os.fspath(find(each)[0].folder.config_toml)


def _variants_of(file: str) -> Iterable[str]:
    from assay.config import load
    from assay.config.variants import variants_of

    if Path(file).suffix == ".py":
        return ()
    with contextlib.suppress(AssayError, OSError):
        return variants_of(load(file).written)[0]
    return ()


def _rows() -> list[RunRow]:
    from assay.query.catalog import open_catalog
    from assay.store.known_projects import project_here

    with contextlib.suppress(AssayError, OSError):  # a completion says nothing about mistakes
        rows = open_catalog(project_here()).all_rows()
        return [row for row in rows if row.written.kind == "train"]
    return []


def _given_runs(context: click.Context) -> list[str]:
    return _words_of(context, "runs") or _words_of(context, "run")


def _metrics_of(runs: Iterable[str]) -> list[str]:
    from assay.query.find import find_run

    names: dict[str, None] = {}
    for address in runs:
        with contextlib.suppress(AssayError, OSError):
            names |= dict.fromkeys(find_run(address).metrics)
    return list(names)


def _metrics_of_all() -> list[str]:
    return list(dict.fromkeys(name for row in _rows() for name in row.summaries))


def _keys_of(file: str) -> list[str]:
    """Return the keys that a text config assigns, and those of the standard sections."""
    from assay.config import load

    if Path(file).suffix == ".py":  # it is a program, which a completion does not run
        return []
    with contextlib.suppress(AssayError, OSError):
        return [*_assignable_keys(load(file).root, ""), *_standard_keys()]
    return []


def _assignable_keys(table: Table, prefix: str) -> Iterator[str]:
    from assay.config.tree import Table

    for key, value in table.items.items():
        name = f"{prefix}{key}"
        if isinstance(value, Table):
            yield from _assignable_keys(value, f"{name}.")
        elif key != "type":
            yield name


def _standard_keys() -> list[str]:
    from assay.core.schema import SECTIONS

    names = [key.name for key in SECTIONS if not key.keys]
    return names + [f"{section.name}.{key.name}" for section in SECTIONS for key in section.keys]
