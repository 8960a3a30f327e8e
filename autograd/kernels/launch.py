"""Compiling and launching our CUDA kernels.

Their sources use two types: T, that of the arrays, and wide_t, that of the arithmetic (double for double, else float).

elementwise   a thread for each value, which runs a formula
launch_rows   a block for each row of a matrix, which runs a function `extern "C" __global__ void name(...)`. Its row is
              number blockIdx.x. A loop `for (int i = threadIdx.x; i < n; i += blockDim.x)` goes over it, so that
              neighbouring threads read neighbouring values; `over_block` combines the results of all threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module

THREADS = 128  # four warps of 32: rows have a few hundred values
C_TYPES = {"float16": ("__half", "float"), "float32": ("float", "float"), "float64": ("double", "double")}
_REDUCTION = """
// A butterfly reduction within each warp, in five shuffles. Then the warps exchange their results in shared memory; the
// first barrier waits for threads that still read those of the previous call.
template <class V, class Combine> __device__ V over_block(V value, Combine combine) {
    __shared__ V of_warp[32];
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) value = combine(value, of_warp[warp]);
    return value;
}

struct Sum { template <class V> __device__ V operator()(V a, V b) const { return a + b; } };
struct Max { template <class V> __device__ V operator()(V a, V b) const { return a > b ? a : b; } };
"""


def on_gpu(x: Array) -> bool:
    """True if our CUDA kernels can run on `x`."""
    return array_module(x) is not np and x.size > 0 and x.dtype.name in C_TYPES and cuda.compiles()


@cache
def elementwise(arguments: str, results: str, formula: str, name: str, dtype: str) -> Any:
    """A kernel that evaluates `formula` for each value. CuPy compiles it at its first call, with T of its arrays."""
    formula = f"typedef {C_TYPES[dtype][1]} wide_t;{formula}"
    return cuda.module().ElementwiseKernel(arguments, results, formula, name)


def launch_rows(source: str, name: str, x: Array, *arguments: Any) -> None:
    """Launch a kernel with a block for each row of `x`. It gets `arguments`, and the length of a row."""
    n = x.shape[-1]
    compiled(source, name, x.dtype.name)((x.size // n,), (THREADS,), (*arguments, np.int32(n)))


@cache
def compiled(source: str, name: str, dtype: str) -> Any:
    narrow, wide = C_TYPES[dtype]
    types = f"#include <cuda_fp16.h>\ntypedef {narrow} T;\ntypedef {wide} wide_t;\n"
    return cuda.module().RawKernel(types + _REDUCTION + source, name)
