"""Batch normalisation: each channel, the last axis, over all rows x (n, C).

    y = x_hat * weight + bias,    x_hat = (x - mean) * rstd,    rstd = 1 / sqrt(variance + eps)

and its gradient, which also flows through mean and variance, unless these are constants:

    dx = weight * rstd * (g - mean(g) - x_hat * mean(g * x_hat)),    dweight = sum(g * x_hat),    dbias = sum(g)
    dx = weight * rstd * g                                           for constants

There may be a million rows. Mean and variance are therefore computed for parts of them, whose rows are few enough to be
added up accurately and to stay in the cache, and put together (Chan, Golub and LeVeque, 1979):

    mean = sum(n_part * mean_part) / n,    n variance = sum(n_part * variance_part + n_part * (mean_part - mean)^2)

Statistics of float16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, compiled, elementwise, launch_rows, on_gpu
from .sums import BLAS_LIMIT, as_rows, sum_over_rows, total, widened

PART = 1 << 17  # bytes: several arrays of a part's size are in a core's level 2 cache at a time
MOST_PARTS, LEAST_ROWS = 512, 64  # on a GPU


def _parts(rows: Array) -> Iterator[slice]:
    count = min(BLAS_LIMIT, max(1, PART // max(1, rows.shape[1] * rows.dtype.itemsize)))
    return (slice(first, first + count) for first in range(0, len(rows), count))


def _wide(x: Array) -> Any:
    return np.promote_types(x.dtype, np.float32)


# Mean and variance of each channel


def _moments_numpy(x: Array) -> tuple[Array, Array]:
    rows = as_rows(x)
    parts = list(_parts(rows))
    counts, means, squares = array_module(x).empty((3, len(parts), rows.shape[1]), np.float64)
    for i, part in enumerate(parts):
        values = widened(rows[part])
        mean = sum_over_rows(values) / len(values)
        values = values - mean
        values *= values
        counts[i], means[i], squares[i] = len(values), mean, sum_over_rows(values)
    mean = total(counts * means, 0) / len(rows)
    variance = total(squares + counts * (means - mean) ** 2, 0) / len(rows)
    return mean.astype(_wide(x)), variance.astype(_wide(x))


# A block for each part of the rows and 32 channels, one for each lane. Its warps take turns at the rows.
_PARTS = """
__device__ wide_t over_warps(wide_t value) {
    __shared__ wide_t of_warp[32][32];
    __syncthreads();
    of_warp[threadIdx.x / 32][threadIdx.x % 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += of_warp[warp][threadIdx.x % 32];
    return value;
}
"""
_MOMENTS = f"""{_PARTS}
extern "C" __global__ void batch_moments(
    const T* x, wide_t* means, wide_t* squares, long long rows, long long size, int channels
) {{
    const int channel = blockIdx.y * 32 + threadIdx.x % 32;
    const long long first = blockIdx.x * size, last = min(rows, first + size);
    wide_t sum = 0, square = 0;
    for (long long row = first + threadIdx.x / 32; channel < channels && row < last; row += blockDim.x / 32)
        sum += wide_t(x[row * channels + channel]);
    const wide_t mean = over_warps(sum) / (last - first);
    for (long long row = first + threadIdx.x / 32; channel < channels && row < last; row += blockDim.x / 32) {{
        const wide_t centred = wide_t(x[row * channels + channel]) - mean;
        square += centred * centred;
    }}
    square = over_warps(square);
    if (channel < channels && threadIdx.x < 32) {{
        means[(long long)channel * gridDim.x + blockIdx.x] = mean;
        squares[(long long)channel * gridDim.x + blockIdx.x] = square;
    }}
}}
"""
# A block for each channel, with n parts.
_MERGE = """
extern "C" __global__ void merge_moments(
    const wide_t* means, const wide_t* squares, wide_t* mean, wide_t* variance, long long rows, long long size, int n
) {
    means += (size_t)blockIdx.x * n;
    squares += (size_t)blockIdx.x * n;
    wide_t sum = 0, square = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += means[i] * wide_t(min(size, rows - i * size));
    const wide_t whole = over_block(sum, Sum()) / rows;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const wide_t apart = means[i] - whole;
        square += squares[i] + apart * apart * wide_t(min(size, rows - i * size));
    }
    square = over_block(square, Sum());
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = whole;
        variance[blockIdx.x] = square / rows;
    }
}
"""


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance (divided by n) of each channel."""
    if not on_gpu(x):
        return _moments_numpy(x)
    (means, squares), rows, size = _launch_parts(_MOMENTS, "batch_moments", x)
    mean, variance = array_module(x).empty((2, x.shape[-1]), _wide(x))
    launch_rows(_MERGE, "merge_moments", means, means, squares, mean, variance, np.int64(rows), np.int64(size))
    return mean, variance


def _launch_parts(source: str, name: str, *arrays: Array) -> tuple[Array, int, int]:
    """Two results (2, C, parts) of a kernel for parts of the rows, the number of rows, and of those in a part."""
    x = arrays[0]
    xp, channels = array_module(x), x.shape[-1]
    rows = x.size // channels
    size = max(LEAST_ROWS, -(-rows // MOST_PARTS))
    count = -(-rows // size)
    results = xp.empty((2, channels, count), _wide(x))
    arguments = *map(xp.ascontiguousarray, arrays), *results, np.int64(rows), np.int64(size), np.int32(channels)
    compiled(source, name, x.dtype.name)((count, -(-channels // 32)), (THREADS,), arguments)
    return results, rows, size


# y


def _batch_norm_numpy(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    y = array_module(x).empty(x.shape, x.dtype)
    rows, results, scale = as_rows(x), as_rows(y), rstd * weight
    for part in _parts(rows):
        values = rows[part] - mean
        values *= scale
        values += bias
        results[part] = values
    return y


_CUDA = """
    const long long c = i % channels;
    y = (wide_t(x) - mean[c]) * rstd[c] * wide_t(weight[c]) + wide_t(bias[c]);
"""


def batch_norm(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    if not on_gpu(x):
        return _batch_norm_numpy(x, mean, rstd, weight, bias)
    arguments = "T x, raw W mean, raw W rstd, raw P weight, raw P bias, int64 channels"
    kernel = elementwise(arguments, "T y", _CUDA, "batch_norm", x.dtype.name)
    return kernel(x, mean, rstd, weight, bias, np.int64(x.shape[-1]))


# Gradients


def _grad_sums_numpy(g: Array, x: Array, mean: Array, rstd: Array) -> tuple[Array, Array]:
    """sum(g) and sum(g * x_hat)."""
    upstream, rows = as_rows(g), as_rows(x)
    parts = list(_parts(rows))
    sums, dots = array_module(x).empty((2, len(parts), rows.shape[1]), np.float64)
    for i, part in enumerate(parts):
        values, centred = widened(upstream[part]), rows[part] - mean
        centred *= values
        sums[i], dots[i] = sum_over_rows(values), sum_over_rows(centred)
    return total(sums, 0).astype(rstd.dtype), (total(dots, 0) * rstd).astype(rstd.dtype)


_GRAD_SUMS = f"""{_PARTS}
extern "C" __global__ void batch_norm_sums(
    const T* g, const T* x, const wide_t* mean, const wide_t* rstd, wide_t* sums, wide_t* dots, long long rows,
    long long size, int channels
) {{
    const int channel = blockIdx.y * 32 + threadIdx.x % 32;
    const long long first = blockIdx.x * size, last = min(rows, first + size);
    wide_t sum = 0, dot = 0;
    for (long long row = first + threadIdx.x / 32; channel < channels && row < last; row += blockDim.x / 32) {{
        const wide_t upstream = g[row * channels + channel];
        sum += upstream;
        dot += upstream * (wide_t(x[row * channels + channel]) - mean[channel]) * rstd[channel];
    }}
    sum = over_warps(sum);
    dot = over_warps(dot);
    if (channel < channels && threadIdx.x < 32) {{
        sums[(long long)channel * gridDim.x + blockIdx.x] = sum;
        dots[(long long)channel * gridDim.x + blockIdx.x] = dot;
    }}
}}
"""


def grad_sums(g: Array, x: Array, mean: Array, rstd: Array) -> tuple[Array, Array]:
    if not on_gpu(g):
        return _grad_sums_numpy(g, x, mean, rstd)
    results, _, _ = _launch_parts(_GRAD_SUMS, "batch_norm_sums", g, x, mean, rstd)
    sums, dots = total(results, -1)
    return sums, dots


def _grad_input_numpy(g: Array, x: Array, mean: Array, scale: Array, shift: Array, slope: Array) -> Array:
    """scale * g - shift - slope * (x - mean)"""
    dx = array_module(x).empty(x.shape, x.dtype)
    upstream, rows, results = as_rows(g), as_rows(x), as_rows(dx)
    for part in _parts(rows):
        through = rows[part] - mean
        through *= slope
        through += shift
        values = upstream[part] * scale
        values -= through
        results[part] = values
    return dx


_CUDA_INPUT = """
    const long long c = i % channels;
    dx = scale[c] * wide_t(g) - shift[c] - slope[c] * (wide_t(x) - mean[c]);
"""


def _grad_input(g: Array, x: Array, mean: Array, scale: Array, shift: Array, slope: Array) -> Array:
    if not on_gpu(g):
        return _grad_input_numpy(g, x, mean, scale, shift, slope)
    arguments = "T g, T x, raw W mean, raw W scale, raw W shift, raw W slope, int64 channels"
    kernel = elementwise(arguments, "T dx", _CUDA_INPUT, "batch_norm_input", x.dtype.name)
    return kernel(g, x, mean, scale, shift, slope, np.int64(x.shape[-1]))


def batch_norm_grad(
    g: Array, x: Array, mean: Array, rstd: Array, weight: Array, constant: bool, needs: list[bool]
) -> tuple[Any, ...]:
    """Gradients for x, weight and bias, if needed. If `constant`, mean and variance do not depend on x."""
    dx = dweight = dbias = None
    scale = rstd * weight
    if not constant or any(needs[1:]):
        sums, dots = grad_sums(g, x, mean, rstd)
        dweight, dbias = (a.astype(weight.dtype, copy=False) for a in (dots, sums))
    if needs[0] and constant:
        dx = (g * scale).astype(x.dtype, copy=False)
    elif needs[0]:
        n = x.size // x.shape[-1]
        dx = _grad_input(g, x, mean, scale, scale * sums / n, scale * rstd * dots / n)
    return dx, dweight, dbias
