"""Copies of the examples, as training in the checkout belongs to its own project."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PLACE = Path(tempfile.mkdtemp(prefix="assay-examples-"))
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "runs", ".assay")

SRC = _ROOT / "src"
EXAMPLES = Path(shutil.copytree(_ROOT / "examples", _PLACE / "examples", ignore=_LEFT_OUT))
DIGITS = EXAMPLES / "01_digits" / "digits.toml"


def _remove(process: int) -> None:
    if os.getpid() == process:  # not as a process that was forked from it ends
        shutil.rmtree(_PLACE, ignore_errors=True)


atexit.register(_remove, os.getpid())
