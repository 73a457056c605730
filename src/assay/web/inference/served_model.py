"""Exported model, open in ONNX Runtime, and the place that it is read from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

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
    OutputDifference,
    sha256_of,
)
from assay.formats.json_codec import read_json
from assay.formats.onnx_model import open_onnx
from assay.query.find import best_or_latest, checkpoint_of, find

Arrays = Mapping[str, NDArray[Any]]

_MAX_JSON_BYTES = 8 << 20
_VERSION_LENGTH = 12
_QUIET = {"session.intra_op.allow_spinning": "0"}
"""Threads of ONNX Runtime that wait leave the cores to the server."""


class ModelInputError(InputError):
    """Request that the model cannot take; `where` is the field."""


class ServedModel:
    """Exported model whose files are those of its certificate, and that gives here what it says.

    `version` is the beginning of its digest. Where samples may not be run together, `why_alone`
    says why.
    """

    def __init__(self, folder: Path) -> None:
        """Open an exported folder, and run its example, whole and in two parts.

        InputError unless it is an export to ONNX that is within its tolerance, also here.
        """
        limits = {"version": FORMAT, "limit": _MAX_JSON_BYTES}
        self.schema = read_json(folder / SCHEMA, ExportSchema, **limits)
        self.certificate = read_json(folder / CERTIFICATE, ExportCertificate, **limits)
        _check_certificate(folder, self.schema, self.certificate)
        self.version = self.certificate.digest[:_VERSION_LENGTH]
        self.session = open_onnx(folder / self.schema.model, **_QUIET)
        example = load_file(folder / EXAMPLE)
        inputs = {each.name: example[f"input.{each.name}"] for each in self.schema.inputs}
        expected = {each.name: example[f"output.{each.name}"] for each in self.schema.outputs}
        if not self._is_near(self.run(inputs), expected):
            what = "The model gives other outputs here than its certificate says."
            raise InputError(what, where=str(folder), fix="export it again, on this machine")
        self.why_alone = self._why_alone(inputs, expected)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; ModelInputError for values that the model cannot take."""
        names = [each.name for each in self.schema.outputs]
        taken = {each.name: inputs[each.name] for each in self.session.get_inputs()}
        try:
            return dict(zip(names, self.session.run(names, taken), strict=True))
        except Exception as error:  # of a class of C++, such as for an index that is out of range
            first = str(error).partition("\n")[0]
            what = f"The model fails on these values: {first}"
            raise ModelInputError(what, where="inputs") from error

    def _why_alone(self, inputs: Arrays, expected: Arrays) -> str:
        """Return why samples of several requests may not be run together, "" where they may."""
        for each in [*self.schema.inputs, *self.schema.outputs]:
            if each.shape[:1] != (BATCH,):
                return f"the first axis of `{each.name}` is not that of the samples"
        half = len(next(iter(inputs.values()))) // 2
        if not half:
            return ""  # a batch of one sample says nothing
        first = self.run({name: array[:half] for name, array in inputs.items()})
        rest = self.run({name: array[half:] for name, array in inputs.items()})
        joined = {name: np.concatenate([first[name], rest[name]]) for name in expected}
        depends = "a sample's output depends on the others of its batch"
        return "" if self._is_near(joined, expected) else depends

    def _is_near(self, found: Arrays, expected: Arrays) -> bool:
        """Return whether outputs are within the tolerance of the certificate."""
        differences = (OutputDifference.between(np, found[it], expected[it]) for it in expected)
        return all(each.relative <= self.certificate.tolerance for each in differences)


class ModelSource:
    """Place of the model to serve: an exported folder, or a run, which is exported first.

    Each `read` looks again: at what lies in the folder, at what `last` or RUN@best is by then.
    """

    def __init__(self, address: str, *, trust: bool = False, tell: Callable[[str], object]) -> None:
        self.address, self._trust, self._tell = address, trust, tell
        self._is_folder = (Path(address) / CERTIFICATE).is_file()
        self._rooms = TemporaryDirectory(prefix="assay-serve-")
        self._export: subprocess.Popen[bytes] | None = None

    def read(self, *, may_ask: bool = False) -> ServedModel:
        """Return the model; `may_ask` lets the export of a foreign run ask at the terminal."""
        if self._is_folder:
            try:
                return ServedModel(Path(self.address))
            except FileNotFoundError as error:
                place = str(error.filename or self.address)
                what, fix = "The exported folder is not whole.", "assay export makes it again"
                raise InputError(what, where=place, fix=fix) from None
        try:  # what is not there is told once, and here
            run, checkpoint = find(self.address)
        except InputError:
            if not Path(self.address).is_dir():
                raise
            what = f"It is no exported model: it has no {CERTIFICATE}."
            raise InputError(
                what, where=self.address, fix="assay export RUN DIR makes one"
            ) from None
        checkpoint_of(run, checkpoint or best_or_latest(run))
        self._tell(f"exporting {self.address} to ONNX, and comparing it over its data")
        folder = Path(mkdtemp(dir=self._rooms.name)) / "model"
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
            what = f"{self.address} was not exported, and is not served."
            raise InputError(what, fix=f"assay export {self.address} says why")
        return ServedModel(folder)

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
        what = f"It is an export to {certificate.target}, and exports to ONNX are served."
        raise InputError(what, where=str(folder), fix=f"assay export {certificate.run} --to onnx")
    for each in [*schema.inputs, *schema.outputs]:
        if each.dtype not in DATATYPES:
            what = f"`{each.name}` is {each.dtype}, which the protocol does not have."
            fix = "let the model take and give float32, and convert inside of it"
            raise InputError(what, where=str(folder / SCHEMA), fix=fix)
    if not certificate.is_within:
        what = f"The model is not within its tolerance: {certificate.difference}."
        fix = "a model whose certificate says so is not served"
        raise InputError(what, where=str(folder / CERTIFICATE), fix=fix)
    files = dict(certificate.files)
    inside = [name for name in files if Path(name).name == name]
    altered = [n for n in inside if not (folder / n).is_file() or sha256_of(folder / n) != files[n]]
    if altered or len(inside) != len(files) or schema.model not in files:
        what = "The model is not the one that its certificate is about."
        place = folder / (altered or [schema.model])[0]
        raise InputError(what, where=str(place), fix="export it again")
