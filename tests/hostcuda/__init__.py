"""The real CuPy, on a machine without a GPU.

CuPy reaches a GPU in three ways: it calls the CUDA runtime and driver, it has NVRTC compile the kernels it generates,
and it calls libraries such as cuBLAS. `install()` replaces the ground under all three before CuPy is imported:

    hooks        CuPy's table of C functions is given our functions for those of the runtime and the driver
    devices      two of them, neither of which may touch the memory of the other
    memory       device memory is host memory: poisoned when it is fresh, and with guard pages on request
    runtime      copies, streams, events, kernel launches over that memory
    capture      CUDA graphs: what a stream captures is done when the graph is launched
    compiler     a kernel is compiled by NVRTC, so that the real compiler accepts it, and by g++ with shim.h, to be run
    gxx          g++, with a cache on disk
    blas         the products of cuBLAS, in NumPy
    stub_cublas  CuPy's real binding, on a cuBLAS that prints its arguments
    counters     how many launches, copies, synchronisations and products a piece of code takes
    unsupported  what is precompiled for a GPU (Thrust, CUB, cuRAND, cuSOLVER, cuFFT, ...) raises HostCudaError

All else, CuPy's Python and Cython and all kernel sources, CuPy's and ours, is the real thing.

    from tests import hostcuda
    hostcuda.install()                     # before anything imports cupy
    import cupy

What it cannot show: everything happens at once and in order, so a missing synchronisation between streams is invisible,
as is speed. g++ rounds every product and keeps denormal numbers where a GPU fuses products with sums and, as CuPy
compiles float32, flushes denormals to zero. TF32 products are done in float32. Keep arrays small: every thread of
every block has its turn, one after the other.

It leans on names inside CuPy that may change with any release, so it works with one version only: see VERSION.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import warnings

from . import blas, compiler, gxx, runtime, unsupported
from .counters import Count, Gemm, counting
from .memory import guarded
from .runtime import schedule
from .unsupported import HostCudaError

__all__ = ["VERSION", "Count", "Gemm", "HostCudaError", "counting", "guarded", "install", "schedule", "why_not"]

WHEEL, VERSION = "cupy-cuda13x", "14.2.0"
_installed = False


def why_not() -> str | None:
    """None if it can be installed here, else the reason why not and what to do."""
    hint = "pip install -e '.[hostcuda]'"
    found = [f"{d.name} {d.version}" for d in importlib.metadata.distributions() if (d.name or "").startswith("cupy")]
    if not found:
        return f"CuPy is not installed: {hint}"
    if found != [f"{WHEEL} {VERSION}"]:
        return f"hostcuda works with {WHEEL} {VERSION} only, and {', '.join(found)} is installed: {hint}"
    if shutil.which("g++") is None:
        return "g++ is not on the PATH"
    if gxx.cuda_include() is None:
        return f"the headers of CUDA were not found: {hint}, or set CUDA_PATH"
    from cuda import pathfinder  # CuPy finds its libraries so

    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError:
        return f"NVRTC was not found: {hint}"
    if not _installed and "cupy" in sys.modules:
        return "cupy was imported before hostcuda was installed"
    return None


def install() -> None:
    """Make `import cupy` work without a GPU, in this process and until it ends."""
    global _installed
    if _installed:
        return
    if (reason := why_not()) is not None:
        raise HostCudaError(reason)
    os.environ["CUPY_ACCELERATORS"] = ""  # CUB and cuTENSOR, which are precompiled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of a CUDA toolkit that is not there
        runtime.install()
        blas.install()
        unsupported.before_import()
        import cupy

        unsupported.after_import()
        compiler.install()
    cupy.cuda.set_allocator(None)  # no pool: every array is fresh memory, with its poison
    _installed = True
