"""Batch normalisation: each channel, the last axis, over all rows x (n, C).

    y = x_hat * weight + bias,    x_hat = (x - mean) * rstd,    rstd = 1 / sqrt(variance + eps)

and its gradient, which also flows through mean and variance, unless these are constants:

    dx = weight * rstd * (g - mean(g) - x_hat * mean(g * x_hat)),    dweight = sum(g * x_hat),    dbias = sum(g)
    dx = weight * rstd * g                                           for constants

There may be a million rows, so both bodies go over parts of them: the sum over a part is accurate, and in NumPy a part
stays in the cache. Statistics of float16 are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, compiled, elementwise, launch_rows, on_gpu
from .sums import sum_over_rows, total, widened

PART = 1 << 18  # bytes of one array: several of them fit into the level 2 cache of a core
LONG = 1 << 14  # values: NumPy broadcasts along rows of this length twice as fast as along a few channels
NEAR = 4  # up to this mean^2 / variance, rounding errors are harmless without subtracting the mean first
MOST_PARTS, LEAST_ROWS = 512, 64  # on a GPU


def _wide(x: Array) -> Any:
    return np.promote_types(x.dtype, np.float32)


def _joined(x: Array) -> int:
    """The number of rows that are joined to a long one."""
    channels = x.shape[-1]
    return math.gcd(x.size // channels, 1 << max(0, (LONG // channels).bit_length() - 1))


def _parts(joined: int, *arrays: Array) -> Iterator[list[Array]]:
    """The same part of all arrays, in long rows."""
    x = arrays[0]
    length = joined * x.shape[-1]
    long = [a.reshape(x.size // length, length) for a in arrays]
    count = max(1, PART // (length * x.dtype.itemsize))
    return ([rows[first : first + count] for rows in long] for first in range(0, len(long[0]), count))


def _repeated(joined: int, *channels: Array) -> list[Array]:
    """What there is for each channel, to match long rows."""
    return [array_module(c).broadcast_to(c, (joined, c.size)).reshape(joined * c.size) for c in channels]


def _near(mean: Array, variance: Array) -> bool:
    """True if no channel is far from zero. On a GPU, where subtracting costs nothing, this would synchronise."""
    return isinstance(mean, np.ndarray) and not (mean * mean > NEAR * variance).any()


# Mean and variance of each channel


def _moments_numpy(x: Array) -> tuple[Array, Array]:
    mean, square = _means_of_powers(x, None)
    if _near(mean, square - mean * mean):
        return mean.astype(_wide(x)), (square - mean * mean).astype(_wide(x))
    origin = mean.astype(_wide(x))
    mean, square = _means_of_powers(x, origin)
    return (origin + mean).astype(_wide(x)), (square - mean * mean).astype(_wide(x))


def _means_of_powers(x: Array, origin: Array | None) -> Array:
    """The means of x - origin and of its square, in float64."""
    joined, channels = _joined(x), x.shape[-1]
    sums = array_module(x).zeros((2, channels), np.float64)
    (shift,) = (None,) if origin is None else _repeated(joined, origin)
    for (values,) in _parts(joined, x):
        values = widened(values) if origin is None else values - shift
        sums[0] += sum_over_rows(values.reshape(-1, channels))
        sums[1] += sum_over_rows((values * values).reshape(-1, channels))
    return sums / (x.size // channels)


# A block for each part of the rows and 32 channels, one for each lane. Its warps take turns at the rows.
_OVER_WARPS = """
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
_MOMENTS = f"""{_OVER_WARPS}
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
# A block for each channel, with n parts (Chan, Golub and LeVeque, 1979):
#   mean = sum(n_part mean_part) / n,    n variance = sum(n_part variance_part + n_part (mean_part - mean)^2)
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
    xp, joined, near = array_module(x), _joined(x), _near(mean, rstd**-2)
    y = xp.empty(x.shape, _wide(x))
    scale = rstd * weight
    mean, scale, shift = _repeated(joined, mean, scale, bias - mean * scale if near else bias)
    for values, out in _parts(joined, x, y):
        xp.multiply(values if near else values - mean, scale, out=out)
        out += shift
    return y.astype(x.dtype, copy=False)


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


# sum(g) and sum(g * x_hat)


def _gradient_sums_numpy(g: Array, x: Array, mean: Array, rstd: Array) -> Array:
    joined, channels, near = _joined(x), x.shape[-1], _near(mean, rstd**-2)
    sums = array_module(x).zeros((2, channels), np.float64)
    (shift,) = _repeated(joined, mean)
    for upstream, values in _parts(joined, g, x):
        upstream = widened(upstream)
        products = upstream * (values if near else values - shift)
        sums[0] += sum_over_rows(upstream.reshape(-1, channels))
        sums[1] += sum_over_rows(products.reshape(-1, channels))
    if near:
        sums[1] -= mean * sums[0]
    sums[1] *= rstd
    return sums.astype(_wide(x))


_GRADIENT_SUMS = f"""{_OVER_WARPS}
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


def _gradient_sums(g: Array, x: Array, mean: Array, rstd: Array) -> Array:
    if not on_gpu(g):
        return _gradient_sums_numpy(g, x, mean, rstd)
    results, _, _ = _launch_parts(_GRADIENT_SUMS, "batch_norm_sums", g, x, mean, rstd)
    return total(results, -1)


# dx = scale * g - slope * (x - mean) - shift, one value of each for a channel


def _grad_input_numpy(g: Array, x: Array, mean: Array, scale: Array, slope: Array, shift: Array, near: bool) -> Array:
    xp, joined = array_module(x), _joined(x)
    dx = xp.empty(x.shape, _wide(x))
    mean, scale, slope, shift = _repeated(joined, mean, scale, slope, shift - slope * mean if near else shift)
    for upstream, values, out in _parts(joined, g, x, dx):
        through = (values if near else values - mean) * slope
        through += shift
        xp.multiply(upstream, scale, out=out)
        out -= through
    return dx.astype(x.dtype, copy=False)


_CUDA_INPUT = """
    const long long c = i % channels;
    dx = scale[c] * wide_t(g) - slope[c] * (wide_t(x) - mean[c]) - shift[c];
"""


def _grad_input(g: Array, x: Array, mean: Array, rstd: Array, scale: Array, slope: Array, shift: Array) -> Array:
    if not on_gpu(g):
        return _grad_input_numpy(g, x, mean, scale, slope, shift, _near(mean, rstd**-2))
    arguments = "T g, T x, raw W mean, raw W scale, raw W slope, raw W shift, int64 channels"
    kernel = elementwise(arguments, "T dx", _CUDA_INPUT, "batch_norm_input", x.dtype.name)
    return kernel(g, x, mean, scale, slope, shift, np.int64(x.shape[-1]))


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
