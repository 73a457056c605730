"""The report of a rehearsal: the whole step tried on fake tensors. Format 1, plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What went wrong or could not be tried, at the module path and the user's own source line."""

    kind: Literal["shape", "dtype", "device", "error", "unchecked"]
    message: str
    module: str = ""
    source: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Estimated peak of one rank, in bytes, and what it is made of at that moment."""

    peak_bytes: int
    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """`rung` is how it was tried: built fake, built for real and converted, or not at all."""

    format: int = FORMAT
    rung: Literal["fake", "converted", "unchecked"]
    findings: tuple[Finding, ...] = ()
    parameters: int = 0
    flops_per_step: float = 0.0
    layout: Mapping[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    seconds: float = 0.0
