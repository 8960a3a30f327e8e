"""Accurate sums and means, and fast ones over rows and columns. On a GPU, CuPy's sum does the work.

float16 accumulates in float32 and is rounded once, at the end. NumPy sums float32 pairwise along a row but value by
value down a column, where rounding errors build up, so long columns are summed in blocks.

BLAS sums a matrix by multiplying it with a vector of ones, in a third of the time of NumPy's sum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..backend import Array

BLOCK_ROWS = 256  # rows that NumPy adds value by value
BLAS_ROWS = 4096  # BLAS does not sum in blocks: it gets no more rows than this


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`: None, one axis, or a tuple of them."""
    if x.dtype == np.float16:
        if not isinstance(x, np.ndarray):
            return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)
        return total(x.astype(np.float32), axis, keepdims).astype(np.float16)
    axes = (axis,) if isinstance(axis, int) else axis
    if isinstance(x, np.ndarray) and x.dtype == np.float32 and axes and x.size > BLOCK_ROWS:
        count = len(axes)
        if axes == tuple(range(count)) and count < x.ndim:  # columns: a sum over leading axes only
            tail = x.shape[count:]
            return _blocked_sum(x.reshape(-1, *tail)).reshape((1,) * count + tail if keepdims else tail)
    return x.sum(axis=axis, keepdims=keepdims)


def _blocked_sum(x: np.ndarray) -> np.ndarray:
    """The sum over the first axis, in blocks, whose sums are summed in the same way."""
    whole = len(x) // BLOCK_ROWS * BLOCK_ROWS
    if whole <= BLOCK_ROWS:
        return x.sum(axis=0)
    blocks = x[:whole].reshape(-1, BLOCK_ROWS, *x.shape[1:]).sum(axis=1)
    return _blocked_sum(blocks) + x[whole:].sum(axis=0)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean, divided before it is rounded: that of many float16 is finite even if their sum is not."""
    if x.dtype != np.float16:
        return x.mean(axis=axis, keepdims=keepdims)
    return x.mean(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def centred(x: Array, axis: Any) -> Array:
    """x - mean(x). A second pass removes the rounding error of a mean that is large beside the deviations."""
    x = x - x.mean(axis=axis, keepdims=True)
    return x - x.mean(axis=axis, keepdims=True)


def widened(x: Array) -> Array:
    """`x`, cast to float32 if it is float16: for arithmetic whose intermediate values may overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def sum_over_rows(x: Array, dtype: Any = None) -> Array:
    """(..., n) to (n,); in `dtype`, by default that of x."""
    rows = as_rows(x)
    if _blas_sums(x) and 0 < len(rows) <= BLAS_ROWS:
        return _ones(len(rows), x.dtype) @ rows
    if x.dtype == np.float16 and dtype == np.float32:
        return rows.sum(axis=0, dtype=dtype)
    return total(rows, 0)


def row_sums(x: Array) -> Array:
    """(..., n) to (..., 1)."""
    if _blas_sums(x):
        return (as_rows(x) @ _ones(x.shape[-1], x.dtype)).reshape(*x.shape[:-1], 1)
    return total(x, -1, keepdims=True)


def column_sums(x: Array) -> Array:
    """(..., n, m) to (..., 1, m); those of float16 in float32."""
    if _blas_sums(x) and x.shape[-2] <= BLAS_ROWS:
        return _ones(x.shape[-2], x.dtype)[None] @ x
    if x.dtype == np.float16:
        return x.sum(axis=-2, keepdims=True, dtype=np.float32)
    return total(x, -2, keepdims=True)


def row_dots(x: Array, y: Array) -> Array:
    """The dot products of the rows of x and y: (..., n) to (..., 1)."""
    if _blas_sums(x):
        return np.vecdot(x, y)[..., None]
    return total(x * y, -1, keepdims=True)


def as_rows(x: Array) -> Array:
    """(..., n) as (rows, n): a view where strides allow."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _blas_sums(x: Array) -> bool:
    return isinstance(x, np.ndarray) and x.dtype != np.float16


@lru_cache(64)
def _ones(count: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(count, dtype)
