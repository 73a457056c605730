"""Train the digits, test the result, and say what to try next: what `./dev demo` shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).with_name("digits.toml")


def assay(*arguments: str) -> int:
    """Run one command as a user would."""
    print(f"\n$ assay {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "assay", *arguments], check=False).returncode


def main() -> int:
    here = CONFIG.relative_to(Path.cwd()) if CONFIG.is_relative_to(Path.cwd()) else CONFIG
    for command in (["run", str(here)], ["test", "last"], ["ls", "--tests", "-n", "5"]):
        code = assay(*command)
        if code:
            return code
    print("\nTry next:")
    print("  ./dev assay show last")
    print(f"  ./dev assay run {here} optimizer.lr=0.01 train.epochs=1")
    print("  ./dev assay diff last last-1")
    print("  ./dev assay ui")
    return 0


if __name__ == "__main__":
    sys.exit(main())
