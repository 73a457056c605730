"""Which operation made a gradient that is not a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def anomalies_named() -> Iterator[None]:
    """While inside, backward raises at the first nan, naming the op, and shows the line of forward that called it."""
    with torch.autograd.set_detect_anomaly(True):
        yield
