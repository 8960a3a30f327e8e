"""Compiling and launching our CUDA kernels.

Their sources use two types: T, that of the arrays, and wide_t, that of the arithmetic (double for double, else float).

elementwise   a thread for each value, which runs a formula
sized         the same, with sizes that the compiler knows: it makes products of divisions by them
launch_rows   a warp for each row of a matrix, or a block for each long one, which runs a function `extern "C"
              __global__ void name(..., long long rows, int n)`. Its row is number ROW. `EACH(i)` goes over the values,
              neighbouring threads reading neighbouring ones; `over_row` combines the results of the row's threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module

THREADS = 128  # of a block: four warps of 32
LONG = 1024  # rows of more values have a block each
SHARED = 48 * 1024  # bytes that a block may share
C_TYPES = {"float16": ("__half", "float"), "float32": ("float", "float"), "float64": ("double", "double")}
_REDUCTION = """
// A butterfly reduction, in five shuffles.
template <class V, class Combine> __device__ V over_warp(V value, Combine combine) {
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
    return value;
}

// The warps exchange their results in shared memory. The first barrier waits for threads that still read those of the
// previous call.
template <class V, class Combine> __device__ V over_block(V value, Combine combine) {
    __shared__ V of_warp[32];
    value = over_warp(value, combine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) value = combine(value, of_warp[warp]);
    return value;
}

#define ROW ((long long)blockIdx.x * (blockDim.x / TEAM) + threadIdx.x / TEAM)
#define EACH(i) for (int i = threadIdx.x % TEAM; i < n; i += TEAM)
template <class V, class Combine> __device__ V over_row(V value, Combine combine) {
    return TEAM > 32 ? over_block(value, combine) : over_warp(value, combine);
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


@cache
def sized(arguments: str, results: str, formula: str, name: str, dtype: str, index: str, **sizes: int) -> Any:
    """A kernel like `elementwise` whose formula has these sizes as constants, of the type index_t of its indices."""
    constants = ", ".join(f"{size} = {value}" for size, value in sizes.items())
    constants = f"typedef {index} index_t; constexpr index_t {constants};"
    return elementwise(arguments, results, constants + formula, name, dtype)


def index_type(x: Array) -> str:
    """The type of indices into x: 32 bits divide faster."""
    return "unsigned int" if x.size < 2**31 else "long long"


def launch_rows(source: str, name: str, x: Array, *arguments: Any, dtype: Any = None) -> None:
    """Launch a kernel for each row of `x`, for arrays of T of its dtype, or of another.

    It gets `arguments`, the number of rows, and the length of a row.
    """
    n = x.shape[-1]
    rows, team = x.size // n, 32 if n <= LONG else THREADS
    blocks = -(-rows * team // THREADS)
    kernel = compiled(source, name, (x.dtype if dtype is None else dtype).name, team)
    kernel((blocks,), (THREADS,), (*arguments, np.int64(rows), np.int32(n)))


@cache
def compiled(source: str, name: str, dtype: str, team: int = THREADS) -> Any:
    """A kernel, with `team` threads for a row."""
    narrow, wide = C_TYPES[dtype]
    types = f"#include <cuda_fp16.h>\ntypedef {narrow} T;\ntypedef {wide} wide_t;\nconstexpr int TEAM = {team};\n"
    return cuda.module().RawKernel(types + _REDUCTION + source, name)
