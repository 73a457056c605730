"""Standard sections of a config tree as one typed object."""

from __future__ import annotations

from assay.config.tree import Table, plain
from assay.core.keys import read_section
from assay.core.sections import StandardSections


def sections_of(root: Table) -> StandardSections:
    """Return the standard sections of a config that has passed the check."""
    return read_section(StandardSections, plain(root))
