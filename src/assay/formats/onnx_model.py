"""ONNX models, opened by ONNX Runtime, which is an extra without types."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.core.regular_file import refuse_irregular

_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_LOG_ERRORS = 3


def load_onnxruntime() -> Any:
    """Import ONNX Runtime; ImportError.

    Since 1.29 it reports to its maker, unless this variable is set when it is first imported.
    """
    is_set = _TELEMETRY in os.environ
    os.environ.setdefault(_TELEMETRY, "1")
    try:
        return import_module("onnxruntime")
    finally:
        if not is_set:
            del os.environ[_TELEMETRY]


def open_onnx(path: Path, **settings: str) -> Any:
    """Return a session that runs a model on the CPU; `settings` are entries of its config.

    InputError for a file that is no model which ONNX Runtime can run.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    try:
        refuse_irregular(path)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a class of C++
        raise explain_onnx_error(error, path) from error


def explain_onnx_error(error: Exception, path: Path) -> InputError:
    """Return the error for a model that ONNX Runtime cannot run."""
    first = str(error).partition("\n")[0]
    return InputError(
        f"ONNX Runtime cannot run the model: {first}",
        where=path.name,
        fix="--format torch-export has all of torch's operations and dtypes.",
    )
