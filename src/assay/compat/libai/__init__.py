"""Names of LiBai over those of assay, and the translation of its configs."""

from __future__ import annotations

from assay.compat.libai.names import NAMES
from assay.compat.libai.translate import translated

__all__ = ["NAMES", "translated"]
