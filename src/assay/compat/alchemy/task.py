"""Task of alchemy: a class that loads the data of one split at a time."""

from __future__ import annotations

from typing import Any

from assay.engine import Task


class AlchemyTask(Task):
    """Task whose `load_dataset(split)` sets `self._datasets[split]`, with loader arguments or not.

    `self._datasets[split] = (data, {"collate_fn": function})` sets arguments of the loader.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._datasets: dict[str, Any] = {}

    def load_dataset(self, split: str, **kwargs: Any) -> None:
        """Set `self._datasets[split]`; the class of the user writes this."""

    def dataset(self, split: str) -> Any:
        """Return what `load_dataset` has set for a split."""
        if split not in self._datasets:
            self.load_dataset(split)
        found = self._datasets.get(split)
        return super().dataset(split) if found is None else found
