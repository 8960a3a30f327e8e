"""Layer normalisation over the last axis:

    x_hat = (x - mean) * rstd,    rstd = 1 / sqrt(variance + eps),    y = x_hat * weight + bias

and its gradient, which also flows through mean and variance. With g' = g * weight:

    dx = rstd * (g' - mean(g') - x_hat * mean(g' * x_hat)),    dweight = sum(g * x_hat),    dbias = sum(g)

Statistics of float16 are computed in float32.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .launch import launch_rows, on_gpu
from .sums import row_dots, row_products, row_sums, sum_over_rows, widened

FAR = 100  # if mean^2 / variance is larger than this, the rounding error of the mean matters


def _layer_norm_numpy(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    xp, n = array_module(x), x.shape[-1]
    wide = widened(x)
    mean = row_sums(wide) / n
    x_hat = wide - mean
    variance = row_dots(x_hat, x_hat) / n
    if xp is not np or (mean * mean > FAR * variance).any():  # on a GPU, a second pass costs less than a test
        x_hat -= row_sums(x_hat) / n
        variance = row_dots(x_hat, x_hat) / n
    rstd = 1 / xp.sqrt(variance + variance.dtype.type(eps))
    x_hat *= rstd
    x_hat = x_hat.astype(x.dtype, copy=False)
    y = x_hat * weight
    y += bias
    return y, x_hat, rstd


_CUDA = """
extern "C" __global__ void layer_norm(
    const T* x, const T* weight, const T* bias, T* y, T* x_hat, wide_t* rstd, wide_t eps, int n
) {
    size_t row = (size_t)blockIdx.x * n;
    wide_t sum = 0, square = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += wide_t(x[row + i]);
    wide_t mean = over_block(sum, Sum()) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        wide_t centred = wide_t(x[row + i]) - mean;
        square += centred * centred;
    }
    wide_t scale = wide_t(1) / sqrt(over_block(square, Sum()) / n + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        T value = (wide_t(x[row + i]) - mean) * scale;
        x_hat[row + i] = value;
        y[row + i] = wide_t(value) * wide_t(weight[i]) + wide_t(bias[i]);
    }
}
"""


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    """y, and x_hat and rstd for the gradient."""
    if not on_gpu(x):
        return _layer_norm_numpy(x, weight, bias, eps)
    xp = array_module(x)
    y, x_hat = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    rstd = xp.empty((*x.shape[:-1], 1), np.promote_types(x.dtype, np.float32))
    arrays = map(xp.ascontiguousarray, (x, weight, bias))
    launch_rows(_CUDA, "layer_norm", x, *arrays, y, x_hat, rstd, rstd.dtype.type(eps))
    return y, x_hat, rstd


def _layer_norm_grad_numpy(g: Array, x_hat: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The means over a row are products of g and of g * x_hat with the weight; dweight needs the latter anyway."""
    wide, x_hat, weight = (a.astype(rstd.dtype, copy=False) for a in (g, x_hat, weight))
    n = g.shape[-1]
    product = wide * x_hat
    dweight = sum_over_rows(product)
    mean_g, mean_gx = (row_products(a, weight) / n for a in (wide, product))
    array_module(g).multiply(x_hat, mean_gx, out=product)
    product += mean_g
    dx = wide * weight
    dx -= product
    dx *= rstd
    dx, dweight, dbias = (a.astype(g.dtype, copy=False) for a in (dx, dweight, sum_over_rows(wide)))
    return dx, dweight, dbias


_CUDA_GRAD = """
extern "C" __global__ void layer_norm_grad(
    const T* g, const T* x_hat, const wide_t* rstd, const T* weight, T* dx, wide_t* product, int n
) {
    size_t row = (size_t)blockIdx.x * n;
    wide_t sum = 0, dot = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        wide_t scaled = wide_t(g[row + i]) * wide_t(weight[i]);
        sum += scaled;
        dot += scaled * wide_t(x_hat[row + i]);
        product[row + i] = wide_t(g[row + i]) * wide_t(x_hat[row + i]);  // its sum over all rows is dweight
    }
    wide_t mean_g = over_block(sum, Sum()) / n;
    wide_t mean_gx = over_block(dot, Sum()) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        dx[row + i] =
            rstd[blockIdx.x] * (wide_t(g[row + i]) * wide_t(weight[i]) - mean_g - wide_t(x_hat[row + i]) * mean_gx);
}
"""


def layer_norm_grad(g: Array, x_hat: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients for x, weight and bias."""
    if not on_gpu(g):
        return _layer_norm_grad_numpy(g, x_hat, rstd, weight)
    xp = array_module(g)
    dx, product = xp.empty(g.shape, g.dtype), xp.empty(g.shape, rstd.dtype)
    arrays = map(xp.ascontiguousarray, (g, x_hat, rstd, weight))
    launch_rows(_CUDA_GRAD, "layer_norm_grad", g, *arrays, dx, product)
    return dx, sum_over_rows(product).astype(g.dtype, copy=False), sum_over_rows(g)
