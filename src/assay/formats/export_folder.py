"""Formats of the folder of an exported model, version 1.

`schema.json` names its inputs and outputs, and `certificate.json` says how far it differs from the
model of the record. Beside them lie the files of the model, `example.safetensors` (one real batch:
`input.NAME`, and what the record's model gives: `output.NAME`), `config.toml`, `README.md` and
`run_model.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.formatting import number
from assay.core.regular_file import open_regular

FORMAT = 1
METRIC_HEAD = ("metric", "record", "exported")
SCHEMA, CERTIFICATE, EXAMPLE = "schema.json", "certificate.json", "example.safetensors"
BATCH = "batch"
"""Name of the axis of the samples."""

TOLERANCE = 1e-4

_BITS = (8, 16, 32, 64)
DATATYPES = {
    **{f"{kind}{bits}": f"{kind}{bits}".upper() for kind in ("int", "uint") for bits in _BITS},
    **{f"float{bits}": f"FP{bits}" for bits in _BITS[1:]},
    "bool": "BOOL",
}
"""Names of dtypes in the Open Inference Protocol, and behind TYPE_ in Triton's."""

Target = Literal["onnx", "torch-export", "safetensors"]
"""Format of an exported model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSchema:
    """One input or output. A word in the shape names an axis whose length may change."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def text(self) -> str:
        """Dtype and shape: `float32 (batch, 1, 28, 28)`."""
        return f"{self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSchema:
    """Format of `schema.json`, version 1: the inputs and outputs of an exported model, in order."""

    format: int = FORMAT
    model: str
    inputs: tuple[TensorSchema, ...]
    outputs: tuple[TensorSchema, ...]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Side, name, dtype and shape of each tensor."""
        sides = {"input": self.inputs, "output": self.outputs}
        return [(side, it.name, it.text) for side, tensors in sides.items() for it in tensors]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """Largest difference of one output between the exported model and that of the record.

    A value is within the tolerance T if it differs by at most `T * |value| + T / 10`, as in
    `torch.testing`; where all values of the output are below 1, the second term is T / 10 of the
    largest one. `beyond` is the largest difference less the first term, `largest` the largest
    value. Integers have to be equal; NaN and infinities count by their place.
    """

    absolute: float = 0.0
    beyond: float = 0.0
    largest: float = 0.0

    @classmethod
    def between(
        cls, np: Any, exported: Any, recorded: Any, tolerance: float = TOLERANCE
    ) -> OutputDifference:
        """Compare the arrays of one batch; those of different shapes are as different as can be.

        `np` is numpy, which this room does not import.
        """
        if exported.shape != recorded.shape:
            return cls(absolute=math.inf, beyond=math.inf)
        theirs, ours = exported.astype(np.float64), recorded.astype(np.float64)
        is_alike = (exported == recorded) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):  # of infinities
            difference = np.where(is_alike, 0.0, np.abs(ours - theirs))
        difference = np.where(np.isnan(difference), math.inf, difference)
        sizes = np.where(np.isfinite(ours), np.abs(ours), 0.0)
        allowed = tolerance * sizes if recorded.dtype.kind == "f" else 0.0 * sizes
        return cls(
            absolute=float(difference.max(initial=0.0)),
            beyond=float((difference - allowed).max(initial=0.0)),
            largest=float(sizes.max(initial=0.0)),
        )

    def or_larger(self, other: OutputDifference) -> OutputDifference:
        """Return the larger one of both, of each kind."""
        return OutputDifference(
            absolute=max(self.absolute, other.absolute),
            beyond=max(self.beyond, other.beyond),
            largest=max(self.largest, other.largest),
        )

    def is_within(self, tolerance: float) -> bool:
        """Return whether the output is within the tolerance that it was compared with."""
        return self.beyond <= tolerance / 10 * min(1.0, self.largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCertificate:
    """Format of `certificate.json`, version 1: an exported model beside that of the record.

    `files` are the sha256 of the files of the model. `samples` of `split` went through both.
    `batch` different samples were run together, and each gave what it gives alone; it is 1 where
    that was not shown, and `why_alone` says why. `recorded` and `exported` are the metrics of both
    models; one that cannot be computed from the outputs alone is missing in `exported`.
    """

    format: int = FORMAT
    run: str
    checkpoint: str
    weights: str
    target: Target
    files: Mapping[str, str]
    split: str
    samples: int
    is_whole: bool
    tolerance: float
    is_within: bool
    outputs: Mapping[str, OutputDifference]
    batch: int = 1
    why_alone: str = "the export did not compare a batch with its samples"
    recorded: Mapping[str, float]
    exported: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    at_ns: int = 0

    @property
    def text(self) -> str:
        """The certificate as one line."""
        return f"{self.target}, {self.difference}; {self.extent}"

    @property
    def difference(self) -> str:
        """Largest difference, beside the largest value of its output, and the tolerance."""
        worst = max(self.outputs.values(), key=lambda each: each.beyond, default=OutputDifference())
        return (
            f"largest difference {worst.absolute:.2g}, of values up to {worst.largest:.3g};"
            f" tolerance {number(self.tolerance)}"
        )

    @property
    def batching(self) -> str:
        """Samples that may run together."""
        if self.batch > 1:
            return f"up to {self.batch} samples run together: each gave what it gives alone"
        return f"one request at a time: {self.why_alone}"

    @property
    def extent(self) -> str:
        """Data that both models were compared on."""
        samples = f"{self.samples:,} samples of {self.split}"
        return f"compared on {samples}" if self.is_whole else f"compared on {samples}, not on all"

    @property
    def metric_rows(self) -> list[tuple[str, str, str]]:
        """Metrics of both models; the exported one may not give what a metric is of."""
        exported = {name: number(value) for name, value in self.exported.items()}
        return [
            (name, number(value), exported.get(name, "not an output"))
            for name, value in self.recorded.items()
        ]

    @property
    def digest(self) -> str:
        """The sha256 of the file of the model; of the first one where there are several."""
        return next(iter(self.files.values()), "")


def sha256_of(file: Path) -> str:
    """Return the digest of a file of a model, as certificates have it; OSError for no file."""
    with open(open_regular(file, follow=True), "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
