"""The kernels that have CUDA bodies of their own.

A block of threads reduces a row through shared memory. Mistakes in that show at lengths around those of a warp and of a
block, and in rows that are much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from autograd import kernels
from autograd.backend import Array, array_module, device_of, to_device
from autograd.kernels.attention import mix_heads
from autograd.kernels.softmax import softmax_of_rows, softmax_of_rows_grad

from .compare import compared
from .report import Finding

LENGTHS = (1, 31, 32, 127, 129, 300, 1000)
ROWS = 6
MANY = 300_000  # values, summed by many blocks
HEADS = 3, 33, 2, 24  # images, tokens, heads and values per head, for products
TALKING = 1, 196, 4, 48  # the same for attention: one image in cait_xxs24_224


def values(device: str) -> Finding:
    runs = {}
    for n in LENGTHS:
        runs[f"softmax, rows of {n}"] = partial(_run, _softmax, [(ROWS, n)] * 2)
        runs[f"layer norm, rows of {n}"] = partial(_run, _layer_norm, [(ROWS, n), (ROWS, n), (n,), (n,)])
        runs[f"cross entropy, rows of {n}"] = partial(_run, _cross_entropy, [(ROWS, n)] * 2)
    runs["mixing heads"] = partial(_run, lambda *arrays: [mix_heads(*arrays)], [(2, 3, 5, 7), (3, 3)])
    runs["GELU"] = partial(_run, _gelu, [(ROWS, 300)])
    runs["AdamW and the average"] = partial(_run, _adamw, [(300,)] * 5)
    branch = [(4, 3, 40), (4, 3, 40), (2, 3, 130), (40, 130), (40,), (40,)]
    runs["end of a residual branch"] = partial(_run, _residual, branch)
    runs["sum of squares"] = partial(_run, lambda x: [kernels.squares(x).sum(keepdims=True)], [(MANY,)])
    images, tokens, heads, size = HEADS
    products = [(images, tokens, 3, heads, size), (images, heads, tokens, tokens)]
    runs["products of heads"] = partial(_run, _products, products)
    images, tokens, heads, size = TALKING
    attention = [(images, tokens, 3 * heads * size), *[(heads, heads), (heads,)] * 2, (images, tokens, heads * size)]
    runs["talking-heads attention"] = partial(_run, _talking_heads, attention)
    return compared(runs, device)


def _run(
    work: Callable[..., Sequence[Array]], shapes: Sequence[tuple[int, ...]], device: str, dtype: str, rounded_to: str
) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(shape).astype(rounded_to).astype(dtype) for shape in shapes]
    return [to_device(x, "cpu") for x in work(*(to_device(x, device) for x in drawn))]


def _softmax(x: Array, g: Array) -> Sequence[Array]:
    y = softmax_of_rows(x * 4)  # some values are large even in long rows
    return y, softmax_of_rows_grad(g, y)


def _layer_norm(x: Array, g: Array, weight: Array, bias: Array) -> Sequence[Array]:
    y, x_hat, rstd = kernels.layer_norm(x, weight, bias, 1e-3)
    return y, *kernels.layer_norm_grad(g, x_hat, rstd, weight)


def _cross_entropy(x: Array, soft: Array) -> Sequence[Array]:
    """Cross entropy against class indices, and against soft targets."""
    labels = to_device(np.arange(ROWS) % x.shape[-1], device_of(x))
    results = (kernels.cross_entropy(x, targets, with_grad=True) for targets in (labels, soft * soft))
    return [array for pair in results for array in pair if array is not None]


def _residual(x: Array, g: Array, h: Array, weight: Array, bias: Array, scale: Array) -> Sequence[Array]:
    """A branch for two samples of four."""
    rows = to_device(np.array([3, 0]), device_of(x))
    y = kernels.linear_residual(x, h, weight, bias, scale, 1.25, rows)
    return y, *kernels.linear_residual_grad(g, h, weight, weight, bias, scale, 1.25, rows, [True] * 4)


def _products(qkv: Array, maps: Array) -> Sequence[Array]:
    """Products of matrices that are parts of longer rows, into parts of longer rows."""
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    out = array_module(qkv).empty(qkv.shape, qkv.dtype).transpose(2, 0, 3, 1, 4)
    scores = kernels.product(q, k.swapaxes(-1, -2), scale=0.2)
    return scores, kernels.product(maps, v, out=out[0]), kernels.product(maps.swapaxes(-1, -2), v, out=out[2])


def _talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array, g: Array
) -> Sequence[Array]:
    """All but the gradient of weight_l: over many tokens its terms nearly cancel, so that it says little."""
    y, maps, _ = kernels.talking_heads(qkv, weight_l, bias_l, weight_w, bias_w)
    dqkv, _, _, dweight_w, dbias_w = kernels.talking_heads_grad(g, qkv, maps, weight_l, weight_w, bias_w)
    return y, dqkv, dweight_w, dbias_w


def _gelu(x: Array) -> Sequence[Array]:
    value, derivative = kernels.gelu(x * 3, with_derivative=True)
    return value, derivative, kernels.gelu(x * 3, with_derivative=False)[0]


def _adamw(p: Array, g: Array, m: Array, v: Array, average: Array) -> Sequence[Array]:
    v = v * v
    kernels.adamw(p, g, m, v, 7, 1e-2, (0.9, 0.999), 1e-8, 0.01, p.size // 2)
    kernels.move_average(average, p, 0.25)
    return p, m, v, average
