"""Names of LiBai over those of assay, and the translation of its configs."""

from __future__ import annotations

from assay.config.older_systems.libai_configs import translate_libai
from assay.config.older_systems.tables import LIBAI as NAMES

__all__ = ["NAMES", "translate_libai"]
