"""Accurate sums and means of any axes, and fast ones over rows and columns. On a GPU, `parts` sums over the first axes,
and CuPy over others.

float16 accumulates in float32 and is rounded once, at the end. NumPy sums pairwise along the innermost axis but value
by value along others, where rounding errors build up. `total` cuts these into slabs, adds the slabs, and does the same
to the result: errors grow only with the logarithm of the length, and adding whole slabs is fast.

BLAS sums a matrix by multiplying it with a vector of ones, faster than NumPy's sum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..backend import Array
from .launch import on_gpu
from .parts import sum_rows

FEW = 256  # at most this many values are added one by one
SLABS = 64
MANY_ROWS, MANY_COLUMNS = 512, 8192  # more rows and fewer columns are too much for one block each
BLAS_LIMIT = 4096  # BLAS adds at most this many values: its errors grow faster than those of `total`


def total(x: Array, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Array:
    """The sum over `axis`: None, one axis, or a tuple of them. That of float16 is rounded to `dtype`, or to float16."""
    if x.dtype == np.float16:
        if isinstance(x, np.ndarray):
            wide = total(x.astype(np.float32), axis, keepdims)
        elif _over_rows(x, axis):
            return _total_of_rows(x, axis, keepdims, dtype or np.float16)
        else:
            wide = x.sum(axis=axis, keepdims=keepdims, dtype=np.float32)
        return wide.astype(dtype or np.float16, copy=False)
    if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size > FEW:
        axes = _axes(x, axis)
        contiguous = len(axes) == x.ndim and x.flags.forc  # to NumPy, this is one innermost axis
        if not contiguous and math.prod(x.shape[a] for a in axes) > FEW:
            for a in axes:
                x = x if _is_innermost(x, a) else _sum_slabs(x, a)
    elif _over_rows(x, axis):
        return _total_of_rows(x, axis, keepdims, x.dtype)
    return x.sum(axis=axis, keepdims=keepdims)


def _over_rows(x: Array, axis: Any) -> bool:
    """True for sums over many rows of an array on a GPU. CuPy has a block for 32 columns, `parts` enough of them."""
    if not on_gpu(x) or not x.flags.c_contiguous:
        return False
    axes = sorted(_axes(x, axis))
    columns = math.prod(x.shape[len(axes) :])
    return axes == [*range(len(axes))] and columns < MANY_COLUMNS and x.size > MANY_ROWS * columns


def _total_of_rows(x: Array, axis: Any, keepdims: bool, dtype: Any) -> Array:
    count = len(_axes(x, axis))
    rest = x.shape[count:]
    return sum_rows(x.reshape(-1, math.prod(rest)), dtype).reshape((1,) * count * keepdims + rest)


def _axes(x: Array, axis: Any) -> tuple[int, ...]:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % x.ndim for a in axes)


def _is_innermost(x: np.ndarray, axis: int) -> bool:
    """True if NumPy sums pairwise along this axis: its stride is the smallest."""
    return x.strides[axis] == x.itemsize == min(x.strides) and x.strides.count(x.itemsize) == 1


def _sum_slabs(x: np.ndarray, axis: int) -> np.ndarray:
    """The sum over one axis, which stays with size 1."""
    count, before = x.shape[axis], (slice(None),) * axis
    slabs = min(SLABS, math.isqrt(count))
    if slabs < 4:
        return x.sum(axis=axis, keepdims=True)
    size = count // slabs
    whole, rest = x[*before, : slabs * size], x[*before, slabs * size :]
    folded = whole.reshape(*x.shape[:axis], slabs, size, *x.shape[axis + 1 :]).sum(axis=axis)
    return _sum_slabs(folded, axis) + rest.sum(axis=axis, keepdims=True)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean, divided before it is rounded: that of many float16 is finite even if their sum is not."""
    half = x.dtype == np.float16
    if isinstance(x, np.ndarray):
        y = total(x, axis, keepdims, np.float32) / math.prod(x.shape[a] for a in _axes(x, axis))
    else:
        y = x.mean(axis=axis, keepdims=keepdims, dtype=np.float32 if half else None)
    return y.astype(np.float16) if half else y


def centred(x: Array, axis: Any) -> Array:
    """x - mean(x). A second pass removes the rounding error of a mean that is large beside the deviations."""
    x = x - mean(x, axis, keepdims=True)
    return x - mean(x, axis, keepdims=True)


def widened(x: Array) -> Array:
    """`x`, cast to float32 if it is float16: for arithmetic whose intermediate values may overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def wide_dtype(x: Array) -> Any:
    """The dtype to add up values of x in: float32 for float16, else their own."""
    return np.promote_types(x.dtype, np.float32)


def sum_over_rows(x: Array, dtype: Any = None) -> Array:
    """(..., n) to (n,); that of float16 rounded to `dtype`, or to float16."""
    rows = as_rows(x)
    if _blas_sums(x) and 0 < len(rows) <= BLAS_LIMIT:
        return _blas_product(_ones(len(rows), x.dtype), rows)
    if on_gpu(rows):
        return sum_rows(rows, (dtype or x.dtype) if x.dtype == np.float16 else x.dtype)
    return total(rows, 0, dtype=dtype)


def row_sums(x: Array) -> Array:
    """(..., n) to (..., 1)."""
    if _blas_sums(x) and x.shape[-1] <= BLAS_LIMIT:
        return row_products(x, _ones(x.shape[-1], x.dtype))
    return total(x, -1, keepdims=True)


def column_sums(x: Array) -> Array:
    """(..., n, m) to (..., 1, m); those of float16 in float32."""
    if _blas_sums(x) and x.shape[-2] <= BLAS_LIMIT:
        return _blas_product(_ones(x.shape[-2], x.dtype)[None], x)
    return total(x, -2, keepdims=True, dtype=np.float32)


def row_dots(x: Array, y: Array) -> Array:
    """The dot products of the rows of x and y: (..., n) to (..., 1)."""
    if _blas_sums(x) and x.shape[-1] <= BLAS_LIMIT:
        with np.errstate(invalid="ignore"):  # as in `_blas_product`
            return np.vecdot(x, y)[..., None]
    return total(x * y, -1, keepdims=True)


def row_products(x: Array, vector: Array) -> Array:
    """The dot product of each row of x and one vector: (..., n) to (..., 1)."""
    if x.shape[-1] <= BLAS_LIMIT or not isinstance(x, np.ndarray):
        return _blas_product(as_rows(x), vector).reshape(*x.shape[:-1], 1)
    return total(x * vector, -1, keepdims=True)


def as_rows(x: Array) -> Array:
    """(..., n) as (rows, n): a view where strides allow."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _blas_sums(x: Array) -> bool:
    return isinstance(x, np.ndarray) and x.dtype != np.float16


def _blas_product(a: Array, b: Array) -> Array:
    """The product of a vector and a matrix, or of matrices.

    Now and then, OpenBLAS raises the flag of an invalid value for rows that are finite and short.
    """
    with np.errstate(invalid="ignore"):
        return a.dot(b) if a.ndim < 3 and b.ndim < 3 and isinstance(a, np.ndarray) else a @ b


@lru_cache(64)
def _ones(count: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(count, dtype)
