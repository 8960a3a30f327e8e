"""The only file that imports CuPy, and only when a GPU is asked for or an array of CuPy's turns up."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

INSTALL_HINT = "pip install -e '.[cuda12]' (or '.[cuda13]')"


class DeviceError(RuntimeError):
    """A GPU was asked for and cannot be used."""


def module() -> Any:
    """The cupy module, imported on first use."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"CuPy is not installed: {INSTALL_HINT}") from error
    return cupy


def is_array(x: object) -> bool:
    """Whether `x` is a CuPy array. Where nobody imported cupy, nothing can be one."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


@cache
def why_unusable() -> str | None:
    """None when the GPU really computes, else the reason why not.

    Counting devices is not enough: a wheel without its CUDA libraries finds the GPU and then fails at the first
    product, so this multiplies once.
    """
    try:
        cupy = module()
        if not cupy.cuda.is_available():
            return "CuPy finds no CUDA device"
        a = cupy.arange(4, dtype="float32").reshape(2, 2)
        if float((a @ a + 1).sum()) != 26:
            return "a 2 x 2 product came out wrong on the GPU"
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None


def cuda_available() -> bool:
    """Whether tensors can be moved to "cuda" on this machine."""
    return why_unusable() is None


def device_of(x: Any) -> str:
    return f"cuda:{x.device.id}"


def to_gpu(x: Any, device: str) -> Any:
    name, _, index = device.partition(":")
    if name != "cuda" or (":" in device and not index.isdigit()):
        raise ValueError(f"unknown device {device!r}: expected 'cpu', 'cuda', or a GPU by number such as 'cuda:1'")
    if (reason := why_unusable()) is not None:
        raise DeviceError(f"device {device!r} is not usable: {reason}")
    cupy = module()
    if is_array(x) and (not index or x.device.id == int(index)):
        return x
    if index and int(index) >= (count := cupy.cuda.runtime.getDeviceCount()):
        raise DeviceError(f"device {device!r} is not usable: this machine has {count} CUDA device(s)")
    with cupy.cuda.Device(int(index or 0)):
        return cupy.array(x)


def to_host(x: Any) -> np.ndarray:
    return np.asarray(x.get())


def compiles() -> bool:
    """Whether the module compiles kernels of ours. The tests' stand-in for CuPy does not, and takes the plain way."""
    return hasattr(module(), "ElementwiseKernel")


@cache
def elementwise(arguments: str, results: str, formula: str, name: str) -> Any:
    """A CUDA kernel that does `formula`, in CUDA C++, for every value of its arguments, all in one launch.

    It is compiled when it is first called, for the GPU and the dtypes that it is called with; T stands for one of them.
    """
    return module().ElementwiseKernel(arguments, results, formula, name)


@cache
def cublas() -> Any:
    """The library that multiplies matrices, or None where it cannot be reached: cupy_backends is CuPy's own affair."""
    try:
        from cupy_backends.cuda.libs import cublas as library
    except ImportError:
        return None
    wanted = "gemmEx", "gemmStridedBatchedEx", "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_32F_FAST_TF32"
    return library if all(hasattr(library, name) for name in wanted) else None


def cublas_handle() -> int:
    """Of the current device."""
    return module().cuda.get_cublas_handle()


def erf(x: Any) -> Any:
    """CuPy's own, exact in float64."""
    from cupyx.scipy.special import erf as cupyx_erf

    return cupyx_erf(x)
