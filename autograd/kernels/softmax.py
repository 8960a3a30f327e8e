"""softmax, its logarithm and logsumexp, for logits of any size. With m = max(x) and s = sum_j exp(x_j - m):

    softmax(x)_i = exp(x_i - m) / s,    log_softmax(x)_i = x_i - m - log(s),    logsumexp(x) = m + log(s)

Nothing overflows, and log(s), subtracted last, keeps its digits beside a large m. A row that is -inf throughout
(everything masked) has no distribution: its softmax is zero and its logsumexp -inf, instead of the NaN of 0 / 0.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .exponential import EXP, UNIT
from .launch import launch_rows, on_gpu
from .sums import row_dots, row_sums, total, widened

LARGE = 1e26  # e^60: this and its inverse are well within float32


# Over the last axis: softmax, and its gradient (g - sum(g y)) y, in place.


def _softmax_of_rows_numpy(x: Array, unit: float) -> Array:
    """Do not subtract the maximum if the sums of the exponentials show that there was no need to."""
    if isinstance(x, np.ndarray) and x.dtype != np.float16 and x.size:
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.exp(x) if unit == 1 else getattr(np, EXP)(x)
            sums = row_sums(y)
        if sums.min() > 1 / LARGE and sums.max() < LARGE:
            y /= sums
            return y
    return softmax(x if unit == 1 else x * x.dtype.type(1 / unit), -1)


# The first loop reads a row from memory, the second and third from the cache.
_SOFTMAX = """
extern "C" __global__ void softmax_of_rows(
    const T* x, T* y, long long pitch_x, long long pitch_y, long long rows, int n
) {
    if (ROW >= rows) return;
    x += ROW * pitch_x;
    y += ROW * pitch_y;
    wide_t top = x[0];
    EACH(i) top = Max()(top, wide_t(x[i]));
    top = over_row(top, Max());
    if (isinf(top)) top = 0;
    wide_t sum = 0;
    EACH(i) sum += exp(wide_t(x[i]) - top);
    sum = over_row(sum, Sum());
    EACH(i) y[i] = sum == 0 ? wide_t(0) : exp(wide_t(x[i]) - top) / sum;
}
"""
_SOFTMAX_GRAD = """
extern "C" __global__ void softmax_of_rows_grad(
    T* g, const T* y, long long pitch_g, long long pitch_y, long long rows, int n
) {
    if (ROW >= rows) return;
    g += ROW * pitch_g;
    y += ROW * pitch_y;
    wide_t dot = 0;
    EACH(i) dot += wide_t(g[i]) * wide_t(y[i]);
    dot = over_row(dot, Sum());
    EACH(i) g[i] = (wide_t(g[i]) - dot) * wide_t(y[i]);
}
"""


def unit_of(x: Array) -> float:
    """The factor that `softmax_of_rows` is fastest with, for logits of the device and dtype of x."""
    return UNIT if isinstance(x, np.ndarray) and x.dtype == np.float32 else 1.0


def softmax_of_rows(x: Array, unit: float = 1.0, overwrite: bool = False) -> Array:
    """softmax(x / unit), with the unit 1 or `unit_of(x)`. With `overwrite`, a GPU writes it over x."""
    if not on_gpu(x):
        return _softmax_of_rows_numpy(x, unit)
    x, pitch = _with_pitch(x)
    y = x if overwrite else array_module(x).empty_like(x)
    launch_rows(_SOFTMAX, "softmax_of_rows", x, x, y, np.int64(pitch), np.int64(_with_pitch(y)[1]))
    return y


def softmax_of_rows_grad(g: Array, y: Array) -> Array:
    """Overwrite g."""
    if on_gpu(g):
        (g, pitch_g), (y, pitch_y) = _with_pitch(g), _with_pitch(y)
        launch_rows(_SOFTMAX_GRAD, "softmax_of_rows_grad", g, g, y, np.int64(pitch_g), np.int64(pitch_y))
    else:
        g -= row_dots(g, y)
        g *= y
    return g


def _with_pitch(x: Array) -> tuple[Array, int]:
    """x, or a copy, with all rows at one distance from the next, and that distance in values. Rows may be padded."""
    n = x.shape[-1]
    pitch = x.strides[-2] // x.itemsize if x.ndim > 1 else n
    strides = accumulate((*x.shape[-2:0:-1],), mul, initial=pitch * x.itemsize)
    if x.strides == (*reversed([*strides][: x.ndim - 1]), x.itemsize):
        return x, pitch
    return array_module(x).ascontiguousarray(x), n


# Over any axis.


def softmax(x: Array, axis: Any) -> Array:
    if axis in (-1, x.ndim - 1) and on_gpu(x):
        return softmax_of_rows(x)
    _, y, sums, _ = _exponentials(x, axis)
    y /= sums
    return y.astype(x.dtype, copy=False)


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
    """log sum exp(x) with the axis kept, and its gradient softmax(x)."""
    xp = array_module(x)
    _, y, sums, shift = _exponentials(x, axis)
    y /= sums
    result = xp.where(y.any(axis=axis, keepdims=True), xp.log(sums) + shift, -np.inf)
    return result.astype(x.dtype, copy=False), y.astype(x.dtype, copy=False)


def _exponentials(x: Array, axis: Any) -> tuple[Array, Array, Array, Array]:
    """x - shift, its exponentials, their sums (1 where they are 0), and the shift; all in float32 if x is float16.

    The shift is the maximum, or 0 where that is infinite.
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
    sums = total(y, axis, keepdims=True)
    sums += sums == 0
    return shifted, y, sums, shift
