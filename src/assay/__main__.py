"""`python -m assay` and the console script."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line with this process's arguments; the exit code."""
    from assay.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
