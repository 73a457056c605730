"""A project of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.store.layout import Project
from run_folders import make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")
