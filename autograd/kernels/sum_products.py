"""The gradient of a factor w that was broadcast to the shape of x, in y = w x, on a GPU: the sum of g * x over the axes
of w that are missing or 1, without an array of the products.

Arrays are seen as (outer, rows, columns), and the sum goes over rows: all tokens for a factor of each channel, or the
pixels of a sample for one of each sample and channel.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, on_gpu
from .parts import LEAST_ROWS, MOST_PARTS, compiled_parts, merge
from .sums import wide_dtype

MOST_OUTER = 65535  # the largest grid of CUDA along its third axis

_CUDA = """
extern "C" __global__ void sum_products(
    const T* g, const T* x, wide_t* sums, long long rows, long long size, int channels
) {
    PART
    const long long start = blockIdx.z * rows * channels;
    wide_t sum = 0;
    EACH_ROW {
        const long long i = start + row * channels + channel;
        sum += wide_t(g[i]) * wide_t(x[i]);
    }
    sum = over_warps(sum);
    if (inside && threadIdx.x < 32)
        sums[((long long)blockIdx.z * channels + channel) * gridDim.x + blockIdx.x] = sum;
}
"""


@cache
def _as_rows(shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(outer, rows, columns), or None if the sum goes over other axes than neighbouring ones before the last."""
    own = (1,) * (len(shape) - len(own)) + own
    axes = [axis for axis, size in enumerate(own) if size == 1 < shape[axis]]
    if not axes or axes != [*range(axes[0], axes[-1] + 1)] or axes[-1] == len(shape) - 1:
        return None
    parts = shape[: axes[0]], shape[axes[0] : axes[-1] + 1], shape[axes[-1] + 1 :]
    outer, rows, columns = map(math.prod, parts)
    return (outer, rows, columns) if outer <= MOST_OUTER else None


def _sum_products_cuda(g: Array, x: Array, shape: tuple[int, ...], sizes: tuple[int, int, int]) -> Array:
    outer, rows, columns = sizes
    size = max(LEAST_ROWS, -(-rows // MOST_PARTS))
    grid = -(-rows // size), -(-columns // 32), outer
    xp = array_module(g)
    sums = xp.empty((*shape, grid[0]), wide_dtype(g))
    arguments: tuple[Any, ...] = *map(xp.ascontiguousarray, (g, x)), sums, np.int64(rows), np.int64(size)
    compiled_parts(_CUDA, "sum_products", g.dtype.name)(grid, (THREADS,), (*arguments, np.int32(columns)))
    return merge(sums, g.dtype)


def sum_products(g: Array, x: Any, shape: tuple[int, ...]) -> Array | None:
    """The gradient of a factor of `shape`; None on the CPU, and where the axes are others."""
    if not on_gpu(g) or getattr(x, "shape", None) != g.shape or x.dtype != g.dtype:
        return None
    sizes = _as_rows(g.shape, shape)
    return None if sizes is None else _sum_products_cuda(g, x, shape, sizes)
