"""Exported model, open in ONNX Runtime, and the place that it is read from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import InputError
from assay.formats.export_folder import (
    BATCH,
    CERTIFICATE,
    DATATYPES,
    EXAMPLE,
    FORMAT,
    SCHEMA,
    ExportCertificate,
    ExportSchema,
    sha256_of,
)
from assay.formats.json_codec import read_json
from assay.formats.onnx_model import open_onnx
from assay.query.find import find

Arrays = Mapping[str, NDArray[Any]]

_MAX_JSON_BYTES = 8 << 20
_VERSION_LENGTH = 12
_QUIET = {"session.intra_op.allow_spinning": "0"}
"""Threads of ONNX Runtime that wait leave the cores to the server."""


class ModelInputError(InputError):
    """Request that the model cannot take; `where` is the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Exported model whose files are those of its certificate, and that gives here what it says.

    `version` is the beginning of its digest. Where samples may not be run together, `why_alone`
    says why.
    """

    version: str
    schema: ExportSchema
    certificate: ExportCertificate
    session: Any
    why_alone: str = ""

    @classmethod
    def open(cls, folder: Path) -> ServedModel:
        """Open an exported folder, and run its example, whole and in two parts.

        InputError unless it is an export to ONNX that is within its tolerance, also here.
        """
        schema = read_json(folder / SCHEMA, ExportSchema, version=FORMAT, limit=_MAX_JSON_BYTES)
        certificate = read_json(
            folder / CERTIFICATE, ExportCertificate, version=FORMAT, limit=_MAX_JSON_BYTES
        )
        _check_certificate(folder, schema, certificate)
        model = cls(
            version=certificate.digest[:_VERSION_LENGTH],
            schema=schema,
            certificate=certificate,
            session=open_onnx(folder / schema.model, **_QUIET),
        )
        return model._warm_up(folder)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; ModelInputError for values that the model cannot take."""
        names = [each.name for each in self.schema.outputs]
        taken = {each.name: inputs[each.name] for each in self.session.get_inputs()}
        try:
            return dict(zip(names, self.session.run(names, taken), strict=True))
        except Exception as error:  # of a class of C++, such as for an index that is out of range
            first = str(error).partition("\n")[0]
            raise ModelInputError(
                f"The model fails on these values: {first}", where="inputs"
            ) from error

    def _warm_up(self, folder: Path) -> ServedModel:
        from safetensors.numpy import load_file

        example = load_file(folder / EXAMPLE)
        inputs = {each.name: example[f"input.{each.name}"] for each in self.schema.inputs}
        expected = {each.name: example[f"output.{each.name}"] for each in self.schema.outputs}
        if not self._is_near(self.run(inputs), expected):
            raise InputError(
                "The model gives other outputs here than its certificate says.",
                where=str(folder),
                fix="export it again, on this machine",
            )
        return replace(self, why_alone=self._why_alone(inputs, expected))

    def _why_alone(self, inputs: Arrays, expected: Arrays) -> str:
        """Return why samples of several requests may not be run together, "" where they may."""
        for each in [*self.schema.inputs, *self.schema.outputs]:
            if each.shape[:1] != (BATCH,):
                return f"the first axis of `{each.name}` is not that of the samples"
        half = len(next(iter(inputs.values()))) // 2
        if not half:
            return ""  # a batch of one sample says nothing
        parts = [
            self.run({name: array[part] for name, array in inputs.items()})
            for part in (slice(half), slice(half, None))
        ]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in expected}
        is_alike = self._is_near(joined, expected)
        return "" if is_alike else "a sample's output depends on the others of its batch"

    def _is_near(self, found: Arrays, expected: Arrays) -> bool:
        """Return whether outputs are within the tolerance, counted as certificates count it."""
        for name, ours in expected.items():
            if found[name].shape != ours.shape:
                return False
            sizes = np.abs(ours[np.isfinite(ours) & (ours != 0)].astype(np.float64))
            usual = float(np.median(sizes)) if sizes.size else 1.0
            tolerance = self.certificate.tolerance
            if not np.allclose(
                found[name], ours, rtol=tolerance, atol=tolerance * usual, equal_nan=True
            ):
                return False
        return True


class ModelSource:
    """Place of the model to serve: an exported folder, or a run, which is exported first.

    Each `read` looks again: at what lies in the folder, at what `last` or RUN@best is by then.
    """

    def __init__(self, address: str, *, trust: bool = False, tell: Callable[[str], object]) -> None:
        self.address, self._trust, self._tell = address, trust, tell
        self._is_folder = (Path(address) / CERTIFICATE).is_file()
        self._rooms = TemporaryDirectory(prefix="assay-serve-")
        self._export: subprocess.Popen[bytes] | None = None
        self._reads = 0

    def read(self, *, may_ask: bool = False) -> ServedModel:
        """Return the model; `may_ask` lets the export of a foreign run ask at the terminal."""
        if self._is_folder:
            try:
                return ServedModel.open(Path(self.address))
            except FileNotFoundError as error:
                raise InputError(
                    "The exported folder is not whole.",
                    where=str(error.filename or self.address),
                    fix="assay export makes it again",
                ) from None
        find(self.address)  # no run of that name is told once, and here
        self._tell(f"exporting {self.address} to ONNX, and comparing it over its data")
        self._reads += 1
        folder = Path(self._rooms.name) / str(self._reads)
        trust = ["--trust"] if self._trust else []
        # An OS process: torch and the code of the run stay out of the server.
        words = [sys.executable, "-m", "assay", "export", *trust, "--", self.address, str(folder)]
        with subprocess.Popen(
            words, stdin=None if may_ask else subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as self._export:
            try:
                code = self._export.wait()
            except BaseException:  # raised again: a signal ends the export, too
                self._export.terminate()
                raise
        if code:
            raise InputError(
                f"{self.address} was not exported, and is not served.",
                fix=f"assay export {self.address} says why",
            )
        return ServedModel.open(folder)

    def name_of(self, model: ServedModel) -> str:
        """Return the name that the model has on the server unless one was given."""
        return Path(self.address).resolve().name if self._is_folder else model.certificate.run

    def close(self) -> None:
        """End an export that runs, and remove what was exported."""
        if self._export is not None:
            self._export.terminate()
        self._rooms.cleanup()


def _check_certificate(folder: Path, schema: ExportSchema, certificate: ExportCertificate) -> None:
    """Raise InputError unless the folder holds an ONNX model that its certificate vouches for."""
    if certificate.target != "onnx":
        raise InputError(
            f"It is an export to {certificate.target}, and exports to ONNX are served.",
            where=str(folder),
            fix=f"assay export {certificate.run} --to onnx",
        )
    for each in [*schema.inputs, *schema.outputs]:
        if each.dtype not in DATATYPES:
            raise InputError(
                f"`{each.name}` is {each.dtype}, which the protocol does not have.",
                where=str(folder / SCHEMA),
                fix="let the model take and give float32, and convert inside of it",
            )
    if not certificate.is_within:
        raise InputError(
            f"The model is not within its tolerance: {certificate.difference}.",
            where=str(folder / CERTIFICATE),
            fix="a model whose certificate says so is not served",
        )
    files = dict(certificate.files)
    inside = [name for name in files if Path(name).name == name]
    altered = [n for n in inside if not (folder / n).is_file() or sha256_of(folder / n) != files[n]]
    if altered or len(inside) != len(files) or schema.model not in files:
        raise InputError(
            "The model is not the one that its certificate is about.",
            where=str(folder / (altered or [schema.model])[0]),
            fix="export it again",
        )
