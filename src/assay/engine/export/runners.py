"""Exported models, read back from their files and run: inputs by name to outputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.engine.export.interface import FlatModel, Interface
from assay.formats.onnx_model import explain_onnx_error, open_onnx

Runner = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Runs an exported model on a batch."""


def run_onnx(path: Path, interface: Interface) -> Runner:
    """Return what runs an ONNX model on the CPU."""
    session = open_onnx(path)
    taken = [each.name for each in session.get_inputs()]

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            given = {name: np.ascontiguousarray(inputs[name].detach().numpy()) for name in taken}
            outputs = session.run(list(interface.expected), given)
        except Exception as error:  # of C++; or a dtype such as bfloat16, which numpy lacks
            raise explain_onnx_error(error, path) from error
        return {
            name: torch.from_numpy(np.asarray(output))
            for name, output in zip(interface.expected, outputs, strict=True)
        }

    return run


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
