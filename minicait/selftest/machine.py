"""What this machine is: the versions and devices that a bug may depend on. Nothing that says whose it is."""

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


def look(device: str) -> Finding:
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
    if installed_cupy := why_not is None or not why_not.startswith("CuPy is not installed"):
        facts |= {name: told(ask) for name, ask in CUDA.items()}
    gpus = told(gpu_names) if installed_cupy else "none"
    facts["GPU"] = gpus if why_not is None else f"{gpus}; not usable: {why_not}"
    facts["tested on"] = device
    short += gpus if why_not is None else f"no GPU: {why_not}"
    return Finding(OK, short, [f"{name + ':':22s} {value}" for name, value in facts.items()])


def told(ask: Callable[[], Any]) -> str:
    """An answer, or why there is none."""
    try:
        return str(ask())
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a CPU that does not say
        return platform.processor() or platform.machine()


def blas() -> str:
    """That NumPy multiplies matrices with."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    kinds = dict.fromkeys(" ".join(str(library.get(key)) for key in ("internal_api", "version", "architecture")
                                   if library.get(key)) for library in found)  # fmt: skip
    return ", ".join(kinds) or "a BLAS that does not say"


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nvidia_wheels() -> dict[str, str]:
    """CUDA's libraries, where pip installed them."""
    found = {str(wheel.metadata["Name"]).lower(): wheel.version for wheel in metadata.distributions()}
    return {name: found[name] for name in sorted(found) if name.startswith("nvidia-")}


def version(number: int) -> str:
    """As CUDA counts: 12090 is 12.9, and 0 is the driver's where there is none."""
    return "none" if number == 0 else f"{number // 1000}.{number % 1000 // 10}"


def gpu_names() -> str:
    """Every GPU that is visible, with its compute capability and memory."""
    runtime = cuda.module().cuda.runtime
    found = []
    for i in range(runtime.getDeviceCount()):
        p = runtime.getDeviceProperties(i)
        capability = f"compute capability {p['major']}.{p['minor']}"
        found.append(f"{p['name'].decode()}, {capability}, {p['totalGlobalMem'] / 2**30:.1f} GB")
    return "; ".join(found) or "none"


def cublas_version() -> str:
    """The number that it gives itself, such as 120905."""
    library = cuda.cublas()
    if not hasattr(library, "getVersion"):
        return "cannot be asked"
    return str(library.getVersion(cuda.cublas_handle()))


CUDA: dict[str, Callable[[], str]] = {
    "CUDA runtime": lambda: version(cuda.module().cuda.runtime.runtimeGetVersion()),
    "CUDA of the driver": lambda: version(cuda.module().cuda.runtime.driverGetVersion()),
    "NVRTC": lambda: "{}.{}".format(*cuda.module().cuda.nvrtc.getVersion()),
    "cuBLAS": cublas_version,
}
