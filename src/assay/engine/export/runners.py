"""Exported models, read back from their files and run: inputs by name to outputs by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.export.interface import FlatModel, Interface

_TELEMETRY = "ORT_DISABLE_TELEMETRY"

Runner = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Runs an exported model on a batch."""


def load_onnxruntime() -> Any:
    """Import ONNX Runtime, which is an extra without types; ImportError.

    Since 1.29 it reports to its maker, unless this variable is set when it is first imported.
    """
    is_set = _TELEMETRY in os.environ
    os.environ.setdefault(_TELEMETRY, "1")
    try:
        return import_module("onnxruntime")
    finally:
        if not is_set:
            del os.environ[_TELEMETRY]


def run_onnx(path: Path, interface: Interface) -> Runner:
    """Return what runs an ONNX model on the CPU."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a class of C++: the file is no model that it can run
        raise _explain(error, path) from error
    taken = [each.name for each in session.get_inputs()]

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            given = {name: np.ascontiguousarray(inputs[name].detach().numpy()) for name in taken}
            outputs = session.run(list(interface.expected), given)
        except Exception as error:  # of C++; or a dtype such as bfloat16, which numpy lacks
            raise _explain(error, path) from error
        return {
            name: torch.from_numpy(np.asarray(output))
            for name, output in zip(interface.expected, outputs, strict=True)
        }

    return run


def _explain(error: Exception, path: Path) -> InputError:
    first = str(error).partition("\n")[0]
    return InputError(
        f"ONNX Runtime cannot run the model: {first}",
        where=path.name,
        fix="--to torch-export has all of torch's operations and dtypes.",
    )


def run_program(path: Path, interface: Interface) -> Runner:
    """Return what runs a graph of torch."""
    return _runner(torch.export.load(path).module(), interface)


def run_weights(path: Path, fresh: nn.Module, interface: Interface) -> Runner:
    """Return what runs a newly built model with the weights of a file."""
    from safetensors.torch import load_file

    fresh.load_state_dict(load_file(path))
    return _runner(FlatModel(fresh, interface).eval(), interface)


def _runner(model: Callable[..., Any], interface: Interface) -> Runner:
    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(model(*(inputs[name] for name in interface.example)))

    return run
