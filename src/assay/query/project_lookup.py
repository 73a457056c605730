"""Lookup of projects: the one around a folder, and all of this user."""

from __future__ import annotations

from pathlib import Path

from assay.core.errors import InputError
from assay.store.known_projects import known_projects, lost_roots
from assay.store.layout import Project, find_project


def project_here(start: Path | None = None) -> Project:
    """Return the project around `start` (the working directory); InputError for none."""
    folder = start or Path.cwd()
    project = find_project(folder)
    if project is None:
        raise InputError(
            "There is no project here: no folder `.assay` in this folder or above it.",
            where=str(folder),
            fix="`assay init` makes this folder one; so does the first `assay run`",
        )
    return project


def projects_here(start: Path | None = None) -> list[Project]:
    """The project around `start` (the working directory), alone; none when there is none."""
    project = find_project(start or Path.cwd())
    return [project] if project is not None else []


def all_projects(start: Path | None = None) -> list[Project]:
    """The project around `start`, if there is one, then all others that this user has."""
    roots = dict.fromkeys([*(home.root for home in projects_here(start)), *known_projects()])
    return [Project(root) for root in roots]


def lost_projects() -> list[Project]:
    """Projects that this user had and whose folder is not there any more."""
    return [Project(root) for root in lost_roots()]
