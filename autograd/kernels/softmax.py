"""softmax and its logarithm, right for logits of any size.

The maximum is subtracted first, so nothing overflows, and the logarithm of the sum is taken from the rest, so that
nothing is lost beside a large maximum. A row that is -inf throughout (everything masked) has no distribution: its
softmax is zero and its logsumexp -inf, instead of the NaN of 0 / 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .rows import each_row, on_gpu
from .total import row_dots, row_sums, total, widened

LARGE = 1e26  # e^60: this and its inverse are well within float32


def softmax(x: Array, axis: Any) -> Array:
    if axis in (-1, x.ndim - 1) and on_gpu(x):
        return softmax_of_rows(x)
    _, y, sums, _ = _exponentials(x, axis)
    y /= sums
    return y.astype(x.dtype, copy=False)


# The values of a row are read from memory once; the second and third time they are in the cache.
_SOFTMAX = """
extern "C" __global__ void softmax_of_rows(const T* x, T* y, int n) {
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    wide_t top = x[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = Largest()(top, x[i]);
    top = over_block(top, Largest());
    if (isinf(top)) top = 0;
    wide_t sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += exp(wide_t(x[i]) - top);
    sum = over_block(sum, Sum());
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = sum == 0 ? wide_t(0) : exp(wide_t(x[i]) - top) / sum;
}
"""
_SOFTMAX_GRAD = """
extern "C" __global__ void softmax_of_rows_grad(T* g, const T* y, int n) {
    g += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    wide_t dot = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) dot += wide_t(g[i]) * wide_t(y[i]);
    dot = over_block(dot, Sum());
    for (int i = threadIdx.x; i < n; i += blockDim.x) g[i] = (wide_t(g[i]) - dot) * wide_t(y[i]);
}
"""


def softmax_of_rows(x: Array) -> Array:
    """softmax over the last axis.

    The shift by the maximum is left out where the sums of the exponentials show that it was not needed.
    """
    if isinstance(x, np.ndarray) and x.dtype != np.float16 and x.size:
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.exp(x)
            sums = row_sums(y)
        if sums.min() > 1 / LARGE and sums.max() < LARGE:
            y /= sums
            return y
    if on_gpu(x):
        xp = array_module(x)
        y = xp.empty(x.shape, x.dtype)
        each_row(_SOFTMAX, "softmax_of_rows", x, xp.ascontiguousarray(x), y)
        return y
    return softmax(x, -1)


def softmax_of_rows_grad(g: Array, y: Array) -> Array:
    """softmax_grad over the last axis, in place of g, which is contiguous."""
    if on_gpu(g):
        each_row(_SOFTMAX_GRAD, "softmax_of_rows_grad", g, g, array_module(y).ascontiguousarray(y))
        return g
    g -= row_dots(g, y)
    g *= y
    return g


def softmax_grad(g: Array, y: Array, axis: Any) -> Array:
    """J^T g with J = diag(y) - y y^T."""
    if axis in (-1, y.ndim - 1) and on_gpu(g):
        return softmax_of_rows_grad(g.copy(), y)
    gx = g * y
    gx -= y * total(gx, axis, keepdims=True)
    return gx


def log_softmax(x: Array, axis: Any) -> Array:
    shifted, _, sums, _ = _exponentials(x, axis)
    return (shifted - array_module(x).log(sums)).astype(x.dtype, copy=False)


def log_softmax_grad(g: Array, y: Array, axis: Any) -> Array:
    """J^T g with J = I - 1 softmax^T; `y` is the log-softmax."""
    return g - array_module(y).exp(y) * total(g, axis, keepdims=True)


def logsumexp(x: Array, axis: Any) -> tuple[Array, Array]:
    """log sum exp(x) with the axis kept, and softmax(x), which is its gradient."""
    xp = array_module(x)
    _, y, sums, shift = _exponentials(x, axis)
    y /= sums
    result = xp.where(y.sum(axis=axis, keepdims=True) == 0, -np.inf, xp.log(sums) + shift)
    return result.astype(x.dtype, copy=False), y.astype(x.dtype, copy=False)


def _exponentials(x: Array, axis: Any) -> tuple[Array, Array, Array, Array]:
    """x - shift, its exponentials, their sums (1 where they are 0), and the shift; float16 goes to float32.

    The shift is the row's maximum, or 0 where that is infinite.
    """
    xp = array_module(x)
    wide = widened(x)
    if x.size == 0:
        nothing = wide.sum(axis=axis, keepdims=True)
        return wide, xp.empty_like(wide), nothing + 1, nothing
    shift = wide.max(axis=axis, keepdims=True)
    shift = xp.where(xp.isinf(shift), 0, shift).astype(wide.dtype, copy=False)
    shifted = wide - shift
    y = xp.exp(shifted)
    sums = y.sum(axis=axis, keepdims=True)
    sums += sums == 0
    return shifted, y, sums, shift
