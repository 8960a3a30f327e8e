"""Layer normalisation over the last axis, forward and backward.

With x_hat = (x - mean) * rstd, the gradient through mean and variance is

    dx = rstd * (g' - mean(g') - x_hat * mean(g' * x_hat)),   g' = g * weight

Statistics of float16 are taken in float32.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .total import as_rows, row_dots, row_sums, sum_over_rows, widened

FAR = 100  # beyond this square of mean / deviation, the rounding of the mean shows


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    """The result, and x_hat and rstd for the gradient."""
    xp, n = array_module(x), x.shape[-1]
    wide = widened(x)
    mean = row_sums(wide) / n
    x_hat = wide - mean
    variance = row_dots(x_hat, x_hat) / n
    if xp is not np or (mean * mean > FAR * variance).any():  # to look at values on a GPU would cost more than a pass
        x_hat -= row_sums(x_hat) / n
        variance = row_dots(x_hat, x_hat) / n
    rstd = 1 / xp.sqrt(variance + variance.dtype.type(eps))
    x_hat *= rstd
    x_hat = x_hat.astype(x.dtype, copy=False)
    y = x_hat * weight
    y += bias
    return y, x_hat, rstd


def layer_norm_grad(g: Array, x_hat: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The gradients for x, weight and bias.

    The means of g' and g' * x_hat over a row are products of g and g * x_hat with the weight, and the latter is summed
    over all rows for the weight's gradient.
    """
    wide, x_hat, weight = (a.astype(rstd.dtype, copy=False) for a in (g, x_hat, weight))
    n = g.shape[-1]
    product = wide * x_hat
    dweight = sum_over_rows(product)
    mean_g, mean_gx = (_times(a, weight) / n for a in (wide, product))
    array_module(g).multiply(x_hat, mean_gx, out=product)
    product += mean_g
    dx = wide * weight
    dx -= product
    dx *= rstd
    dx, dweight, dbias = (a.astype(g.dtype, copy=False) for a in (dx, dweight, sum_over_rows(wide)))
    return dx, dweight, dbias


def _times(x: Array, vector: Array) -> Array:
    """(..., n) times (n,), as (..., 1)."""
    return (as_rows(x) @ vector).reshape(*x.shape[:-1], 1)
