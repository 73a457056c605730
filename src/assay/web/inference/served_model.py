"""Exported model, open in ONNX Runtime, and the folder that it is read from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from assay.core.errors import InputError
from assay.core.regular_file import read_bytes
from assay.formats.export_folder import (
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
from assay.web.inference.protocol import Arrays, ModelInputError

_MAX_JSON_BYTES, _MAX_EXAMPLE_BYTES = 8 << 20, 1 << 30
_VERSION_LENGTH = 12
_QUIET = {"session.intra_op.allow_spinning": "0"}
"""Threads of ONNX Runtime that wait leave the cores to the server."""


class ServedModel:
    """Exported model whose files are those of its certificate, and that gives here what it says.

    `version` is the beginning of its digest.
    """

    def __init__(self, folder: Path) -> None:
        """Open an exported folder, and run its example.

        InputError unless it is an export to ONNX that is within its tolerance, also here.
        """
        limits = {"version": FORMAT, "limit": _MAX_JSON_BYTES}
        self.schema = read_json(folder / SCHEMA, ExportSchema, **limits)
        self.certificate = read_json(folder / CERTIFICATE, ExportCertificate, **limits)
        _check_certificate(folder, self.schema, self.certificate)
        self.version = self.certificate.digest[:_VERSION_LENGTH]
        self.session = open_onnx(folder / self.schema.model, **_QUIET)
        self._taken = [each.name for each in self.session.get_inputs()]
        tolerance = self.certificate.tolerance
        fix = "export it again"
        try:
            example = load(read_bytes(folder / EXAMPLE, _MAX_EXAMPLE_BYTES))
            inputs = {each.name: example[f"input.{each.name}"] for each in self.schema.inputs}
            found = self.run(inputs)
            differences = [
                OutputDifference.between(np, array, example[f"output.{name}"], tolerance)
                for name, array in found.items()
            ]
        except (OSError, SafetensorError, KeyError, ModelInputError) as error:
            what = f"The example of the export cannot be run: {error}"
            raise InputError(what, where=str(folder / EXAMPLE), fix=fix) from None
        if not all(each.is_within(tolerance) for each in differences):
            what = "The model gives other outputs here than its certificate says."
            raise InputError(what, where=str(folder), fix=f"{fix}, on this machine")

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; ModelInputError for values that the model cannot take."""
        names = [each.name for each in self.schema.outputs]
        try:
            taken = {name: inputs[name] for name in self._taken}
            return dict(zip(names, self.session.run(names, taken), strict=True))
        except Exception as error:  # of a class of C++, such as for an index that is out of range
            first = str(error).partition("\n")[0]
            what = f"The model fails on these values: {first}"
            raise ModelInputError(what, where="inputs") from error


@contextmanager
def open_folder(address: str, *, trust: bool, tell: Callable[[str], object]) -> Iterator[Path]:
    """Give the folder of an exported model; a run is exported first, and its folder removed."""
    if (Path(address) / CERTIFICATE).is_file():
        yield Path(address)
        return
    try:  # what is not there is told once, and here
        run, checkpoint = find(address)
    except InputError:
        if not Path(address).is_dir():
            raise
        what, fix = f"It is no exported model: it has no {CERTIFICATE}.", "assay export RUN DIR"
        raise InputError(what, where=address, fix=f"{fix} makes one") from None
    checkpoint_of(run, checkpoint or best_or_latest(run))
    tell(f"exporting {address} to ONNX, and comparing it over its data")
    with TemporaryDirectory(prefix="assay-serve-") as scratch:
        folder = Path(scratch) / run.id
        # An OS process: torch and the code of the run stay out of the server.
        words = ["export", *(["--trust"] if trust else []), "--", address, str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", "assay", *words], stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            what = f"{address} was not exported, and is not served."
            raise InputError(what, fix=f"assay export {address} says why")
        yield folder


def _check_certificate(folder: Path, schema: ExportSchema, certificate: ExportCertificate) -> None:
    """Raise InputError unless the folder holds an ONNX model that its certificate vouches for."""
    if certificate.target != "onnx":
        what = f"It is an export to {certificate.target}, and exports to ONNX are served."
        raise InputError(
            what, where=str(folder), fix=f"assay export {certificate.run} --format onnx"
        )
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
