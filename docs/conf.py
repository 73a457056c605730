"""Settings of the documentation: Markdown by MyST, docstrings by autodoc, the theme furo."""

import tomllib
from importlib.metadata import version as version_of
from pathlib import Path

_project = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]

project = "assay"
author = "The assay authors"
copyright = "2026, The assay authors"
version = release = _project["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures; links between pages stay checked

# The API pages are built from docstrings, in which `name` stands for code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

copybutton_exclude = ".linenos, .gp, .go"  # prompts and output stay behind

html_theme = "furo"
html_title = f"assay {release}"
html_copy_source = False
# The tests of the pages run in the environment that builds them.
html_context = {
    "versions": f"assay {release}. The output on these pages is checked with PyTorch"
    f" {version_of('torch').partition('+')[0]} on the CPU."
}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["wide.css"]
