"""Named states of the random generators, so that one part of a program draws alike in every run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.core.errors import InputError, choose
from assay.engine import Saver, get_state, seed_all, set_state


class RndManager:
    """Keeps states of the generators of `random`, numpy and torch in a folder, by name.

    >>> rnd = RndManager("rnd")  # doctest: +SKIP
    >>> rnd.mark("split")  # from here on as in the run that marked it first  # doctest: +SKIP
    >>> train, valid = random_split(data, [0.9, 0.1])  # doctest: +SKIP
    >>> rnd.shuffle()            # from here on: as nobody can know  # doctest: +SKIP
    """

    def __init__(self, folder: Path | str = "rnd") -> None:
        self._saver = Saver(folder)

    def mark(self, name: str, *, again: bool = False) -> bool:
        """Set the generators to the state first marked under `name`; return True if there was one.

        `again` makes this one the first. CheckpointError when the state that was kept cannot be
        read.
        """
        if not again and name in self.names():
            self.load(name)
            return True
        self.save(name)
        return False

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """`mark` for a block; what comes after it draws as if the block had not been."""
        outside = get_state()
        self.mark(name)
        try:
            yield
        finally:
            set_state(outside)

    def shuffle(self, seed: int | None = None) -> dict[str, int]:
        """Draw from here on from `seed`, or as nobody can know; what each generator was given."""
        return seed_all(int.from_bytes(os.urandom(8), "little") if seed is None else seed)

    def save(self, name: str) -> None:
        """Keep where the generators are, in place of what was kept under this name."""
        self._saver.save_model(0, get_state(), name=name, overwrite=True)

    def load(self, name: str) -> None:
        """Set the generators to the state kept under `name`; InputError lists the names."""
        set_state(self.read(name))

    def read(self, name: str) -> dict[str, Any]:
        """Return the state kept under a name, as `get_state` gave it."""
        names = self.names()
        if name not in names:
            fix = choose(name, names)
            raise InputError(f"No state of the generators is kept under {name!r}.", fix=fix)
        state: dict[str, Any] = self._saver.load(name)
        return state

    def names(self) -> list[str]:
        """Return the names of the kept states, sorted."""
        return sorted(each.name for each in self._saver.find_models())
