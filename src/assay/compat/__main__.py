"""Run a script whose imports are those of older systems: `python -m assay.compat SCRIPT ...`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from assay.compat.importing import install
from assay.core.errors import AssayError


def main() -> int:
    """Run the script in argv as `__main__`; return the exit status."""
    if len(sys.argv) < 2:
        print("usage: python -m assay.compat SCRIPT [ARGUMENTS]", file=sys.stderr)
        return 2
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    install()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
