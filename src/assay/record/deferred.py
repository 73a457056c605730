"""Values on a device, fetched many at a time, because each fetch makes the device wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from assay.record.recordable import Report, numbers_of, whole_step

MOST = 64
OLDEST_S = 1.0


class DeferredRows:
    """Buffer of rows that logs them in order, at `MOST` rows or after `OLDEST_S` seconds."""

    def __init__(self, log: Callable[[Mapping[str, float], int], None], report: Report) -> None:
        self._log = log
        self._report = report
        self._lock = threading.RLock()
        self._rows: list[tuple[dict[str, Any], int]] = []
        self._since = 0.0

    def add(self, values: Mapping[str, Any], step: int) -> None:
        """Hold a row; report a value that is no number at once."""
        whole = whole_step(step)
        # Copies: what a tensor holds must not change until it is fetched, and its graph must go at
        # once.
        tensors = {
            name: value.detach().clone()
            for name, value in dict(values).items()
            if _is_one_number(value)
        }
        others = numbers_of(
            {name: 0.0 if name in tensors else value for name, value in dict(values).items()},
            self._report,
        )
        with self._lock:
            if not self._rows:
                self._since = time.monotonic()
            self._rows.append(({**others, **tensors}, whole))
            if len(self._rows) >= MOST:
                self.flush()

    def flush_old(self) -> None:
        with self._lock:
            # Negative: the clock of a restored machine has gone back.
            if self._rows and not 0 <= time.monotonic() - self._since < OLDEST_S:
                self.flush()

    def flush(self) -> None:
        """Fetch all, one transfer a device, and log them."""
        with self._lock:
            rows, self._rows = self._rows, []
            _fetch([row for row, _ in rows])
            for row, step in rows:
                self._log(row, step)


def _fetch(rows: list[dict[str, Any]]) -> None:
    """Put numbers in the place of tensors of one element."""
    places: dict[Any, list[tuple[dict[str, Any], str]]] = {}
    for row in rows:
        for name, value in row.items():
            if _is_tensor(value):
                places.setdefault(value.device, []).append((row, name))
    torch = sys.modules.get("torch")
    for device, found in places.items():
        double = torch.float64 if device.type != "mps" else torch.float32  # type: ignore[union-attr]
        stacked = torch.stack([row[name].reshape(()).to(double) for row, name in found])  # type: ignore[union-attr]
        for (row, name), number in zip(found, stacked.tolist(), strict=True):
            row[name] = number


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "device")


def _is_one_number(value: Any) -> bool:
    return (
        _is_tensor(value)
        and value.numel() == 1
        and not value.is_complex()
        and value.device.type != "meta"
    )
