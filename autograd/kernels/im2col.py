"""Convolution on a GPU, as matrix products of patches, and its gradients (the formulas are those of `convolution`).

A launch copies the windows of some samples beside each other (im2col), another adds up the gradients of windows where
they overlap (col2im). Each thread of the latter has one value of x, and reads all that is for it: no two write to one
place, and the order of the additions is fixed. What lies outside of the image needs no copy of it with zeros around.

Patches are padded with zeros to a multiple of 8 values: then cuBLAS is faster with float16.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import index_type, sized
from .product import product
from .sums import as_rows, total, wide_dtype
from .windows import Geometry

STRIP = 1 << 26  # bytes of patches at a time: enough to keep a GPU busy, and about the size of its cache

# Number i of the patches, which have LENGTH values and padding. Images may have any strides.
_IM2COL = """
    const index_t u = i, k = u % PADDED, position = u / PADDED;
    const int m = k / (C * KW), n = k / C % KW, row = position / COLUMNS % ROWS, column = position % COLUMNS;
    const int h = row * int(SH) + m - int(PH), w = column * int(SW) + n - int(PW);
    if (k >= LENGTH || h < 0 || h >= int(H) || w < 0 || w >= int(W)) y = 0;
    else y = (&x[0])[position / (COLUMNS * ROWS) * image + h * line + w * pixel + k % C * channel];
"""
# Number i of x.
_COL2IM = """
    const index_t u = i, c = u % C, image = u / (C * W * H);
    const int w = u / C % W + PW, h = u / (C * W) % H + PH;
    wide_t sum = 0;
    for (int m = 0; m < int(KH); m++)
        for (int n = 0; n < int(KW); n++) {
            const int row = (h - m) / int(SH), column = (w - n) / int(SW);
            if (h < m || (h - m) % int(SH) || row >= int(ROWS)) continue;
            if (w < n || (w - n) % int(SW) || column >= int(COLUMNS)) continue;
            sum += wide_t(x[((image * ROWS + row) * COLUMNS + column) * PADDED + (m * KW + n) * C + c]);
        }
    y = sum;
"""


@cache
def _kernel(name: str, dtype: str, index: str, image: tuple[int, ...], geometry: Geometry) -> Any:
    """Sizes are constants: those of images (H, W, C), of the kernel, and of its positions."""
    arguments = "raw T x, int64 image, int64 line, int64 pixel, int64 channel" if name == "im2col" else "raw T x"
    (rows, columns), length = geometry.output_size(*image[:2]), math.prod(geometry.kernel) * image[2]
    values = *image, *sum(geometry, ()), rows, columns, length, _padded(length)
    names = "H", "W", "C", "KH", "KW", "SH", "SW", "PH", "PW", "ROWS", "COLUMNS", "LENGTH", "PADDED"
    source, sizes = _IM2COL if name == "im2col" else _COL2IM, dict(zip(names, values, strict=True))
    return sized(arguments, "T y", source, name, dtype, index, **sizes)


def _im2col(x: Array, geometry: Geometry, patches: Array) -> Array:
    steps = [np.int64(stride // x.itemsize) for stride in x.strides]
    _kernel("im2col", x.dtype.name, index_type(patches), x.shape[1:], geometry)(x, *steps, patches)
    return patches


def _col2im(patches: Array, geometry: Geometry, dx: Array) -> None:
    _kernel("col2im", dx.dtype.name, index_type(patches), dx.shape[1:], geometry)(patches, dx)


def _strips(x: Array, geometry: Geometry) -> list[tuple[slice, Array]]:
    """Some samples at a time, and room for their patches, the same for all."""
    positions = math.prod(geometry.output_size(*x.shape[1:3]))
    length = _padded(math.prod(geometry.kernel) * x.shape[-1])
    samples = min(len(x), max(1, STRIP // (positions * length * x.itemsize)))
    memory = array_module(x).empty((samples * positions, length), x.dtype)
    ends = ((first, min(len(x), first + samples)) for first in range(0, len(x), samples))
    return [(slice(first, last), memory[: (last - first) * positions]) for first, last in ends]


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _as_matrix(weight: Array) -> Array:
    """(O, C, kh, kw) as (O, kh kw C), with zeros for the padding of patches."""
    length = math.prod(weight.shape[1:])
    matrix = weight.transpose(0, 2, 3, 1).reshape(len(weight), length)
    if length % 8 == 0:
        return matrix
    padded = array_module(weight).zeros((len(weight), _padded(length)), weight.dtype)
    padded[:, :length] = matrix
    return padded


def conv(x: Array, weight: Array, bias: Array | None, geometry: Geometry) -> Array:
    y = array_module(x).empty((len(x), *geometry.output_size(*x.shape[1:3]), len(weight)), x.dtype)
    matrix = _as_matrix(weight)
    for part, patches in _strips(x, geometry):
        product(_im2col(x[part], geometry, patches), matrix.T, out=as_rows(y[part]))
    if bias is not None:
        y += bias
    return y


def conv_grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry) -> Array:
    dx, matrix = array_module(g).empty(x_shape, g.dtype), _as_matrix(weight)
    for part, patches in _strips(dx, geometry):
        _col2im(product(as_rows(g[part]), matrix, out=patches), geometry, dx[part])
    return dx


def conv_grad_weight(g: Array, x: Array, geometry: Geometry) -> Array:
    """In float32 for float16."""
    outputs, channels, strips = g.shape[-1], x.shape[-1], _strips(x, geometry)
    length = math.prod(geometry.kernel) * channels
    each = array_module(x).empty((len(strips), outputs, _padded(length)), wide_dtype(x))
    for (part, patches), out in zip(strips, each, strict=True):
        product(as_rows(g[part]).T, _im2col(x[part], geometry, patches), out=out)
    return total(each, 0)[:, :length].reshape(outputs, *geometry.kernel, channels).transpose(0, 3, 1, 2)
