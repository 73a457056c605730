"""Format of a golden file, version 1: digests of the first steps of a config, a few kilobytes.

JSON that belongs into version control. A line of `digests` is `STEP PHASE MODULE DIGEST`, in the
order of a step; the module is `-` for a whole phase, `order` for the indices of the samples in
`data`, and in `forward` `calls` for how random numbers are drawn and `draws` for these. The digest
of a loss or norm is the number. Files of before lack `calls`, `draws`, `average` and `inputs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from assay.core.errors import InputError, RecordError
from assay.formats.json_codec import read_json, write_json
from assay.formats.trace_file import PHASES, Phase

FORMAT = 1
MAX_BYTES = 1 << 20
WHOLE = "-"
ORDER = "order"
CALLS = "calls"
DRAWS = "draws"
_CHANGED_LINE = re.compile(rf'^[+-]\s*"\d+ (?:{"|".join(PHASES)}) \S+ [^ "]+",?$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFile:
    """Digests of steps 0 (initial weights) to `steps`, and what they were computed with.

    `algorithm` is that of the fingerprints; `environment` has versions, machine and threads;
    `inputs` has digests of what came from outside: `config` values, `variables`, `libraries` and
    `files`, by name.
    """

    format: int = FORMAT
    steps: int
    algorithm: str
    config_hash: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    digests: tuple[str, ...] = ()


class GoldenLine(NamedTuple):
    """One digest of a golden file: of a phase of a step, or of one module in it."""

    step: int
    phase: Phase
    module: str
    digest: str


def has_changed_digests(diff: str) -> bool:
    """Return whether a unified diff adds or removes digests of a golden file.

    >>> has_changed_digests('+ "1 loss - 0.25",'), has_changed_digests('+ "1 lose - 0.25",')
    (True, False)
    """
    return _CHANGED_LINE.search(diff) is not None


def parse_line(line: str) -> GoldenLine:
    """Return a line of `digests`; ValueError for another text."""
    step, phase, module, digest = line.split(" ")
    if phase not in PHASES:
        raise ValueError(f"{phase} is no phase")
    return GoldenLine(int(step), phase, module, digest)


def read_golden(path: Path) -> tuple[GoldenFile, list[GoldenLine]]:
    """Return a golden file and its parsed lines; InputError for what is none."""
    fix = f"assay prove CONFIG --write {path}"
    try:
        golden = read_json(path, GoldenFile, version=FORMAT, limit=MAX_BYTES)
        return golden, [parse_line(line) for line in golden.digests]
    except FileNotFoundError:
        raise InputError("There is no such run or file.", where=str(path), fix=fix) from None
    except (RecordError, ValueError) as error:
        raise InputError(f"It is no golden file: {error}", where=str(path), fix=fix) from error


def write_golden(path: Path, golden: GoldenFile) -> None:
    """Write a golden file; OSError where that is not possible."""
    write_json(path, golden)
