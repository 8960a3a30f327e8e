"""The machine: versions and devices that a bug may depend on, and nothing that identifies its user."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from autograd import cuda
from autograd.backend import to_device
from autograd.kernels.gemm import gemm

from .. import __version__
from ..machine import cpu_count, why_no_gpu
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
        **packages(),
        **{name: os.environ[name] for name in SETTINGS if name in os.environ},
    }
    short = f"{facts['CPU']}; Python {platform.python_version()}, NumPy {np.__version__} with {facts['BLAS']}; "
    why_not = why_no_gpu()
    gpus = "not looked for" if why_not is None else "none"
    if "cupy" in sys.modules:
        gpus = answer(gpu_names)
        facts |= {name: answer(question) for name, question in CUDA.items()}
    if device != "cpu":
        facts["matrix products"] = answer(partial(who_multiplies, device))
        gpus += f"; matrix products {facts['matrix products']}"
    facts["GPU"] = gpus if why_not is None else f"{gpus}; not usable: {why_not}"
    facts["tested on"] = device
    short += f"GPU: {gpus}" if why_not is None else f"no GPU: {why_not}"
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
    except (OSError, StopIteration):  # not Linux, or not listed
        return platform.processor() or platform.machine()


def blas() -> str:
    """Name and version of NumPy's BLAS."""
    keys = "internal_api", "version", "architecture"
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    names = dict.fromkeys(" ".join(str(x[key]) for key in keys if x.get(key)) for x in libraries)
    return ", ".join(names) or "an unknown BLAS"


def packages() -> dict[str, str]:
    """Versions of the packages that matter, and of the CUDA libraries that pip installed."""
    versions = {str(package.metadata["Name"]).lower(): package.version for package in metadata.distributions()}
    names = [*PACKAGES, *sorted(name for name in versions if name.startswith("nvidia-"))]
    return {name: versions[name] for name in names if name in versions}


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


def who_multiplies(device: str) -> str:
    """Tell how batches of matrices are multiplied. CuPy itself would copy them first, and compute in float32."""
    a = to_device(np.ones((3, 2, 5, 8), np.float16), device)
    result = gemm(a, a.swapaxes(-1, -2), None, 1.0)
    return "by CuPy, with copies: slower" if result is None else "by cuBLAS, called directly"


CUDA: dict[str, Callable[[], str]] = {
    "CUDA runtime": lambda: version(cuda.module().cuda.runtime.runtimeGetVersion()),
    "CUDA driver": lambda: version(cuda.module().cuda.runtime.driverGetVersion()),
    "NVRTC": lambda: "{}.{}".format(*cuda.module().cuda.nvrtc.getVersion()),
    "cuBLAS": cuda.cublas_version,
}
