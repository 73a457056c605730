"""`python -m assay` and the console script."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_HASH_SEED = "PYTHONHASHSEED"
_TRAINING = (
    *("run", "resume", "rerun", "sweep", "test"),
    *("replay", "diverge", "prove", "verify-resume"),
)


def program() -> int:
    """Run the command line in an interpreter of its own; return the exit code.

    A command that trains begins again with `PYTHONHASHSEED=0`, unless that is set: a set of strings
    in the user's code has one order then, in a resumed run, a replay and every rank too.
    """
    name = "".join(sys.argv[1:2])
    is_training = name in _TRAINING or name.startswith("_")
    reads_variables = not sys.flags.ignore_environment
    if is_training and reads_variables and _HASH_SEED not in os.environ and os.name == "posix":
        os.environ[_HASH_SEED] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return main()


def main() -> int:
    """Run the command line with this process's arguments; return the exit code."""
    from assay.cli.main import main as run

    _import_nothing_from_records()
    return run()


def _import_nothing_from_records() -> None:
    """Keep Python from importing what lies in the working directory, if that is among records.

    `python -m` puts that folder first, here and in all processes that are started from here.
    """
    from assay.formats.project import records_around

    with contextlib.suppress(OSError):  # a working directory that is gone holds no module
        here = os.getcwd()
        if records_around(Path(here)) is not None:
            os.environ["PYTHONSAFEPATH"] = "1"
            sys.path[:] = [path for path in sys.path if path not in ("", here)]


if __name__ == "__main__":
    sys.exit(program())
