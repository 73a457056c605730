"""What makes a folder a project: `.assay/` in it."""

from __future__ import annotations

from pathlib import Path

ASSAY_DIR = ".assay"
SETTINGS_NAME = "settings.toml"
FOLDER_MODES = {"private": 0o700, "group": 0o770}
"""The permissions of run folders and of kept code, by what the setting `permissions` says."""


def project_root(start: Path) -> Path | None:
    """The nearest folder with `.assay/`, at `start` or above it."""
    start = start.absolute()
    return next((folder for folder in (start, *start.parents) if (folder / ASSAY_DIR).is_dir()), None)


def settings_file(root: Path) -> Path:
    """The settings of the project `root`; people commit this file."""
    return root / ASSAY_DIR / SETTINGS_NAME
