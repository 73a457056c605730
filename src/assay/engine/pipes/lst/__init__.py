"""Stages of sequences, and the way from a stream to one."""

from assay.engine.pipes.lst.sequences import (
    Cache,
    Concat,
    Filter,
    ItrToLst,
    Map,
    Part,
    SequenceWrapper,
    Stage,
    Subset,
)

__all__ = [
    "Cache",
    "Concat",
    "Filter",
    "ItrToLst",
    "Map",
    "Part",
    "SequenceWrapper",
    "Stage",
    "Subset",
]
