"""Where the examples lie."""

from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
DIGITS = EXAMPLES / "01_digits" / "digits.toml"
