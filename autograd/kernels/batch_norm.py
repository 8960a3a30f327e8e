"""Batch normalisation: each channel, the last axis, over all rows x (n, C).

    y = x_hat * weight + bias,    x_hat = (x - mean) * rstd,    rstd = 1 / sqrt(variance + eps)

and its gradient, which also flows through mean and variance, unless these are constants:

    dx = weight * rstd * (g - mean(g) - x_hat * mean(g * x_hat)),    dweight = sum(g * x_hat),    dbias = sum(g)
    dx = weight * rstd * g                                           for constants

In NumPy, the mean is subtracted first only where it is large beside the deviations: elsewhere, it is one pass less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import on_gpu
from .moments import joined_rows, near_zero, parts, repeated
from .parts import division, launch_parts, merge
from .sums import sum_over_rows, wide_dtype, widened

# y


def _batch_norm_numpy(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    xp, joined, near = array_module(x), joined_rows(x), near_zero(mean, rstd**-2)
    y = xp.empty(x.shape, wide_dtype(x))
    scale = rstd * weight
    mean, scale, shift = repeated(joined, mean, scale, bias - mean * scale if near else bias)
    for values, out in parts(joined, x, y):
        xp.multiply(values if near else values - mean, scale, out=out)
        out += shift
    return y.astype(x.dtype, copy=False)


_CUDA = """
extern "C" __global__ void batch_norm(
    const T* x, const wide_t* mean, const wide_t* scale, const wide_t* bias, T* y, long long rows, long long size,
    int channels
) {
    PART
    if (!inside) return;
    const wide_t origin = mean[channel], factor = scale[channel], shift = bias[channel];
    EACH_ROW y[row * channels + channel] = (wide_t(x[row * channels + channel]) - origin) * factor + shift;
}
"""


def batch_norm(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    if not on_gpu(x):
        return _batch_norm_numpy(x, mean, rstd, weight, bias)
    xp = array_module(x)
    y = xp.empty(x.shape, x.dtype)
    channels = xp.ascontiguousarray(mean), rstd * weight, xp.ascontiguousarray(bias, wide_dtype(x))
    launch_parts(_CUDA, "batch_norm", x, xp.ascontiguousarray(x), *channels, y)
    return y


# sum(g) and sum(g * x_hat)


def _gradient_sums_numpy(g: Array, x: Array, mean: Array, rstd: Array) -> Array:
    joined, channels, near = joined_rows(x), x.shape[-1], near_zero(mean, rstd**-2)
    sums = array_module(x).zeros((2, channels), np.float64)
    (shift,) = repeated(joined, mean)
    for upstream, values in parts(joined, g, x):
        upstream = widened(upstream)
        products = upstream * (values if near else values - shift)
        sums[0] += sum_over_rows(upstream.reshape(-1, channels))
        sums[1] += sum_over_rows(products.reshape(-1, channels))
    if near:
        sums[1] -= mean * sums[0]
    sums[1] *= rstd
    return sums.astype(wide_dtype(x))


_GRADIENT_SUMS = """
extern "C" __global__ void batch_norm_sums(
    const T* g, const T* x, const wide_t* mean, const wide_t* rstd, wide_t* sums, wide_t* dots, long long rows,
    long long size, int channels
) {
    PART
    wide_t sum = 0, dot = 0;
    const wide_t origin = inside ? mean[channel] : wide_t(0);
    EACH_ROW {
        const wide_t upstream = g[row * channels + channel];
        sum += upstream;
        dot += upstream * (wide_t(x[row * channels + channel]) - origin);
    }
    sum = over_warps(sum);
    dot = over_warps(dot);
    if (inside && threadIdx.x < 32) {
        sums[(long long)channel * gridDim.x + blockIdx.x] = sum;
        dots[(long long)channel * gridDim.x + blockIdx.x] = dot * rstd[channel];
    }
}
"""


def _gradient_sums(g: Array, x: Array, mean: Array, rstd: Array) -> Array:
    if not on_gpu(g):
        return _gradient_sums_numpy(g, x, mean, rstd)
    xp = array_module(g)
    partial = xp.empty((2, x.shape[-1], division(x)[2]), wide_dtype(x))
    launch_parts(_GRADIENT_SUMS, "batch_norm_sums", x, *map(xp.ascontiguousarray, (g, x, mean, rstd)), *partial)
    return merge(partial, partial.dtype)


# dx = scale * g - slope * (x - mean) - shift, one value of each for a channel


def _grad_input_numpy(g: Array, x: Array, mean: Array, scale: Array, slope: Array, shift: Array, near: bool) -> Array:
    xp, joined = array_module(x), joined_rows(x)
    dx = xp.empty(x.shape, wide_dtype(x))
    mean, scale, slope, shift = repeated(joined, mean, scale, slope, shift - slope * mean if near else shift)
    for upstream, values, out in parts(joined, g, x, dx):
        through = (values if near else values - mean) * slope
        through += shift
        xp.multiply(upstream, scale, out=out)
        out -= through
    return dx.astype(x.dtype, copy=False)


_CUDA_INPUT = """
extern "C" __global__ void batch_norm_input(
    const T* g, const T* x, const wide_t* mean, const wide_t* scale, const wide_t* slope, const wide_t* shift, T* dx,
    long long rows, long long size, int channels
) {
    PART
    if (!inside) return;
    const wide_t a = scale[channel], b = slope[channel], c = shift[channel], origin = mean[channel];
    EACH_ROW {
        const long long i = row * channels + channel;
        dx[i] = a * wide_t(g[i]) - b * (wide_t(x[i]) - origin) - c;
    }
}
"""


def _grad_input(g: Array, x: Array, mean: Array, rstd: Array, scale: Array, slope: Array, shift: Array) -> Array:
    if not on_gpu(g):
        return _grad_input_numpy(g, x, mean, scale, slope, shift, near_zero(mean, rstd**-2))
    xp = array_module(g)
    dx = xp.empty(x.shape, x.dtype)
    arrays = map(xp.ascontiguousarray, (g, x, mean, scale, slope, shift))
    launch_parts(_CUDA_INPUT, "batch_norm_input", x, *arrays, dx)
    return dx


def batch_norm_grad(
    g: Array, x: Array, mean: Array, rstd: Array, weight: Array, constant: bool, needs: list[bool]
) -> tuple[Any, ...]:
    """Gradients for x, weight and bias, if needed. If `constant`, mean and variance do not depend on x."""
    dx = dweight = dbias = None
    scale = rstd * weight
    if not constant or any(needs[1:]):
        sums, dots = _gradient_sums(g, x, mean, rstd)
        dweight, dbias = (a.astype(weight.dtype, copy=False) for a in (dots, sums))
    if needs[0] and constant:
        dx = (g * scale).astype(x.dtype, copy=False)
    elif needs[0]:
        n = x.size // x.shape[-1]
        dx = _grad_input(g, x, mean, rstd, scale, scale * rstd * dots / n, scale * sums / n)
    return dx, dweight, dbias
