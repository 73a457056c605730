"""Names of LiBai over those of assay, and the translation of its configs."""

from __future__ import annotations

from assay.config.older_systems.libai import NAMES
from assay.config.older_systems.libai_configs import translated

__all__ = ["NAMES", "translated"]
