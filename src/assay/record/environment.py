"""Environment of a run: versions, machine and variables that change results. Never a secret."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.core.devices import cores

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LOCAL_RANK",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONOPTIMIZE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_LOGS",
    "WORLD_SIZE",
)
"""The environment variables that are written down; all others may hold secrets."""


def environment() -> dict[str, Any]:
    """Everything about this process and machine that a result may depend on, as plain data."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "platform": sys.platform,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "host": platform.node(),
        "cpus": cores(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "packages": packages(sys.path),
    }
    found |= gpus(Path("/proc/driver/nvidia"))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = _torch(torch)
    return found


def gpus(place: Path) -> dict[str, Any]:
    """Return names of NVIDIA GPUs and the driver version from the kernel, without waking a GPU."""
    try:
        driver = re.search(r"\s(\d+\.[\d.]+)\s", (place / "version").read_text(encoding="utf-8"))
        told = [
            path.read_text(encoding="utf-8") for path in sorted(place.glob("gpus/*/information"))
        ]
    except OSError:
        return {}
    names = [
        found[1].strip()
        for text in told
        if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))
    ]
    return {"gpus": names, **({"driver": driver[1]} if driver else {})}


def packages(path: list[str]) -> dict[str, str]:
    """Return the versions of installed distributions, from folder names: opening each is slow."""
    found: dict[str, str] = {}
    for folder in reversed(path):  # what comes first on the path is what is imported
        found.update(_packages_in(folder))
    return dict(sorted(found.items()))


def _packages_in(folder: str) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return
    for name in names:
        if name.endswith(".dist-info"):
            package, _, version = name.removesuffix(".dist-info").rpartition("-")
            if package:
                yield package.lower().replace("_", "-"), version


def _torch(torch: Any) -> Mapping[str, Any]:
    """Return the versions and flags of an imported torch, without starting a GPU."""
    found: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }
    # Asking for names starts CUDA, which a process that is to fork must not do: only when it runs
    # already.
    if torch.cuda.is_initialized():
        found["cudnn"] = torch.backends.cudnn.version()
        found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found
