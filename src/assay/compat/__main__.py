"""Scripts and commands of older systems.

`python -m assay.compat [--resume auto|RUN] SCRIPT ...` runs a script whose imports are theirs.
Names that it, or a module in its folder, uses without importing them are supplied. `python -m
assay.compat thexp config -l` is a command of thexp.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.compat.names import install
from assay.compat.pasted import PastedModules, imported_texts, supply_with_note
from assay.core.errors import AssayError, InputError
from assay.script import RESUME_VARIABLE

USAGE = """\
usage: python -m assay.compat [--resume auto|RUN] SCRIPT [ARGUMENTS]
       python -m assay.compat thexp init | config ..."""


def main() -> int:
    """Run the script or the command in argv; return the exit status."""
    given = sys.argv[1:]
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    try:
        if given[0] == "thexp":
            from assay.compat.thexp.commands import run_command

            return run_command(given[1:])
        _run_script(given)
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run_script(given: Sequence[str]) -> None:
    """Run a script as `__main__`; `--resume` before it is for the run that it begins."""
    if given[0] == "--resume" and len(given) > 2:
        os.environ[RESUME_VARIABLE], given = given[1], given[2:]
    script = given[0]
    text = _read(Path(script))
    sys.argv[:] = given
    folder = Path(script).resolve().parent
    sys.path.insert(0, str(folder))
    from assay.compat.framework.script_inputs import record_training, watch_script

    install()
    sys.meta_path.insert(0, PastedModules(folder))
    texts = [text, *imported_texts(text, folder)]
    trains = any(".step(" in each or "torch.save(" in each for each in texts)
    recorded = record_training(Path(script).stem) if trains else nullcontext()
    with _devices(texts), watch_script(), recorded:
        runpy.run_path(script, init_globals=supply_with_note(text, script), run_name="__main__")


def _read(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InputError(
            f"The script cannot be read: {reason}.", where=str(script), fix=USAGE
        ) from None


def _devices(texts: Sequence[str]) -> AbstractContextManager[Any]:
    """Return the context for a program that says `.cuda()`, which needs torch, or one for others.

    The program is the script and the modules of its folder that it imports.
    """
    if not any(".cuda(" in each for each in texts):
        return nullcontext()
    context: AbstractContextManager[Any] = import_module("assay.compat.parts.devices").cuda_calls()
    return context


if __name__ == "__main__":
    sys.exit(main())
