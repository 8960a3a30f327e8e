"""softmax and its logarithm, right for logits of any size.

The maximum is subtracted first, so nothing overflows. A row that is -inf throughout (everything masked) has no
distribution: its softmax is zero and its logsumexp -inf, instead of the NaN of 0 / 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .total import total, widened


def softmax(x: Array, axis: Any) -> Array:
    y, sums, _ = _exponentials(x, axis)
    y /= sums + (sums == 0)
    return y.astype(x.dtype, copy=False)


def softmax_grad(g: Array, y: Array, axis: Any) -> Array:
    """J^T g with J = diag(y) - y y^T."""
    gx = g * y
    gx -= y * total(gx, axis, keepdims=True)
    return gx


def logsumexp(x: Array, axis: Any) -> Array:
    """log sum exp(x), the axis kept."""
    xp = array_module(x)
    _, sums, shift = _exponentials(x, axis)
    empty = sums == 0
    result = xp.where(empty, -np.inf, xp.log(sums + empty) + shift)
    return result.astype(x.dtype, copy=False)


def log_softmax(x: Array, axis: Any) -> Array:
    xp = array_module(x)
    lse = logsumexp(x, axis)
    return x - xp.where(xp.isneginf(lse), 0, lse).astype(x.dtype, copy=False)


def log_softmax_grad(g: Array, y: Array, axis: Any) -> Array:
    """J^T g with J = I - 1 softmax^T; `y` is the log-softmax."""
    return g - array_module(y).exp(y) * total(g, axis, keepdims=True)


def _exponentials(x: Array, axis: Any) -> tuple[Array, Array, Array]:
    """exp(x - shift), its sums, and the shift: the row's maximum, 0 where that is infinite. float16 goes to float32."""
    xp = array_module(x)
    wide = widened(x)
    if x.size == 0:
        return xp.empty_like(wide), wide.sum(axis=axis, keepdims=True), wide.sum(axis=axis, keepdims=True)
    shift = wide.max(axis=axis, keepdims=True)
    shift = xp.where(xp.isinf(shift), 0, shift).astype(wide.dtype, copy=False)
    y = xp.exp(wide - shift)
    return y, y.sum(axis=axis, keepdims=True), shift
