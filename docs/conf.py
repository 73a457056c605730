"""How the documentation is built: Sphinx reads Markdown through MyST and dresses it in furo."""

import tomllib
from pathlib import Path

_project = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]

project = "assay"
author = "The assay authors"
copyright = "2026, The assay authors"
version = release = _project["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"assay {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
