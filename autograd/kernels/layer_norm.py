"""Layer normalisation over the last axis, forward and backward.

With x_hat = (x - mean) * rstd, the gradient through mean and variance is

    dx = rstd * (g' - mean(g') - x_hat * mean(g' * x_hat)),   g' = g * weight

Statistics of float16 are taken in float32.
"""

from __future__ import annotations

from ..backend import Array, array_module
from .total import centred, total, widened


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    """The result, and x_hat and rstd for the gradient."""
    x_hat = centred(widened(x), -1)
    rstd = 1 / array_module(x).sqrt((x_hat * x_hat).mean(axis=-1, keepdims=True) + eps)
    x_hat *= rstd
    x_hat = x_hat.astype(x.dtype, copy=False)
    return x_hat * weight + bias, x_hat, rstd


def layer_norm_grad(g: Array, x_hat: Array, rstd: Array, weight: Array) -> Array:
    """The gradient for x. Those for weight and bias are the sums of g * x_hat and of g over all rows."""
    dx = (g * weight).astype(rstd.dtype, copy=False)
    dx -= dx.mean(axis=-1, keepdims=True) + x_hat * (dx * x_hat).mean(axis=-1, keepdims=True)
    dx *= rstd
    return dx.astype(g.dtype, copy=False)


def sum_over_rows(g: Array) -> Array:
    return total(g, tuple(range(g.ndim - 1)))
