"""The gradient of a factor w that was broadcast to the shape of x, in y = w x: the sum of g * x over the axes of w that
are missing or 1.

On a GPU, arrays are seen as (outer, rows, columns), and the sum goes over rows: all tokens for a factor of each
channel, or the pixels of a sample for one of each sample and channel. The products are not stored.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, on_gpu
from .parts import LEAST_ROWS, MOST_PARTS, compiled_parts, merge
from .sums import total, wide_dtype

MOST_OUTER = 65535  # the largest grid of CUDA along its third axis


def _sum_products_numpy(g: Array, x: Array, shape: tuple[int, ...]) -> Array:
    return total(g * x, _axes(g.shape, shape)).reshape(shape)


@cache
def _axes(shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    added = len(shape) - len(own)
    return (*range(added), *(added + i for i, size in enumerate(own) if size == 1))


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
    axes = [axis for axis in _axes(shape, own) if shape[axis] > 1]
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


def sum_products(g: Array, x: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of a factor of `shape`."""
    if on_gpu(g) and g.shape == x.shape and g.dtype == x.dtype and (sizes := _as_rows(g.shape, shape)) is not None:
        return _sum_products_cuda(g, x, shape, sizes)
    return _sum_products_numpy(g, x, shape)
