"""Names of LiBai over those of assay, and the translation of its configs."""

from __future__ import annotations

from assay.compat.libai.translate import translate_libai
from assay.compat.tables import LIBAI as NAMES

__all__ = ["NAMES", "translate_libai"]
