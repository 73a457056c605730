"""Names of a text of 2021: SummaryWriter of `tensorboardX`, History and Canvas of `hiddenlayer`."""

from __future__ import annotations

from assay.compat.tables import FRAMEWORK as NAMES
from assay.compat.tables import UNIMPORTED

__all__ = ["NAMES", "UNIMPORTED"]
