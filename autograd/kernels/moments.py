"""Mean and variance of each channel, the last axis, over all rows x (n, C).

There may be a million rows, so both bodies go over parts of them: the sum over a part is accurate, and in NumPy a part
stays in the cache. Statistics of float16 are computed in float32. `batch_norm` goes over its rows in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..backend import Array, array_module
from .launch import launch_rows, on_gpu
from .parts import division, launch_parts
from .sums import sum_over_rows, wide_dtype, widened

PART = 1 << 18  # bytes of one array: several of them fit into the level 2 cache of a core
LONG = 1 << 14  # values: NumPy broadcasts along rows of this length twice as fast as along a few channels
NEAR = 4  # up to this mean^2 / variance, rounding errors are harmless without subtracting the mean first


def joined_rows(x: Array) -> int:
    """The number of rows that are joined to a long one."""
    channels = x.shape[-1]
    return math.gcd(x.size // channels, 1 << max(0, (LONG // channels).bit_length() - 1))


def parts(joined: int, *arrays: Array) -> Iterator[list[Array]]:
    """The same part of all arrays, in long rows."""
    x = arrays[0]
    length = joined * x.shape[-1]
    long = [a.reshape(x.size // length, length) for a in arrays]
    count = max(1, PART // (length * x.dtype.itemsize))
    return ([rows[first : first + count] for rows in long] for first in range(0, len(long[0]), count))


def repeated(joined: int, *channels: Array) -> list[Array]:
    """Repeat per-channel values to match long rows."""
    return [array_module(c).broadcast_to(c, (joined, c.size)).reshape(joined * c.size) for c in channels]


def near_zero(mean: Array, variance: Array) -> bool:
    """True if no channel is far from zero. On a GPU, where subtracting costs nothing, this would synchronise."""
    return isinstance(mean, np.ndarray) and not (mean * mean > NEAR * variance).any()


# Mean and variance of each channel


def _moments_numpy(x: Array) -> tuple[Array, Array]:
    mean, square = _means_of_powers(x, None)
    if near_zero(mean, square - mean * mean):
        return mean.astype(wide_dtype(x)), (square - mean * mean).astype(wide_dtype(x))
    origin = mean.astype(wide_dtype(x))
    mean, square = _means_of_powers(x, origin)
    return (origin + mean).astype(wide_dtype(x)), (square - mean * mean).astype(wide_dtype(x))


def _means_of_powers(x: Array, origin: Array | None) -> Array:
    """The means of x - origin and of its square, in float64."""
    joined, channels = joined_rows(x), x.shape[-1]
    sums = array_module(x).zeros((2, channels), np.float64)
    (shift,) = (None,) if origin is None else repeated(joined, origin)
    for (values,) in parts(joined, x):
        values = widened(values) if origin is None else values - shift
        sums[0] += sum_over_rows(values.reshape(-1, channels))
        sums[1] += sum_over_rows((values * values).reshape(-1, channels))
    return sums / (x.size // channels)


# Each part has a mean, and a sum of squared deviations from it.
_MOMENTS = """
extern "C" __global__ void batch_moments(
    const T* x, wide_t* means, wide_t* squares, long long rows, long long size, int channels
) {
    PART
    wide_t sum = 0, square = 0;
    EACH_ROW sum += wide_t(x[row * channels + channel]);
    const wide_t mean = over_warps(sum) / (last - first);
    EACH_ROW {
        const wide_t centred = wide_t(x[row * channels + channel]) - mean;
        square += centred * centred;
    }
    square = over_warps(square);
    if (inside && threadIdx.x < 32) {
        means[(long long)channel * gridDim.x + blockIdx.x] = mean;
        squares[(long long)channel * gridDim.x + blockIdx.x] = square;
    }
}
"""
# Each channel has n parts (Chan, Golub and LeVeque, 1979):
#   mean = sum(n_part mean_part) / n,    n variance = sum(n_part variance_part + n_part (mean_part - mean)^2)
_MERGE = """
extern "C" __global__ void merge_moments(
    const wide_t* means, const wide_t* squares, wide_t* mean, wide_t* variance, long long all, long long size,
    long long channels, int n
) {
    if (ROW >= channels) return;
    means += ROW * n;
    squares += ROW * n;
    wide_t sum = 0, square = 0;
    EACH(i) sum += means[i] * wide_t(min(size, all - i * size));
    const wide_t whole = over_row(sum, Sum()) / all;
    EACH(i) {
        const wide_t apart = means[i] - whole;
        square += squares[i] + apart * apart * wide_t(min(size, all - i * size));
    }
    square = over_row(square, Sum());
    if (threadIdx.x % TEAM == 0) {
        mean[ROW] = whole;
        variance[ROW] = square / all;
    }
}
"""


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance (divided by n) of each channel."""
    if not on_gpu(x):
        return _moments_numpy(x)
    xp, channels = array_module(x), x.shape[-1]
    rows, size, count = division(x)
    means, squares = xp.empty((2, channels, count), wide_dtype(x))
    mean, variance = xp.empty((2, channels), wide_dtype(x))
    launch_parts(_MOMENTS, "batch_moments", x, xp.ascontiguousarray(x), means, squares)
    launch_rows(_MERGE, "merge_moments", means, means, squares, mean, variance, np.int64(rows), np.int64(size))
    return mean, variance
