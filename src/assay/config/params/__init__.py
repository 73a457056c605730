"""Hyper-parameters as a class: `Params` with a trainer's counters, `BaseParams` without."""

from __future__ import annotations

from assay.config.params.coercion import arange, choice
from assay.config.params.params import BaseParams, Params
from assay.config.sources.classes import tree_of

__all__ = ["BaseParams", "Params", "arange", "choice", "tree_of"]
