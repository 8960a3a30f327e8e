"""Sums and means that stay accurate, and fast ones over rows and columns.

float16 is added up in float32 and rounded once, at the end. NumPy adds float32 pairwise along a row, but one by one
down a column, which loses a little with every step; long columns are therefore added in pieces.

BLAS adds up a matrix by multiplying it with a vector of ones, in a third of the time that NumPy's sum takes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..backend import Array

PIECE = 256  # rows that are added one by one
BLAS_ROWS = 4096  # so many rows are short enough to be added up by BLAS, which does not go in pieces


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`: None, one axis, or a tuple of them."""
    if x.dtype == np.float16:
        if not isinstance(x, np.ndarray):
            return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)
        return total(x.astype(np.float32), axis, keepdims).astype(np.float16)
    axes = (axis,) if isinstance(axis, int) else axis
    if isinstance(x, np.ndarray) and x.dtype == np.float32 and axes and x.size > PIECE:
        count = len(axes)
        if axes == tuple(range(count)) and count < x.ndim:  # columns: only leading axes are summed over
            tail = x.shape[count:]
            return _down_columns(x.reshape(-1, *tail)).reshape((1,) * count + tail if keepdims else tail)
    return x.sum(axis=axis, keepdims=keepdims)


def _down_columns(x: np.ndarray) -> np.ndarray:
    """The sum over the first axis, in pieces."""
    whole = len(x) // PIECE * PIECE
    if whole <= PIECE:
        return x.sum(axis=0)
    pieces = x[:whole].reshape(-1, PIECE, *x.shape[1:]).sum(axis=1)
    return _down_columns(pieces) + x[whole:].sum(axis=0)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Divided before it is rounded: the mean of many float16 exists even where their sum does not."""
    if x.dtype != np.float16:
        return x.mean(axis=axis, keepdims=keepdims)
    return x.mean(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def centred(x: Array, axis: Any) -> Array:
    """x - mean(x). A second pass takes away what rounding left of a mean that is large beside the deviations."""
    x = x - x.mean(axis=axis, keepdims=True)
    return x - x.mean(axis=axis, keepdims=True)


def widened(x: Array) -> Array:
    """`x`, in float32 if it is float16: for work in which intermediate values may overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def sum_over_rows(x: Array, dtype: Any = None) -> Array:
    """(..., n) to (n,); in `dtype`, by default that of x."""
    rows = as_rows(x)
    if _in_blas(x) and 0 < len(rows) <= BLAS_ROWS:
        return _ones(len(rows), x.dtype) @ rows
    if x.dtype == np.float16 and dtype == np.float32:
        return rows.sum(axis=0, dtype=dtype)
    return total(rows, 0)


def row_sums(x: Array) -> Array:
    """(..., n) to (..., 1)."""
    if _in_blas(x):
        return (as_rows(x) @ _ones(x.shape[-1], x.dtype)).reshape(*x.shape[:-1], 1)
    return total(x, -1, keepdims=True)


def column_sums(x: Array) -> Array:
    """(..., n, m) to (..., 1, m); of float16 in float32."""
    if _in_blas(x) and x.shape[-2] <= BLAS_ROWS:
        return _ones(x.shape[-2], x.dtype)[None] @ x
    if x.dtype == np.float16:
        return x.sum(axis=-2, keepdims=True, dtype=np.float32)
    return total(x, -2, keepdims=True)


def row_dots(x: Array, y: Array) -> Array:
    """The sums of x * y over the last axis: (..., n) to (..., 1)."""
    if _in_blas(x):
        return np.vecdot(x, y)[..., None]
    return total(x * y, -1, keepdims=True)


def as_rows(x: Array) -> Array:
    """All leading axes as one, without a copy where memory allows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _in_blas(x: Array) -> bool:
    return isinstance(x, np.ndarray) and x.dtype != np.float16


@lru_cache(64)
def _ones(count: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(count, dtype)
