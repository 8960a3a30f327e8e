"""The only file that imports CuPy, and only when a GPU is requested or a CuPy array appears."""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakSet

from . import modes

INSTALL_HINT = "pip install -e '.[cuda12]' (or '.[cuda13]')"

OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED")


class DeviceError(RuntimeError):
    """A GPU was requested and cannot be used."""


def module() -> Any:
    """The cupy module, imported on first use."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"CuPy is not installed: {INSTALL_HINT}") from error
    return cupy


def is_array(x: object) -> bool:
    """True if `x` is a CuPy array, which it cannot be unless cupy was imported."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


_usable: set[int | None] = set()


def why_unusable(number: int | None = None) -> str | None:
    """Return the reason why this GPU (default: the current one) cannot compute, or None if it can.

    Counting devices is not enough: a wheel without its CUDA libraries finds the GPU and then fails at the first matrix
    product, so this multiplies once. Successes are cached; failures are not, because the GPU may have been busy.
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
            return f"this machine has {count} CUDA device{'s, numbered from' if count > 1 else ', number'} 0"
        with cupy.cuda.Device(number):
            a = cupy.arange(4, dtype="float32").reshape(2, 2)
            if float((a @ a + 1).sum()) != 26:
                return "the GPU computed a wrong 2 x 2 matrix product"
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    _usable.add(number)
    return None


def _why_no_driver(runtime: Any) -> str | None:
    """Check the driver here, because CUDA reports a missing driver as an insufficient one."""
    driver, wanted = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        return "no NVIDIA driver is installed"
    if driver // 1000 >= wanted // 1000:  # within a major version, any driver works
        return None
    found, asked = (f"{version // 1000}.{version % 1000 // 10}" for version in (driver, wanted))
    return f"the NVIDIA driver is for CUDA {found} and this CuPy for {asked}: update the driver, or {INSTALL_HINT}"


def cuda_available() -> bool:
    """True if Tensors can be moved to "cuda" on this machine."""
    return why_unusable() is None


def device_id(device: str) -> int:
    """Id of a usable GPU: 1 for "cuda:1", the current one for "cuda"."""
    match = re.fullmatch("cuda(?::([0-9]+))?", device)
    if match is None:
        raise ValueError(f"unknown device {device!r}: expected 'cpu', 'cuda', or a GPU by number such as 'cuda:1'")
    number = None if match[1] is None else int(match[1])
    if (reason := why_unusable(number)) is not None:
        raise DeviceError(f"device {device!r} is not usable: {reason}")
    return int(module().cuda.runtime.getDevice()) if number is None else number


def make_current(number: int) -> None:
    """Make this GPU the current one of this thread; initially that is 0.

    CuPy allocates and launches on the current GPU, wherever the arrays are: a sum of arrays on another one fails or is
    very slow, and a copy of one silently moves. So call this before any operation on an array on a GPU.
    """
    runtime = module().cuda.runtime
    if runtime.getDevice() != number:
        runtime.setDevice(number)


def device_of(x: Any) -> str:
    return f"cuda:{x.device.id}"


def to_gpu(x: Any, device: str) -> Any:
    """Return `x` on this GPU: `x` itself if it is already there, or on any GPU if `device` is "cuda"."""
    if is_array(x) and device in ("cuda", device_of(x)):
        return x
    number = device_id(device)
    if is_array(x) and not x.flags.c_contiguous:  # CuPy cannot copy these between GPUs
        make_current(x.device.id)
        x = x.copy()
    make_current(number)
    capture = modes.current().capture
    return module().array(x) if capture is None or is_array(x) else capture.constant(x)


graph_pools: WeakSet[Any] = WeakSet()  # of CUDA graphs, beside CuPy's own: see `graph.Pool`


class Memory(NamedTuple):
    """Memory of a GPU in bytes. CuPy's pool keeps the blocks of freed arrays for new ones."""

    used: int  # by arrays
    held: int  # by pools, in use or cached
    free: int
    total: int

    @property
    def others(self) -> int:
        """Used by other processes and the driver."""
        return max(0, self.total - self.free - self.held)


def memory(device: str = "cuda") -> Memory:
    """Current memory usage of a GPU."""
    cupy, number = module(), device_id(device)
    pools = [cupy.get_default_memory_pool(), *(pool for pool in graph_pools if pool.number == number)]
    with cupy.cuda.Device(number):
        used, held = (sum(getattr(pool, name)() for pool in pools) for name in ("used_bytes", "total_bytes"))
        return Memory(used, held, *cupy.cuda.runtime.memGetInfo())


def is_out_of_memory(error: BaseException) -> bool:
    """True if a GPU ran out of memory, for an array or for the needs of CUDA and cuBLAS."""
    if isinstance(error, MemoryError):
        return isinstance(error, module().cuda.memory.OutOfMemoryError)
    return any(name in str(error) for name in OUT_OF_MEMORY)


def free_memory(error: BaseException, device: str = "cuda") -> None:
    """Free the arrays of the frames that this error left, and return the pool's cached blocks to the GPU."""
    traceback.clear_frames(error.__traceback__)  # their local variables keep arrays alive
    cupy = module()
    with cupy.cuda.Device(device_id(device)):
        cupy.get_default_memory_pool().free_all_blocks()


def compiles() -> bool:
    """True if custom kernels can be compiled. The tests' stand-in for CuPy cannot, and uses plain array functions."""
    return hasattr(module(), "ElementwiseKernel")


@cache
def cublas() -> Any:
    """CuPy's cuBLAS bindings, or None: cupy_backends is private to CuPy and may change."""
    try:
        from cupy_backends.cuda.libs import cublas as library
    except ImportError:
        return None
    wanted = "gemmEx", "gemmStridedBatchedEx", "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_32F_FAST_TF32"
    return library if all(hasattr(library, name) for name in wanted) else None


def cublas_handle() -> int:
    """cuBLAS handle of the current device."""
    return module().cuda.get_cublas_handle()


def cublas_version() -> str:
    """cuBLAS's own number, such as 120905."""
    library = cublas()
    return str(library.getVersion(cublas_handle())) if hasattr(library, "getVersion") else "unknown"


def numerics(device: str) -> dict[str, str]:
    """The GPU and the libraries that determine the last bits of its results."""
    cupy, number = module(), device_id(device)
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    return {
        "GPU": f"{properties['name'].decode()}, compute capability {properties['major']}.{properties['minor']}",
        "CuPy": cupy.__version__,
        "CUDA runtime": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cuBLAS": cublas_version(),
    }


def erf(x: Any) -> Any:
    """CuPy's erf, exact in float64."""
    from cupyx.scipy.special import erf as cupyx_erf

    return cupyx_erf(x)
