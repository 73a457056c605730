"""Build hook that builds the page for a wheel, unless it is built already.

Without npm no page is built, and `assay ui` says how to get it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it packs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        is_built = (root / "src" / "assay" / "web" / "static" / "index.html").exists()
        npm = shutil.which("npm")
        if version == "editable" or is_built:
            return
        if npm is None:
            self.app.display_warning(
                "There is no npm: this wheel is without the page of `assay ui`."
            )
            return
        for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
            subprocess.run([npm, *arguments], cwd=root / "frontend", check=True)
