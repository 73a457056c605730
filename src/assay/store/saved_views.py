"""Saved views of a project in `.assay/views/NAME.toml`, to be committed with it."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from assay.core.errors import InputError, RecordError, choose
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import dataclass_from, to_plain, write_atomic
from assay.store.layout import Project, refusal, shared_folder
from assay.store.tables import check_table_name

FORMAT = 1
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewColumn:
    """Column: name as in `assay ls --columns`, width in pixels, and whether it is pinned."""

    name: str
    width: int = 0
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """Saved view of the runs. `panels` is a layout that only the page understands."""

    name: str
    where: str = ""
    sort: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    columns: tuple[ViewColumn, ...] = ()
    archived: bool = False
    tests: bool = False
    smooth: float = 0.0
    x: str = ""
    panels: str = ""


def view_names(project: Project) -> list[str]:
    """Return the names of all views, in the order of the alphabet."""
    try:
        files = [
            entry.name
            for entry in os.scandir(_folder(project))
            if entry.is_file(follow_symlinks=False)
        ]
    except OSError:
        return []
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def read_view(project: Project, name: str) -> SavedView:
    """Return a view. InputError when there is none, RecordError when it is damaged."""
    path = _folder(project) / f"{check_table_name(name)}.toml"
    try:
        data = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        raise InputError(
            f"There is no view {name}.", fix=choose(name, view_names(project))
        ) from None
    except OSError as error:
        raise RecordError(
            f"The view cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"The view {name} is no TOML: {error}", where=str(path)) from error
    found.pop("format", None)
    return dataclass_from(SavedView, {**found, "name": name}, where=f"the view {name}")


def write_view(project: Project, view: SavedView) -> None:
    """Save a view in place of one of its name; InputError or RecordError when impossible."""
    path = shared_folder(project, "views") / f"{check_table_name(view.name)}.toml"
    data = {
        key: value
        for key, value in to_plain(view).items()
        if value not in ("", [], 0.0, False) and key != "name"
    }
    text = (
        "# A view of the runs, saved by the page of `assay "
        f"ui`.\n{tomli_w.dumps({'format': FORMAT, **data})}"
    )
    try:
        write_atomic(path, text.encode("utf-8", "replace"), durable=False)
    except OSError as error:
        raise refusal(error, path, "The view cannot be saved") from error


def remove_view(project: Project, name: str) -> None:
    """Delete a view. InputError when there is none."""
    read_view(project, name)
    path = _folder(project) / f"{name}.toml"
    try:
        path.unlink()
    except OSError as error:
        raise refusal(error, path, "The view cannot be removed") from error


def check_panels(text: str) -> str:
    """Return the layout of panels if it is JSON of a size that a layout has; else InputError."""
    if len(text) > MAX_BYTES // 2:
        raise InputError("The layout of the panels is larger than any layout is.")
    try:
        found: Any = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise InputError("The layout of the panels is no JSON.") from None
    if not isinstance(found, dict):
        raise InputError("The layout of the panels is no table.")
    return text


def _folder(project: Project) -> Path:
    return project.assay_dir / "views"
