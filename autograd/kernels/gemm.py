"""scale * a b by cuBLAS, for arrays on a GPU, without a copy.

cuBLAS takes any matrix whose rows or columns are contiguous, and batches of them at a constant stride. It stores
matrices by columns, so that it sees all of ours transposed: it is asked for out^T = b^T a^T.

What to ask follows from shapes, strides and dtypes, and is worked out once for each combination. Then a product costs
the host little more than the call.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import cuda, modes
from ..backend import Array, array_module, on_device_of

CUDA_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2}
PLANS = 1 << 14  # with stochastic depth, batches have many sizes


class Matrices(NamedTuple):
    """How an array of matrices lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype


class Layout(NamedTuple):
    """A matrix in memory: its rows (or columns, if transposed) are contiguous, and start a leading dimension apart."""

    leading_dimension: int
    transposed: bool


class Plan(NamedTuple):
    """The calls for a product, but for the handle and the addresses of a, b and out."""

    shape: tuple[int, ...]  # of out
    function: Callable[..., None]
    sizes: tuple[int, ...]  # transposed or not, m, n, k, address of alpha
    left: tuple[int, ...]  # data type, leading dimension and, for a batch, stride: of b
    right: tuple[int, ...]  # of a
    beta: int  # its address
    result: tuple[int, ...]  # of out
    rest: tuple[int, ...]  # batch, if it is one, compute type, algorithm
    offsets: list[tuple[int, int, int]]  # of b, a and out in each call, in bytes
    factors: np.ndarray  # alpha and beta, which must stay in memory


def gemm(a: Array, b: Array, out: Array | None, scale: float) -> Array | None:
    """None if cuBLAS cannot do it."""
    there = None if out is None else (out.shape, out.strides, out.dtype)
    mode = modes.current()
    key = (a.shape, a.strides, a.dtype), (b.shape, b.strides, b.dtype), there, scale, mode.products
    library = cuda.cublas() if mode.capture is None else mode.capture.blas
    if not cuda.compiles() or library is None:
        _say_once()
        return None
    plan = _plan(library, *key)
    if plan is None:
        return None
    if isinstance(plan, str):  # operands with neither rows nor columns that are contiguous
        xp = array_module(a)
        return gemm(xp.ascontiguousarray(a) if "a" in plan else a, xp.ascontiguousarray(b) if "b" in plan else b, out,
                    scale)  # fmt: skip
    on_device_of(a)  # the handle is that of the current device
    if out is None:
        out = array_module(a).empty(plan.shape, a.dtype)
    handle = cuda.cublas_handle() if mode.capture is None else library.handle
    p, q, r = b.data.ptr, a.data.ptr, out.data.ptr
    _, function, sizes, left, right, beta, result, rest, offsets, _ = plan
    for i, j, k in offsets:
        function(handle, *sizes, p + i, *left, q + j, *right, beta, r + k, *result, *rest)
    return out


@cache
def _say_once() -> None:
    if cuda.compiles():
        warnings.warn("CuPy's cuBLAS bindings are not as expected: products are slower, and need copies", stacklevel=4)


@lru_cache(PLANS)
def _plan(
    library: Any, a_key: tuple[Any, ...], b_key: tuple[Any, ...], out_key: tuple[Any, ...] | None, scale: float,
    products: str,
) -> Plan | str | None:  # fmt: skip
    """None if cuBLAS cannot do it, or the names of the operands that must be copied first."""
    a, b = Matrices(*a_key), Matrices(*b_key)
    known = len(a.shape) > 1 and len(b.shape) > 1 and a.dtype == b.dtype and a.dtype.name in CUDA_DATA_TYPES
    if not known or 0 in a.shape or 0 in b.shape:
        return None
    out = _contiguous((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    if out_key is not None:
        out = Matrices(*out_key)
    if scattered := "".join(name for name, x in (("a", a), ("b", b)) if _layout(x) is None):
        return scattered
    if (layout := _layout(out)) is None or layout.transposed:
        return None
    batch, arrays = out.shape[:-2], (b, a, out)
    layouts = [layout for x in arrays if (layout := _layout(x)) is not None]
    counts, strides = _merged_axes(batch, [_batch_strides(x, batch) for x in arrays])
    longest = max(range(len(counts)), key=counts.__getitem__)  # cuBLAS goes over this axis of the batch
    others = [range(1 if axis == longest else count) for axis, count in enumerate(counts)]  # and this loop over these
    factors = np.array([scale, 0], np.float64 if a.dtype == np.float64 else np.float32)  # out = alpha a b + beta out
    alpha, beta = factors.ctypes.data, factors.ctypes.data + factors.itemsize
    single = counts[longest] == 1
    left, right, result = (
        (CUDA_DATA_TYPES[x.dtype.name], layout.leading_dimension, *(() if single else (own[longest],)))
        for x, layout, own in zip(arrays, layouts, strides, strict=True)
    )
    offsets = []
    for index in itertools.product(*others):
        b_offset, a_offset, out_offset = (
            x.dtype.itemsize * sum(map(int.__mul__, index, own)) for x, own in zip(arrays, strides, strict=True)
        )
        offsets.append((b_offset, a_offset, out_offset))
    sizes = int(layouts[0].transposed), int(layouts[1].transposed), out.shape[-1], out.shape[-2], a.shape[-1], alpha
    rest = _compute_type(library, a.dtype, products), library.CUBLAS_GEMM_DEFAULT
    function = library.gemmEx if single else library.gemmStridedBatchedEx
    count = () if single else (counts[longest],)
    return Plan(out.shape, function, sizes, left, right, beta, result, (*count, *rest), offsets, factors)


def _contiguous(shape: tuple[int, ...], dtype: np.dtype) -> Matrices:
    strides = itertools.accumulate(reversed(shape[1:]), int.__mul__, initial=dtype.itemsize)
    return Matrices(shape, tuple(strides)[::-1], dtype)


def _layout(x: Matrices) -> Layout | None:
    """None if neither the rows nor the columns of x are contiguous."""
    rows, columns = x.shape[-2:]
    row_stride, column_stride = (stride // x.dtype.itemsize for stride in x.strides[-2:])
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        return Layout(row_stride if rows > 1 else columns, transposed=False)
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        return Layout(column_stride if columns > 1 else rows, transposed=True)
    return None


def _compute_type(library: Any, dtype: np.dtype, products: str) -> int:
    if dtype == np.float64:
        return library.CUBLAS_COMPUTE_64F
    if dtype == np.float32 and products == "tf32":
        return library.CUBLAS_COMPUTE_32F_FAST_TF32
    return library.CUBLAS_COMPUTE_32F


def _batch_strides(x: Matrices, batch: tuple[int, ...]) -> list[int]:
    """Strides of x, in values, along each axis of the batch; 0 where x is broadcast."""
    own, size = x.shape[:-2], x.dtype.itemsize
    strides = [stride // size if count > 1 else 0 for count, stride in zip(own, x.strides[:-2], strict=True)]
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
