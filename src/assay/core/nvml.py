"""NVIDIA's management library, which an extra brings."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def open_nvml() -> Any:
    """Return the module `pynvml`, initialized; None where it or the driver is missing."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
