"""Matrix products, scale * a b over the last two axes: by BLAS on the CPU, by cuBLAS on a GPU.

CuPy does well with two axes. With more, it first copies operands that are not contiguous, and casts float16 to float32.
Attention heads have four, and are parts of longer rows. cuBLAS itself takes any matrix whose rows or columns are
contiguous, and batches of them at a constant stride. So it is called directly, without a copy. If it is not available,
CuPy multiplies.

float16 accumulates in float32. (If a sum is very long, cuBLAS may split it and round the partial sums to the dtype of
the result. Gradients of weights, which are sums over all tokens, are therefore asked for in float32.)
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from .. import cuda, modes
from ..backend import Array, array_module, on_device_of
from .sums import widened

CUDA_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2}


def _product_numpy(a: Array, b: Array, out: Array | None, scale: float) -> Array:
    dtype = a.dtype
    if dtype == np.float16 and (isinstance(a, np.ndarray) or (out is not None and out.dtype != dtype)):
        a, b = widened(a), widened(b)
    if scale != 1:
        a, b = (a * a.dtype.type(scale), b) if a.size < b.size else (a, b * b.dtype.type(scale))
    if isinstance(a, np.ndarray) and out is not None and out.dtype == a.dtype:
        return np.matmul(a, b, out=out)
    result = a @ b
    if out is None and result.dtype == dtype:
        return result
    with np.errstate(over="ignore"):  # silent as on a GPU: loss scaling looks for infinities
        if out is None:
            return result.astype(dtype)
        out[...] = result
    return out


class Layout(NamedTuple):
    """A matrix in memory: its rows (or columns, if transposed) are contiguous, and start a leading dimension apart."""

    leading_dimension: int
    transposed: bool


def _layout(x: Array) -> Layout | None:
    """None if neither the rows nor the columns of x are contiguous."""
    rows, columns = x.shape[-2:]
    row_stride, column_stride = (stride // x.itemsize for stride in x.strides[-2:])
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        return Layout(row_stride if rows > 1 else columns, transposed=False)
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        return Layout(column_stride if columns > 1 else rows, transposed=True)
    return None


def _product_cublas(a: Array, b: Array, out: Array | None, scale: float) -> Array | None:
    """None if cuBLAS cannot do it.

    cuBLAS stores matrices by columns, so that it sees all of ours transposed: it is asked for out^T = b^T a^T.
    """
    known = a.ndim > 1 and b.ndim > 1 and a.dtype == b.dtype and a.dtype.name in CUDA_DATA_TYPES
    if not known or not cuda.compiles() or (library := cuda.cublas()) is None:
        return None
    on_device_of(a)  # the handle is that of the current device
    out = _empty(a, b, a.dtype) if out is None else out
    batch = out.shape[:-2]
    if not out.size or not a.size:
        return None
    arrays = *(x if _layout(x) else array_module(x).ascontiguousarray(x) for x in (b, a)), out
    layouts = [layout for x in arrays if (layout := _layout(x)) is not None]
    if len(layouts) < 3 or layouts[2].transposed:
        return None
    counts, strides = _merged_axes(batch, [_batch_strides(x, batch) for x in arrays])
    longest = max(range(len(counts)), key=counts.__getitem__)  # cuBLAS goes over this axis of the batch
    others = [range(1 if axis == longest else count) for axis, count in enumerate(counts)]  # and this loop over these
    factors = np.array([scale, 0], np.float64 if a.dtype == np.float64 else np.float32)
    alpha, beta = factors.ctypes.data, factors.ctypes.data + factors.itemsize  # out = alpha a b + beta out
    transposed = int(layouts[0].transposed), int(layouts[1].transposed)
    first = cuda.cublas_handle(), *transposed, out.shape[-1], out.shape[-2], a.shape[-1], alpha
    last = _compute_type(library, a.dtype), library.CUBLAS_GEMM_DEFAULT
    for index in itertools.product(*others):
        operands = []
        for x, layout, own in zip(arrays, layouts, strides, strict=True):
            address = x.data.ptr + x.itemsize * sum(map(int.__mul__, index, own))
            operands.append((address, CUDA_DATA_TYPES[x.dtype.name], layout.leading_dimension, own[longest]))
        left, right, result = operands
        if counts[longest] == 1:
            library.gemmEx(*first, *left[:3], *right[:3], beta, *result[:3], *last)
        else:
            library.gemmStridedBatchedEx(*first, *left, *right, beta, *result, counts[longest], *last)
    return out


def _compute_type(library: Any, dtype: np.dtype) -> int:
    if dtype == np.float64:
        return library.CUBLAS_COMPUTE_64F
    if dtype == np.float32 and modes.current().products == "tf32":
        return library.CUBLAS_COMPUTE_32F_FAST_TF32
    return library.CUBLAS_COMPUTE_32F


def _batch_strides(x: Array, batch: tuple[int, ...]) -> list[int]:
    """Strides of x, in values, along each axis of the batch; 0 where x is broadcast."""
    own = x.shape[:-2]
    strides = [stride // x.itemsize if size > 1 else 0 for size, stride in zip(own, x.strides[:-2], strict=True)]
    return [0] * (len(batch) - len(own)) + strides


def _merged_axes(batch: tuple[int, ...], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring axes of the batch where strides allow, and drop those of length 1. At least one is left."""
    axes = [(count, *own) for count, *own in zip(batch, *strides, strict=True) if count > 1] or [(1, 0, 0, 0)]
    merged = axes[:1]
    for axis in axes[1:]:
        before, count = merged[-1], axis[0]
        if all(outer == inner * count for outer, inner in zip(before[1:], axis[1:], strict=True)):
            merged[-1] = (before[0] * count, *axis[1:])
        else:
            merged.append(axis)
    counts, *separate = (list(column) for column in zip(*merged, strict=True))
    return counts, separate


def _empty(a: Array, b: Array, dtype: Any) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return array_module(a).empty((*batch, *a.shape[-2:-1], b.shape[-1]), dtype)


def product(a: Array, b: Array, out: Array | None = None, scale: float = 1.0, dtype: Any = None) -> Array:
    """scale * a b, over the last two axes; `out`, or `dtype` for a new array, may be wider than a and b."""
    if out is None and dtype is not None and dtype != a.dtype:
        out = _empty(a, b, dtype)
    if not isinstance(a, np.ndarray) and (result := _product_cublas(a, b, out, scale)) is not None:
        return result
    return _product_numpy(a, b, out, scale)
