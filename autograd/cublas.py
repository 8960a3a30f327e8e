"""cuBLAS by ctypes, for matrix products inside a CUDA graph.

CuPy's bindings set the stream before every call, and refuse to while it is captured. A handle of our own has its
stream, and memory to work in, before the capture starts; a product then only adds work to the stream.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from . import cuda

WORKSPACE = 32 << 20  # bytes: what NVIDIA recommends for its largest GPUs, https://docs.nvidia.com/cuda/cublas
SUCCESS = 0
_int, _long, _pointer = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIZES = (_pointer, _int, _int, _int, _int, _int, _pointer)  # handle, two transpositions, m, n, k, alpha


def _gemm_arguments(*step: Any) -> list[Any]:
    """Argument types of a product, or with `step` of a batch whose matrices are a stride apart."""
    matrix, count = (_pointer, _int, _int, *step), (_int,) * len(step)
    return [*_SIZES, *matrix, *matrix, _pointer, *matrix, *count, _int, _int]


SIGNATURES: dict[str, list[Any]] = {
    "cublasCreate_v2": [_pointer],
    "cublasSetStream_v2": [_pointer, _pointer],
    "cublasSetWorkspace_v2": [_pointer, _pointer, ctypes.c_size_t],
    "cublasGemmEx": _gemm_arguments(),
    "cublasGemmStridedBatchedEx": _gemm_arguments(_long),
}


def load() -> Any:
    """libcublas, which CuPy has loaded before."""
    cuda.cublas_handle()
    major = cuda.module().cuda.runtime.runtimeGetVersion() // 1000
    library = ctypes.CDLL(f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}")
    for name, arguments in SIGNATURES.items():
        getattr(library, name).argtypes = arguments
    return library


class StreamBlas:
    """The functions and constants of CuPy's bindings that `kernels.gemm` needs, on a stream of its own."""

    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT = 68, 70, 77, -1

    def __init__(self) -> None:
        self._library, self.handle = load(), _pointer()
        self._call("cublasCreate_v2", ctypes.byref(self.handle))
        self.stream = cuda.module().cuda.Stream(non_blocking=True)  # what others do need not wait for a capture
        self._workspace = cuda.module().empty(WORKSPACE, "uint8")
        self._call("cublasSetStream_v2", self.handle, self.stream.ptr)  # which takes a workspace away
        self._call("cublasSetWorkspace_v2", self.handle, self._workspace.data.ptr, WORKSPACE)

    def gemmEx(self, *arguments: Any) -> None:  # noqa: N802  (CuPy's names)
        self._call("cublasGemmEx", *arguments)

    def gemmStridedBatchedEx(self, *arguments: Any) -> None:  # noqa: N802
        self._call("cublasGemmStridedBatchedEx", *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        if (status := getattr(self._library, name)(*arguments)) != SUCCESS:
            raise RuntimeError(f"cuBLAS: {name} failed with status {status}")


@cache
def stream_blas(device: int) -> StreamBlas:
    """The StreamBlas of a GPU. Graphs that are launched one after the other can share its stream and its workspace."""
    cuda.make_current(device)
    return StreamBlas()
