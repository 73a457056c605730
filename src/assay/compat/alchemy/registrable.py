"""Base class of what alchemy registers under short names."""

from __future__ import annotations

from collections.abc import Callable

from assay.build import register


class Registrable:
    """Base class whose `register(name)` makes a class a `type` of configs under a short name."""

    @staticmethod
    def register(name: str = "") -> Callable[[type], type]:
        """Register a class under a short name, its own without one."""
        if name:
            return register(name)

        def register_as_called(kind: type) -> type:
            registered: type = register(kind.__name__)(kind)
            return registered

        return register_as_called
