"""Convolution of channels-last images x (B, H, W, C) with a weight (O, C, kh, kw), as matrix products:

    y = P W^T + bias,    dW = g^T P,    dP = g W,    dx = every window's gradient, added where the window was

A row of P is one window of x (see `windows`), the same row of y and g its outputs. The way from x to P is known as
im2col, the way from dP to dx as col2im. Windows overlap, so P takes up to kh kw times the memory of x. It is therefore
made in strips, some rows of one sample or some samples at a time, and made again for backward. A strip is still in the
cache when BLAS reads it. `im2col` does the same on a GPU.

With stride 1, dx is a convolution as well: of g, with the kernel rotated by 180 degrees and inputs and outputs swapped.

Groups are convolutions of their own, with a part of the channels each; if every channel is one, see `depthwise`.

Where a batch must stay whole, `modes.sample_threads` distributes its samples over threads. They are cut in the same
way for any number of threads, so the result has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np

from .. import modes
from ..backend import Array, array_module
from . import im2col
from .depthwise import depthwise, depthwise_grad_input, depthwise_grad_weight
from .launch import on_gpu
from .product import product
from .sums import as_rows, wide_dtype
from .windows import Geometry, Pair, inside, padded_zeros, windows

CPU_STRIP = 1 << 20  # bytes: the level 2 cache of a core
MOST_PARTS = 8  # of a batch whose samples are distributed: each has a gradient of the weight


def _strip_size(x: Array, outputs: int, geometry: Geometry) -> Pair:
    """Samples and rows in a strip. It takes at least twice the memory of the weight, which every product reads."""
    rows, columns = geometry.output_size(*x.shape[1:3])
    window = math.prod(geometry.kernel) * x.shape[-1] * x.dtype.itemsize
    size = max(CPU_STRIP, 2 * outputs * window)
    count = max(1, size // (columns * window))
    return max(1, min(count // rows, len(x))), min(count, rows)


def _patches(x: Array, outputs: int, geometry: Geometry) -> Iterator[tuple[tuple[slice, slice], Array]]:
    """P strip by strip, each in the memory of the one before, and the index of its rows in y and g."""
    samples, rows = _strip_size(x, outputs, geometry)
    all_rows, columns = geometry.output_size(*x.shape[1:3])
    memory = array_module(x).empty((samples, rows, columns, *geometry.kernel, x.shape[-1]), x.dtype)
    for number, part in enumerate(_padded(x, samples, geometry.padding)):
        views = windows(part, geometry.kernel, geometry.stride)
        for row in range(0, all_rows, rows):
            strip = views[:, row : row + rows]
            patches = memory[: strip.shape[0], : strip.shape[1]]
            patches[...] = strip
            index = slice(number * samples, (number + 1) * samples), slice(row, row + rows)
            yield index, patches.reshape(math.prod(strip.shape[:3]), math.prod(strip.shape[3:]))


def _padded(x: Array, samples: int, padding: Pair) -> Iterator[Array]:
    """Some samples of x at a time, with zeros around them, each in the memory of those before."""
    ready = not any(padding) and x.strides[-1] == x.dtype.itemsize  # windows of other arrays are slow to copy
    memory = None if ready else padded_zeros(x, samples, padding)
    for first in range(0, len(x), samples):
        part = x[first : first + samples]
        if memory is not None:
            inside(memory[: len(part)], padding)[...] = part
            part = memory[: len(part)]
        yield part


def _dense(x: Array, weight: Array, bias: Array | None, geometry: Geometry) -> Array:
    if on_gpu(x):
        return im2col.conv(x, weight, bias, geometry)
    y = array_module(x).empty((len(x), *geometry.output_size(*x.shape[1:3]), len(weight)), x.dtype)
    matrix = _as_matrix(weight)
    for index, patches in _patches(x, len(weight), geometry):
        out = product(patches, matrix, out=as_rows(y[index]))
        if bias is not None:
            out += bias
    return y


def _as_matrix(weight: Array) -> Array:
    """(O, C, kh, kw) as W^T (kh kw C, O)."""
    window = math.prod(weight.shape[1:])
    if weight.nbytes <= CPU_STRIP:  # BLAS is faster so, but a large weight takes long to transpose
        return weight.transpose(2, 3, 1, 0).reshape(window, len(weight))
    return weight.transpose(0, 2, 3, 1).reshape(len(weight), window).T


def _dense_grad_weight(g: Array, x: Array, geometry: Geometry) -> Array:
    if on_gpu(x):
        return im2col.conv_grad_weight(g, x, geometry)
    outputs, channels = g.shape[-1], x.shape[-1]
    total, part = array_module(x).zeros((2, outputs, math.prod(geometry.kernel) * channels), wide_dtype(x))
    for index, patches in _patches(x, outputs, geometry):
        total += product(as_rows(g[index]).T, patches, out=part)
    return total.reshape(outputs, *geometry.kernel, channels).transpose(0, 3, 1, 2)


def _dense_grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry) -> Array:
    if (rotated := geometry.for_gradient()) is not None:
        return _dense(g, weight.swapaxes(0, 1)[:, :, ::-1, ::-1], None, rotated)
    if on_gpu(g):
        return im2col.conv_grad_input(g, x_shape, weight, geometry)
    return _col2im(g, x_shape, _as_matrix(weight).T, geometry)


def _col2im(g: Array, x_shape: tuple[int, ...], matrix: Array, geometry: Geometry) -> Array:
    dx = array_module(g).zeros(x_shape, g.dtype)
    samples, rows = _strip_size(dx, len(matrix), geometry)
    memory = array_module(g).empty((samples * rows * g.shape[2], matrix.shape[1]), g.dtype)
    direct = not any(geometry.padding) and dx.dtype == wide_dtype(g)
    padded = None if direct else padded_zeros(dx, samples, geometry.padding, wide_dtype(g))
    for first in range(0, len(g), samples):
        part, into = g[first : first + samples], dx[first : first + samples]
        if padded is not None:
            into = padded[: len(part)]
            into[...] = 0
        for row in range(0, g.shape[1], rows):
            strip = part[:, row : row + rows]
            patches = product(as_rows(strip), matrix, out=memory[: math.prod(strip.shape[:3])])
            patches = patches.reshape(*strip.shape[:3], *geometry.kernel, x_shape[-1])
            _add_windows(into[:, row * geometry.stride[0] :], patches, geometry)
        if padded is not None:
            dx[first : first + samples] = inside(into, geometry.padding)
    return dx


def _add_windows(into: Array, patches: Array, geometry: Geometry) -> None:
    """Add patches to the windows that they belong to. Parts of them no larger than the stride do not overlap."""
    (height, width), stride = geometry.kernel, geometry.stride
    rows, columns = patches.shape[1:3]
    for top in range(0, height, stride[0]):
        for left in range(0, width, stride[1]):
            part = patches[..., top : top + stride[0], left : left + stride[1], :]
            places = windows(into[:, top:, left:], part.shape[3:5], stride)[:, :rows, :columns]
            places += part


# Dense, one group after the other, or depthwise.


def _conv2d(x: Array, weight: Array, bias: Array | None, geometry: Geometry, groups: int) -> Array:
    if groups == x.shape[-1] == len(weight):
        return depthwise(x, weight, bias, geometry)
    biases = [None] * groups if bias is None else _split(bias, groups)
    parts = zip(_split(x, groups), _split(weight, groups, 0), biases, strict=True)
    return _joined([_dense(*part, geometry) for part in parts])


def _grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry, groups: int) -> Array:
    x_shape = len(g), *x_shape[1:]
    if groups == x_shape[-1] == len(weight):
        return depthwise_grad_input(g, x_shape, weight, geometry)
    shape = *x_shape[:-1], weight.shape[1]
    parts = zip(_split(g, groups), _split(weight, groups, 0), strict=True)
    return _joined([_dense_grad_input(of_g, shape, of_weight, geometry) for of_g, of_weight in parts])


def _grad_weight(g: Array, x: Array, geometry: Geometry, groups: int) -> Array:
    if groups == x.shape[-1] == g.shape[-1]:
        return depthwise_grad_weight(g, x, geometry)
    parts = zip(_split(g, groups), _split(x, groups), strict=True)
    return _joined([_dense_grad_weight(*part, geometry) for part in parts], 0)


def _split(x: Array, groups: int, axis: int = -1) -> list[Array]:
    return [x] if groups == 1 else array_module(x).split(x, groups, axis)


def _joined(parts: list[Array], axis: int = -1) -> Array:
    return parts[0] if len(parts) == 1 else array_module(parts[0]).concatenate(parts, axis=axis)


# Samples together, or distributed over threads.


def _by_samples(work: Callable[..., Array], *arrays: Array) -> list[Array]:
    """work(some samples of each array), for all samples."""
    count, threads = len(arrays[0]), modes.current().sample_threads
    if not threads or count < 2 or not isinstance(arrays[0], np.ndarray):
        return [work(*arrays)]
    ends = [count * i // min(count, MOST_PARTS) for i in range(min(count, MOST_PARTS) + 1)]
    shares = [[a[first:last] for a in arrays] for first, last in pairwise(ends)]
    with ThreadPoolExecutor(threads, thread_name_prefix="minicait") as pool:
        return list(pool.map(modes.inherit_modes(lambda share: work(*share)), shares))


def conv2d(x: Array, weight: Array, bias: Array | None, geometry: Geometry, groups: int) -> Array:
    return _joined(_by_samples(lambda part: _conv2d(part, weight, bias, geometry, groups), x), 0)


def conv2d_grad_input(g: Array, x_shape: tuple[int, ...], weight: Array, geometry: Geometry, groups: int) -> Array:
    return _joined(_by_samples(lambda part: _grad_input(part, x_shape, weight, geometry, groups), g), 0)


def conv2d_grad_weight(g: Array, x: Array, geometry: Geometry, groups: int) -> Array:
    """In float32 for float16."""
    return reduce(add, _by_samples(lambda g, x: _grad_weight(g, x, geometry, groups), g, x))
