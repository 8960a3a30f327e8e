"""The machine: versions and devices that a bug may depend on, and nothing that identifies its user."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from autograd import cuda

from .. import __version__
from ..machine import cpu_count
from .report import OK, Finding

PACKAGES = ("numpy", "pillow", "safetensors", "threadpoolctl", "cupy-cuda12x", "cupy-cuda13x", "cupy", "torch", "timm")
SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUPY_ACCELERATORS", "CUPY_TF32", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip


def describe(device: str) -> Finding:
    facts = {
        "minicait": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPU": f"{cpu_name()}, {cpu_count()} of {os.cpu_count()} CPUs",
        "BLAS": blas(),
        **{package: version for package in PACKAGES if (version := installed(package))},
        **nvidia_wheels(),
        **{name: os.environ[name] for name in SETTINGS if name in os.environ},
    }
    short = f"{facts['CPU']}; Python {platform.python_version()}, NumPy {np.__version__} with {facts['BLAS']}; "
    why_not = cuda.why_unusable()
    if has_cupy := why_not is None or not why_not.startswith("CuPy is not installed"):
        facts |= {name: answer(question) for name, question in CUDA.items()}
    gpus = answer(gpu_names) if has_cupy else "none"
    facts["GPU"] = gpus if why_not is None else f"{gpus}; not usable: {why_not}"
    facts["tested on"] = device
    short += gpus if why_not is None else f"no GPU: {why_not}"
    return Finding(OK, short, [f"{name + ':':22s} {value}" for name, value in facts.items()])


def answer(question: Callable[[], Any]) -> str:
    """Return the result of a call as text, or why it failed."""
    try:
        return str(question())
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or not in there
        return platform.processor() or platform.machine()


def blas() -> str:
    """Name and version of NumPy's BLAS."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    kinds = dict.fromkeys(" ".join(str(library.get(key)) for key in ("internal_api", "version", "architecture")
                                   if library.get(key)) for library in found)  # fmt: skip
    return ", ".join(kinds) or "an unknown BLAS"


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nvidia_wheels() -> dict[str, str]:
    """Versions of the CUDA libraries that pip installed."""
    found = {str(wheel.metadata["Name"]).lower(): wheel.version for wheel in metadata.distributions()}
    return {name: found[name] for name in sorted(found) if name.startswith("nvidia-")}


def version(number: int) -> str:
    """Format a version number of CUDA: 12090 is 12.9; a missing driver reports 0."""
    return "none" if number == 0 else f"{number // 1000}.{number % 1000 // 10}"


def gpu_names() -> str:
    """List the visible GPUs with their compute capability and memory."""
    runtime = cuda.module().cuda.runtime
    found = []
    for i in range(runtime.getDeviceCount()):
        p = runtime.getDeviceProperties(i)
        capability = f"compute capability {p['major']}.{p['minor']}"
        found.append(f"{p['name'].decode()}, {capability}, {p['totalGlobalMem'] / 2**30:.1f} GB")
    return "; ".join(found) or "none"


def cublas_version() -> str:
    """Return cuBLAS's own number, such as 120905."""
    library = cuda.cublas()
    if not hasattr(library, "getVersion"):
        return "unknown"
    return str(library.getVersion(cuda.cublas_handle()))


CUDA: dict[str, Callable[[], str]] = {
    "CUDA runtime": lambda: version(cuda.module().cuda.runtime.runtimeGetVersion()),
    "CUDA driver": lambda: version(cuda.module().cuda.runtime.driverGetVersion()),
    "NVRTC": lambda: "{}.{}".format(*cuda.module().cuda.nvrtc.getVersion()),
    "cuBLAS": cublas_version,
}
