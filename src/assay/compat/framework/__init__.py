"""Names of a text of 2021: SummaryWriter of `tensorboardX`, History and Canvas of `hiddenlayer`."""

from __future__ import annotations

from assay.config.older_systems.tables import FRAMEWORK as NAMES
from assay.config.older_systems.tables import UNIMPORTED

__all__ = ["NAMES", "UNIMPORTED"]
