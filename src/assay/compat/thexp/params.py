"""Parameters of thexp, which take undeclared names from the command line with a warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from assay.config.params import Params

COUNTERS = ("eidx", "idx", "global_step")
"""Parameters that a trainer counts: the epoch from 1, its step and that of the run from 0."""


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

    def state_dict(self) -> dict[str, int]:
        """Return the counters, which a training changes and its checkpoints keep."""
        return {name: self[name] for name in COUNTERS if name in self}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Set the counters that are here."""
        for name, count in state.items():
            if name in self:
                self[name] = count


PermissiveParams.__name__ = "Params"  # the name with which it prints itself
