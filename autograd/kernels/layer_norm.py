"""Layer normalisation over the last axis:

    x_hat = (x - mean) * rstd,    rstd = 1 / sqrt(variance + eps),    y = x_hat * weight + bias

and its gradient, which also flows through mean and variance. With g' = g * weight:

    dx = rstd * (g' - mean(g') - x_hat * mean(g' * x_hat)),    dweight = sum(g * x_hat),    dbias = sum(g)

Statistics of float16 are computed in float32.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .launch import SHARED, THREADS, compiled, launch_rows, on_gpu
from .parts import division, merge
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
    const T* x, const T* weight, const T* bias, T* y, T* x_hat, wide_t* rstd, wide_t eps, long long rows, int n
) {
    if (ROW >= rows) return;
    const long long row = ROW * n;
    wide_t sum = 0, square = 0;
    EACH(i) sum += wide_t(x[row + i]);
    wide_t mean = over_row(sum, Sum()) / n;
    EACH(i) {
        wide_t centred = wide_t(x[row + i]) - mean;
        square += centred * centred;
    }
    wide_t scale = wide_t(1) / sqrt(over_row(square, Sum()) / n + eps);
    if (threadIdx.x % TEAM == 0) rstd[ROW] = scale;
    EACH(i) {
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


# A block for each part of the rows. Its teams of threads take turns at them; each adds up its own dweight and dbias.
_CUDA_GRAD = """
extern "C" __global__ void layer_norm_grad(
    const T* g, const T* x_hat, const wide_t* rstd, const T* weight, T* dx, wide_t* parts, long long rows,
    long long size, int n
) {
    extern __shared__ wide_t sums[];
    const int team = threadIdx.x / TEAM, teams = blockDim.x / TEAM;
    wide_t *dweight = sums + 2 * team * n, *dbias = dweight + n;
    EACH(i) dweight[i] = dbias[i] = 0;
    const long long last = min(rows, (blockIdx.x + 1) * size);
    for (long long row = blockIdx.x * size + team; row < last; row += teams) {
        const T *own_g = g + row * n, *own_x = x_hat + row * n;
        wide_t sum = 0, dot = 0;
        EACH(i) {
            const wide_t upstream = own_g[i], hat = own_x[i], scaled = upstream * wide_t(weight[i]);
            sum += scaled;
            dot += scaled * hat;
            dweight[i] += upstream * hat;
            dbias[i] += upstream;
        }
        const wide_t mean_g = over_row(sum, Sum()) / n, mean_gx = over_row(dot, Sum()) / n;
        EACH(i)
            dx[row * n + i] =
                rstd[row] * (wide_t(own_g[i]) * wide_t(weight[i]) - mean_g - wide_t(own_x[i]) * mean_gx);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * n; i += blockDim.x) {
        wide_t sum = 0;
        for (int other = 0; other < teams; other++) sum += sums[2 * other * n + i];
        parts[(long long)i * gridDim.x + blockIdx.x] = sum;
    }
}
"""


def layer_norm_grad(g: Array, x_hat: Array, rstd: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients for x, weight and bias."""
    n = g.shape[-1]
    shared = 2 * n * rstd.dtype.itemsize  # for a team
    if not on_gpu(g) or shared > SHARED:
        return _layer_norm_grad_numpy(g, x_hat, rstd, weight)
    xp = array_module(g)
    rows, size, count = division(g)
    team = 32 if shared * THREADS // 32 <= SHARED else THREADS
    dx, parts = xp.empty(g.shape, g.dtype), xp.empty((2 * n, count), rstd.dtype)
    arrays = *map(xp.ascontiguousarray, (g, x_hat, rstd, weight)), dx, parts
    kernel = compiled(_CUDA_GRAD, "layer_norm_grad", g.dtype.name, team)
    sizes = np.int64(rows), np.int64(size), np.int32(n)
    kernel((count,), (THREADS,), (*arrays, *sizes), shared_mem=shared * THREADS // team)
    sums = merge(parts, g.dtype)
    return dx, sums[:n], sums[n:]
