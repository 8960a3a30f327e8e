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
from .launch import THREADS, compiled, on_gpu
from .parts import merge
from .sums import total, wide_dtype, widened
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
        xp.add(xp.einsum("ijmnc,mnc->ijc", views, taps), 0 if bias is None else bias, out=out)
    return y


# A thread for each channel of a line, a row of one sample. The compiler knows the kernel (KH, KW), stride and padding,
# and keeps the taps in registers.
_TAPS = """
#define EACH_TAP _Pragma("unroll") for (int m = 0; m < KH; m++) _Pragma("unroll") for (int n = 0; n < KW; n++)
#define TAPS wide_t taps[KH * KW]; EACH_TAP taps[m * KW + n] = weight[(channel * KH + m) * KW + n];
"""
_CUDA = """
extern "C" __global__ void depthwise(
    const T* x, const T* weight, const wide_t* bias, T* y, int height, int width, int rows, int columns, int channels
) {
    const int channel = blockIdx.y * blockDim.x + threadIdx.x, line = blockIdx.x;
    if (channel >= channels) return;
    TAPS
    for (int column = 0; column < columns; column++) {
        wide_t sum = bias ? bias[channel] : wide_t(0);
        EACH_TAP {
            const int h = line % rows * SH + m - PH, w = column * SW + n - PW;
            if (h < 0 || h >= height || w < 0 || w >= width) continue;
            sum += wide_t(x[(((long long)(line / rows) * height + h) * width + w) * channels + channel])
                * taps[m * KW + n];
        }
        y[((long long)line * columns + column) * channels + channel] = sum;
    }
}
"""


def depthwise(x: Array, weight: Array, bias: Array | None, geometry: Geometry) -> Array:
    if not on_gpu(x):
        return _depthwise_numpy(x, _taps(weight), bias, geometry)
    xp = array_module(x)
    y = xp.empty((len(x), *geometry.output_size(*x.shape[1:3]), x.shape[-1]), x.dtype)
    null = np.intp(0)  # CuPy passes a null pointer as a number
    bias = null if bias is None else xp.ascontiguousarray(bias, wide_dtype(x))
    arrays = xp.ascontiguousarray(x), xp.ascontiguousarray(weight), bias, y
    _launch(_CUDA, "depthwise", geometry, y.shape[0] * y.shape[1], x, y, *arrays)
    return y


def _launch(source: str, name: str, geometry: Geometry, lines: int, x: Array, y: Array, *arguments: Any) -> None:
    """Launch blocks for some lines and all channels. Kernels get `arguments` and the sizes of x and y."""
    names = zip(("KH", "KW", "SH", "SW", "PH", "PW"), sum(geometry, ()), strict=True)
    constants = f"constexpr int {', '.join(f'{name} = {value}' for name, value in names)};"
    sizes = [np.int32(n) for n in (*x.shape[1:3], *y.shape[1:])]
    kernel = compiled(constants + _TAPS + source, name, x.dtype.name)
    kernel((lines, -(-x.shape[-1] // THREADS)), (THREADS,), (*arguments, *sizes))


# The gradient for x


def _grad_input_numpy(g: Array, x_shape: tuple[int, ...], taps: Array, geometry: Geometry) -> Array:
    """Convolve g with the rotated kernel if the stride is 1. Otherwise, add one tap's part of dx after the other."""
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


# A thread for each channel of a line of dx.
_CUDA_INPUT = """
extern "C" __global__ void depthwise_input(
    const T* g, const T* weight, T* dx, int height, int width, int rows, int columns, int channels
) {
    const int channel = blockIdx.y * blockDim.x + threadIdx.x, line = blockIdx.x;
    if (channel >= channels) return;
    TAPS
    for (int w = 0; w < width; w++) {
        wide_t sum = 0;
        EACH_TAP {
            const int down = line % height + PH - m, right = w + PW - n, row = down / SH, column = right / SW;
            if (down < 0 || down % SH || row >= rows || right < 0 || right % SW || column >= columns) continue;
            sum += wide_t(g[(((long long)(line / height) * rows + row) * columns + column) * channels + channel])
                * taps[m * KW + n];
        }
        dx[((long long)line * width + w) * channels + channel] = sum;
    }
}
"""


def depthwise_grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry) -> Array:
    if not on_gpu(g):
        return _grad_input_numpy(g, x_shape, _taps(weight), geometry)
    xp = array_module(g)
    dx = xp.empty(x_shape, g.dtype)
    lines = x_shape[0] * x_shape[1]
    arrays = xp.ascontiguousarray(g), xp.ascontiguousarray(weight), dx
    _launch(_CUDA_INPUT, "depthwise_input", geometry, lines, dx, g, *arrays)
    return dx


# The gradient for the weight


def _grad_weight_numpy(g: Array, x: Array, geometry: Geometry) -> Array:
    """The sum of the gradients of all samples."""
    xp, wide = array_module(x), wide_dtype(x)
    each = xp.empty((len(x), *geometry.kernel, x.shape[-1]), wide)
    padded = padded_zeros(x, 1, geometry.padding, wide)
    (views,) = windows(padded, geometry.kernel, geometry.stride)
    for sample, upstream, out in zip(x, g, each, strict=True):
        inside(padded, geometry.padding)[...] = sample
        out[...] = xp.einsum("ijmnc,ijc->mnc", views, widened(upstream))
    return total(each, 0).transpose(2, 0, 1)[:, None]


# A thread for each channel of a part of the lines, gridDim.x apart. It adds up their products for all taps.
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
            EACH_TAP {
                const int h = line % rows * SH + m - PH, w = column * SW + n - PW;
                if (h < 0 || h >= height || w < 0 || w >= width) continue;
                sums[m * KW + n] += upstream * wide_t(x[((sample * height + h) * width + w) * channels + channel]);
            }
        }
    }
    EACH_TAP parts[((long long)(channel * KH + m) * KW + n) * gridDim.x + blockIdx.x] = sums[m * KW + n];
}
"""


def _grad_weight_cuda(g: Array, x: Array, geometry: Geometry) -> Array:
    xp, lines = array_module(x), g.shape[0] * g.shape[1]
    count = min(lines, MOST_PARTS)
    parts = xp.empty((x.shape[-1], 1, *geometry.kernel, count), wide_dtype(x))
    arrays = xp.ascontiguousarray(g), xp.ascontiguousarray(x), parts
    _launch(_CUDA_WEIGHT, "depthwise_weight", geometry, count, x, g, *arrays, np.int32(lines))
    return merge(parts, parts.dtype)


def depthwise_grad_weight(g: Array, x: Array, geometry: Geometry) -> Array:
    """(C, 1, kh, kw), in float32 for float16."""
    return (_grad_weight_cuda if on_gpu(g) else _grad_weight_numpy)(g, x, geometry)
