"""Many rows x (n, C) on a GPU, and sums over them, in two launches.

The rows are cut into parts. A block for each part and 32 channels leaves partial results, and a second launch combines
those of each channel. CuPy's sum over rows has one block for 32 channels: six of them for 192, on a GPU that runs a
thousand at a time. The order of the additions is fixed, so that the same sums have the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, compiled, launch_rows

MOST_PARTS, LEAST_ROWS = 512, 64

# Each lane has a channel. The warps of a block take turns at the rows.
_PARTS = """
#define PART                                                             \\
    const int channel = blockIdx.y * 32 + threadIdx.x % 32;              \\
    const bool inside = channel < channels;                              \\
    const long long first = blockIdx.x * size, last = min(rows, first + size);
#define EACH_ROW for (long long row = first + threadIdx.x / 32; inside && row < last; row += blockDim.x / 32)

__device__ wide_t over_warps(wide_t value) {
    __shared__ wide_t of_warp[32][32];
    __syncthreads();
    of_warp[threadIdx.x / 32][threadIdx.x % 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += of_warp[warp][threadIdx.x % 32];
    return value;
}
"""
_SUM = """
extern "C" __global__ void sum_rows(const T* x, wide_t* sums, long long rows, long long size, int channels) {
    PART
    wide_t sum = 0;
    EACH_ROW sum += wide_t(x[row * channels + channel]);
    sum = over_warps(sum);
    if (inside && threadIdx.x < 32) sums[(long long)channel * gridDim.x + blockIdx.x] = sum;
}
"""
_MERGE = """
extern "C" __global__ void merge_sums(const wide_t* sums, T* all, long long rows, int n) {
    if (ROW >= rows) return;
    wide_t sum = 0;
    EACH(i) sum += sums[ROW * n + i];
    sum = over_row(sum, Sum());
    if (threadIdx.x % TEAM == 0) all[ROW] = sum;
}
"""


def division(x: Array) -> tuple[int, int, int]:
    """The number of rows of x, of rows in a part, and of parts."""
    rows = x.size // x.shape[-1]
    size = max(LEAST_ROWS, -(-rows // MOST_PARTS))
    return rows, size, -(-rows // size)


def launch_parts(source: str, name: str, x: Array, *arguments: Any) -> None:
    rows, size, count = division(x)
    grid = count, -(-x.shape[-1] // 32)
    compiled_parts(source, name, x.dtype.name)(
        grid, (THREADS,), (*arguments, np.int64(rows), np.int64(size), np.int32(x.shape[-1]))
    )


@cache
def compiled_parts(source: str, name: str, dtype: str) -> Any:
    """A kernel whose blocks have a part of the rows (blockIdx.x) and 32 channels (blockIdx.y): PART and EACH_ROW."""
    return compiled(_PARTS + source, name, dtype)


def sum_rows(x: Array, dtype: Any) -> Array:
    """(..., C) to (C,), rounded to `dtype`."""
    xp = array_module(x)
    sums = xp.empty((x.shape[-1], division(x)[2]), np.promote_types(x.dtype, np.float32))
    launch_parts(_SUM, "sum_rows", x, xp.ascontiguousarray(x), sums)
    return merge(sums, dtype)


def merge(sums: Array, dtype: Any) -> Array:
    """The sum of partial sums (..., parts) over the last axis, rounded to `dtype`."""
    all_ = array_module(sums).empty(sums.shape[:-1], dtype)
    launch_rows(_MERGE, "merge_sums", sums, sums, all_, dtype=all_.dtype)
    return all_
