"""CUDA kernels over the rows of a matrix: a block of threads for each row, which they add up together.

A kernel is the source of a function `extern "C" __global__ void name(...)`. It finds its row by blockIdx.x, and goes
over it by `for (int i = threadIdx.x; i < n; i += blockDim.x)`, so that neighbouring threads read neighbouring values.
T is the type of the arrays; wide_t is what is computed in: double for double, else float. On the CPU, NumPy does the
same in a few passes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module

THREADS = 128  # four warps of 32: rows have some hundred values
C_TYPES = {"float16": ("__half", "float"), "float32": ("float", "float"), "float64": ("double", "double")}
_TYPEDEFS = """
#include <cuda_fp16.h>
typedef %s T;
typedef %s wide_t;
"""
_TOGETHER = """
// The threads of a warp hand their values to each other, in five steps of half the distance each. Then the warps leave
// theirs in memory that the block shares. The first barrier waits for those who still read it from the last time.
template <class Combine> __device__ wide_t over_block(wide_t value, Combine combine) {
    __shared__ wide_t of_warp[32];
    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) value = combine(value, of_warp[warp]);
    return value;
}

struct Sum { __device__ wide_t operator()(wide_t a, wide_t b) const { return a + b; } };
struct Largest { __device__ wide_t operator()(wide_t a, wide_t b) const { return a > b ? a : b; } };
"""


def on_gpu(x: Array) -> bool:
    """Whether kernels of ours can work on `x`."""
    return array_module(x) is not np and x.size > 0 and x.dtype.name in C_TYPES and cuda.compiles()


def each_row(source: str, name: str, x: Array, *arguments: Any) -> None:
    """Launch a kernel with a block for each row of `x`: its arguments are `arguments`, and the length of a row."""
    n = x.shape[-1]
    compiled(source, name, x.dtype.name)((x.size // n,), (THREADS,), (*arguments, np.int32(n)))


@cache
def compiled(source: str, name: str, dtype: str) -> Any:
    return cuda.module().RawKernel(_TYPEDEFS % C_TYPES[dtype] + _TOGETHER + source, name)
