"""Depthwise convolution: every channel of x (B, H, W, C) has a kernel of its own, in weight (C, 1, kh, kw).

    y[b, i, j, c] = bias[c] + sum over m, n of x[b, s i + m - p, s j + n - p, c] weight[c, 0, m, n]

with stride s and padding p; x is zero outside. In dx, every g[b, i, j, c] weight[c, 0, m, n] is added where this x was,
and dweight[c, 0, m, n] is the sum over b, i and j of g[b, i, j, c] times this x.

A matrix product would compute much more than it needs to. NumPy's einsum multiplies and adds at once, for all taps (the
values of the kernel) of a pixel before it moves on, so that sums stay in the innermost cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import THREADS, compiled, elementwise, on_gpu
from .sums import total, widened
from .windows import Geometry, inside, padded_zeros, windows

MOST_PARTS = 256  # partial sums of a gradient for a weight, enough to keep a GPU busy


def _taps(weight: Array) -> Array:
    """(C, 1, kh, kw) as (kh, kw, C): channels last, like those of x."""
    return array_module(weight).ascontiguousarray(weight[:, 0].transpose(1, 2, 0))


# Forward


def _depthwise_numpy(x: Array, taps: Array, bias: Array | None, geometry: Geometry) -> Array:
    xp, taps = array_module(x), widened(taps)
    y = xp.empty((len(x), *geometry.output_size(*x.shape[1:3]), x.shape[-1]), x.dtype)
    padded = padded_zeros(x, 1, geometry.padding, taps.dtype)
    (views,) = windows(padded, geometry.kernel, geometry.stride)
    for sample, out in zip(x, y, strict=True):
        inside(padded, geometry.padding)[...] = sample
        out[...] = xp.einsum("ijmnc,mnc->ijc", views, taps)
        if bias is not None:
            out += bias
    return y


# A thread for each value of y, number i. The compiler knows the kernel (KH, KW), the stride and the padding.
_CUDA = """
    const int channel = i % channels, column = i / channels % columns, row = i / channels / columns % rows;
    const long long sample = i / channels / columns / rows;
    wide_t sum = has_bias ? wide_t(bias[channel]) : wide_t(0);
    for (int m = 0; m < KH; m++)
        for (int n = 0; n < KW; n++) {
            const int h = row * SH + m - PH, w = column * SW + n - PW;
            if (h >= 0 && h < height && w >= 0 && w < width)
                sum += wide_t(x[((sample * height + h) * width + w) * channels + channel])
                    * wide_t(taps[(m * KW + n) * channels + channel]);
        }
    y = sum;
"""
_SIZES = "int32 height, int32 width, int32 rows, int32 columns, int32 channels"


def depthwise(x: Array, weight: Array, bias: Array | None, geometry: Geometry) -> Array:
    taps = _taps(weight)
    if not on_gpu(x):
        return _depthwise_numpy(x, taps, bias, geometry)
    xp = array_module(x)
    size = geometry.output_size(*x.shape[1:3])
    y = xp.empty((len(x), *size, x.shape[-1]), x.dtype)
    arguments = f"raw T x, raw T taps, raw W bias, bool has_bias, {_SIZES}"
    kernel = elementwise(arguments, "T y", _constants(geometry) + _CUDA, "depthwise", x.dtype.name)
    has_bias = np.bool_(bias is not None)
    return kernel(xp.ascontiguousarray(x), taps, taps if bias is None else bias, has_bias, *_sizes(x, size), y)


def _constants(geometry: Geometry) -> str:
    names = zip(("KH", "KW", "SH", "SW", "PH", "PW"), sum(geometry, ()), strict=True)
    return f"constexpr int {', '.join(f'{name} = {value}' for name, value in names)};"


def _sizes(x: Array, size: Any) -> list[Any]:
    return [np.int32(n) for n in (*x.shape[1:3], *size, x.shape[-1])]


# The gradient for x


def _grad_input_numpy(g: Array, x_shape: tuple[int, ...], taps: Array, geometry: Geometry) -> Array:
    """With stride 1, convolve g with the rotated kernel. Otherwise, add one tap's share of dx after the other."""
    if (rotated := geometry.for_gradient()) is not None:
        return _depthwise_numpy(g, taps[::-1, ::-1], None, rotated)
    dx = array_module(g).empty(x_shape, g.dtype)
    g, taps = widened(g), widened(taps)
    padded = padded_zeros(dx, len(dx), geometry.padding, taps.dtype)
    (height, width), (down, right) = geometry.kernel, geometry.stride
    rows, columns = g.shape[1:3]
    for m in range(height):
        for n in range(width):
            padded[:, m : m + down * rows : down, n : n + right * columns : right] += g * taps[m, n]
    dx[...] = inside(padded, geometry.padding)
    return dx


# A thread for each value of dx.
_CUDA_INPUT = """
    const int channel = i % channels, w = i / channels % width, h = i / channels / width % height;
    const long long sample = i / channels / width / height;
    wide_t sum = 0;
    for (int m = 0; m < KH; m++)
        for (int n = 0; n < KW; n++) {
            const int down = h + PH - m, right = w + PW - n, row = down / SH, column = right / SW;
            if (down >= 0 && down % SH == 0 && row < rows && right >= 0 && right % SW == 0 && column < columns)
                sum += wide_t(g[((sample * rows + row) * columns + column) * channels + channel])
                    * wide_t(taps[(m * KW + n) * channels + channel]);
        }
    dx = sum;
"""


def depthwise_grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry) -> Array:
    taps = _taps(weight)
    if not on_gpu(g):
        return _grad_input_numpy(g, x_shape, taps, geometry)
    xp = array_module(g)
    dx = xp.empty(x_shape, g.dtype)
    arguments = f"raw T g, raw T taps, {_SIZES}"
    kernel = elementwise(arguments, "T dx", _constants(geometry) + _CUDA_INPUT, "depthwise_input", g.dtype.name)
    return kernel(xp.ascontiguousarray(g), taps, *_sizes(dx, g.shape[1:3]), dx)


# The gradient for the weight


def _grad_weight_numpy(g: Array, x: Array, geometry: Geometry) -> Array:
    """(kh, kw, C), as a sum of those of all samples."""
    xp, wide = array_module(x), np.promote_types(x.dtype, np.float32)
    each = xp.empty((len(x), *geometry.kernel, x.shape[-1]), wide)
    padded = padded_zeros(x, 1, geometry.padding, wide)
    (views,) = windows(padded, geometry.kernel, geometry.stride)
    for sample, upstream, out in zip(x, g, each, strict=True):
        inside(padded, geometry.padding)[...] = sample
        out[...] = xp.einsum("ijmnc,ijc->mnc", views, widened(upstream))
    return total(each, 0)


# A thread for each channel and part: it adds up some lines of g, gridDim.x apart, for all taps.
_CUDA_WEIGHT = """
extern "C" __global__ void depthwise_weight(
    const T* g, const T* x, wide_t* parts, int lines, int height, int width, int rows, int columns, int channels
) {
    const int channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    wide_t sums[KH * KW] = {};
    for (int line = blockIdx.x; line < lines; line += gridDim.x) {
        const long long sample = line / rows;
        for (int column = 0; column < columns; column++) {
            const wide_t upstream = g[((long long)line * columns + column) * channels + channel];
            for (int m = 0; m < KH; m++)
                for (int n = 0; n < KW; n++) {
                    const int h = line % rows * SH + m - PH, w = column * SW + n - PW;
                    if (h < 0 || h >= height || w < 0 || w >= width) continue;
                    sums[m * KW + n] += upstream * wide_t(x[((sample * height + h) * width + w) * channels + channel]);
                }
        }
    }
    for (int tap = 0; tap < KH * KW; tap++)
        parts[((long long)tap * channels + channel) * gridDim.x + blockIdx.x] = sums[tap];
}
"""


def _grad_weight_cuda(g: Array, x: Array, geometry: Geometry) -> Array:
    xp, channels = array_module(x), x.shape[-1]
    lines = g.shape[0] * g.shape[1]
    count = min(lines, MOST_PARTS)
    parts = xp.empty((*geometry.kernel, channels, count), np.promote_types(x.dtype, np.float32))
    arrays = xp.ascontiguousarray(g), xp.ascontiguousarray(x), parts
    kernel = compiled(_constants(geometry) + _CUDA_WEIGHT, "depthwise_weight", x.dtype.name)
    sizes = np.int32(lines), *_sizes(x, g.shape[1:3])
    kernel((count, -(-channels // THREADS)), (THREADS,), (*arrays, *sizes))
    return total(parts, -1)


def depthwise_grad_weight(g: Array, x: Array, geometry: Geometry) -> Array:
    """(C, 1, kh, kw), in float32 for float16."""
    taps = (_grad_weight_cuda if on_gpu(g) else _grad_weight_numpy)(g, x, geometry)
    return taps.transpose(2, 0, 1)[:, None]
