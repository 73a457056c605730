"""Parameters of thexp, which take undeclared names from the command line with a warning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from assay.config.params import Params


class PermissiveParams(Params):
    """Parameters that print as thexp's `Params` and take any name that is given to them."""

    def from_args(
        self,
        argv: Sequence[str] | None = None,
        *,
        unknown: Literal["error", "warn", "allow"] = "warn",
    ) -> Self:
        """Change values from the command line; a new name is declared, with a warning."""
        return super().from_args(argv, unknown=unknown)


PermissiveParams.__name__ = "Params"  # the name with which it prints itself
