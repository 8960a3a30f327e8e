"""The only file that imports CuPy, and only when a GPU is asked for or an array of CuPy's turns up."""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from typing import Any, NamedTuple

import numpy as np

INSTALL_HINT = "pip install -e '.[cuda12]' (or '.[cuda13]')"

OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED")


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


_usable: set[int | None] = set()


def why_unusable(number: int | None = None) -> str | None:
    """None when this GPU, by default the current one, really computes, else the reason why not.

    Counting devices is not enough: a wheel without its CUDA libraries finds the GPU and then fails at the first
    product, so this multiplies once. What worked once need not be tried again; what failed may have been busy.
    """
    if number in _usable:
        return None
    try:
        cupy = module()
        if (reason := _why_no_driver(cupy.cuda.runtime)) is not None:
            return reason
        count = cupy.cuda.runtime.getDeviceCount()
        if not count:
            return "CuPy finds no CUDA device"
        if number is not None and number >= count:
            return f"this machine has {count} CUDA device{'s, numbered from' if count > 1 else ', which is number'} 0"
        with cupy.cuda.Device(number):
            a = cupy.arange(4, dtype="float32").reshape(2, 2)
            if float((a @ a + 1).sum()) != 26:
                return "a 2 x 2 product came out wrong on the GPU"
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    _usable.add(number)
    return None


def _why_no_driver(runtime: Any) -> str | None:
    """What CUDA itself says of a missing driver is that it is insufficient."""
    driver, wanted = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        return "there is no NVIDIA driver"
    if driver // 1000 >= wanted // 1000:  # within a major version, any driver will do
        return None
    found, asked = (f"{version // 1000}.{version % 1000 // 10}" for version in (driver, wanted))
    return f"the NVIDIA driver is for CUDA {found} and this CuPy for {asked}: update the driver, or {INSTALL_HINT}"


def cuda_available() -> bool:
    """Whether tensors can be moved to "cuda" on this machine."""
    return why_unusable() is None


def number_of(device: str) -> int:
    """Of a GPU that works: 1 for "cuda:1", and for "cuda" that of the current one."""
    match = re.fullmatch("cuda(?::([0-9]+))?", device)
    if match is None:
        raise ValueError(f"unknown device {device!r}: expected 'cpu', 'cuda', or a GPU by number such as 'cuda:1'")
    number = None if match[1] is None else int(match[1])
    if (reason := why_unusable(number)) is not None:
        raise DeviceError(f"device {device!r} is not usable: {reason}")
    return int(module().cuda.runtime.getDevice()) if number is None else number


def make_current(number: int) -> None:
    """Work on this GPU from here on, in this thread. At first, the current one is 0.

    CuPy allocates and launches on the current GPU, wherever the arrays are: a sum of arrays on another one fails, or
    crawls, and a copy of one silently moves. So this comes before anything that is done to an array on a GPU.
    """
    runtime = module().cuda.runtime
    if runtime.getDevice() != number:
        runtime.setDevice(number)


def device_of(x: Any) -> str:
    return f"cuda:{x.device.id}"


def to_gpu(x: Any, device: str) -> Any:
    """`x` on this GPU, itself if it is there already; to "cuda", an array on any GPU need not go."""
    if is_array(x) and device in ("cuda", device_of(x)):
        return x
    number = number_of(device)
    if is_array(x) and not x.flags.c_contiguous:  # which CuPy does not copy between GPUs
        make_current(x.device.id)
        x = x.copy()
    make_current(number)
    return module().array(x)


def to_host(x: Any) -> np.ndarray:
    return np.asarray(x.get())


class Memory(NamedTuple):
    """Of a GPU, in bytes. What arrays no longer use stays with CuPy's pool, for those to come."""

    used: int  # by arrays
    held: int  # by the pool: for arrays, and for those to come
    free: int
    total: int

    @property
    def others(self) -> int:
        """What neither is free nor held: other programs have it, and the driver."""
        return max(0, self.total - self.free - self.held)


def memory(device: str = "cuda") -> Memory:
    """How the memory of a GPU is shared out at the moment."""
    cupy = module()
    with cupy.cuda.Device(number_of(device)):
        pool = cupy.get_default_memory_pool()
        return Memory(pool.used_bytes(), pool.total_bytes(), *cupy.cuda.runtime.memGetInfo())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory was too small: for an array, or for what CUDA and cuBLAS need for themselves."""
    if isinstance(error, MemoryError):
        return isinstance(error, module().cuda.memory.OutOfMemoryError)
    return any(name in str(error) for name in OUT_OF_MEMORY)


def give_memory_back(error: BaseException) -> None:
    """What the work that ended with this error had on the GPU goes back to it, for other programs too."""
    traceback.clear_frames(error.__traceback__)  # whose variables are arrays
    module().get_default_memory_pool().free_all_blocks()


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
