"""The kernels with CUDA bodies of their own.

A block of threads reduces a row through shared memory. Mistakes show at lengths around that of a warp or a block, and
in much longer rows.
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
    cases: dict[str, tuple[Callable[..., Sequence[Array]], Sequence[tuple[int, ...]]]] = {}
    for n in LENGTHS:
        cases[f"softmax, rows of {n}"] = _softmax, [(ROWS, n)] * 2
        cases[f"layer norm, rows of {n}"] = _layer_norm, [(ROWS, n), (ROWS, n), (n,), (n,)]
        cases[f"cross entropy, rows of {n}"] = _cross_entropy, [(ROWS, n)] * 2
    for n in (1, 33, 384):
        cases[f"batch norm of {n} channels"] = _batch_norm, [(130, n), (130, n), (n,), (n,)]
        cases[f"depthwise convolution of {n} channels"] = _depthwise, [(3, 7, 5, n), (3, 7, 5, n), (n, 1, 3, 3), (n,)]
    cases["mixing heads"] = lambda *arrays: [mix_heads(*arrays)], [(2, 3, 5, 7), (3, 3)]
    cases["GELU"] = _gelu, [(ROWS, 300)]
    cases["AdamW and the average"] = _adamw, [(300,)] * 5
    cases["LAMB"] = _lamb, [(MANY,)] * 4
    cases["end of a residual branch"] = _residual, [(4, 3, 40), (4, 3, 40), (2, 3, 130), (40, 130), (40,), (40,)]
    cases["sum of squares"] = lambda x: [kernels.squares(x).sum(keepdims=True)], [(MANY,)]
    b, n, h, d = HEADS
    cases["products of heads"] = _products, [(b, n, 3, h, d), (b, h, n, n)]
    b, n, h, d = TALKING
    cases["talking-heads attention"] = _talking_heads, [(b, n, 3 * h * d), *[(h, h), (h,)] * 2, (b, n, h * d)]
    return compared({name: partial(_run, *case) for name, case in cases.items()}, device)


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


def _batch_norm(x: Array, g: Array, weight: Array, bias: Array) -> Sequence[Array]:
    mean, variance = kernels.moments(x)
    rstd = 1 / array_module(x).sqrt(variance + 0.1)
    y = kernels.batch_norm(x, mean, rstd, weight, bias)
    return mean, variance, y, *kernels.batch_norm_grad(g, x, mean, rstd, weight, False, [True] * 3)


def _depthwise(x: Array, g: Array, weight: Array, bias: Array) -> Sequence[Array]:
    geometry = kernels.Geometry((3, 3), (1, 1), (1, 1))
    return (
        kernels.conv2d(x, weight, bias, geometry, len(weight)),
        kernels.conv2d_grad_input(g, x.shape, weight, geometry, len(weight)),
        kernels.conv2d_grad_weight(g, x, geometry, len(weight)),
    )


def _cross_entropy(x: Array, soft: Array) -> Sequence[Array]:
    """Cross entropy against class indices, and against soft targets."""
    labels = to_device(np.arange(ROWS) % x.shape[-1], device_of(x))
    results = (kernels.cross_entropy(x, targets, with_grad=True) for targets in (labels, soft * soft))
    return [array for pair in results for array in pair if array is not None]


def _residual(x: Array, g: Array, h: Array, weight: Array, bias: Array, scale: Array) -> Sequence[Array]:
    """A branch that stochastic depth keeps for two samples of four."""
    rows = to_device(np.array([3, 0]), device_of(x))
    y = kernels.linear_residual(x, h, weight, bias, scale, 1.25, rows)
    return y, *kernels.linear_residual_grad(g, h, weight, weight, bias, scale, 1.25, rows, [True] * 4)


def _products(qkv: Array, maps: Array) -> Sequence[Array]:
    """Products of strided matrices into strided outputs."""
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    out = array_module(qkv).empty(qkv.shape, qkv.dtype).transpose(2, 0, 3, 1, 4)
    scores = kernels.product(q, k.swapaxes(-1, -2), scale=0.2)
    return scores, kernels.product(maps, v, out=out[0]), kernels.product(maps.swapaxes(-1, -2), v, out=out[2])


def _talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array, g: Array
) -> Sequence[Array]:
    """Skip the gradient of weight_l: its terms nearly cancel over many tokens, which magnifies rounding."""
    y, kept, *_ = kernels.talking_heads(qkv, weight_l, bias_l, weight_w, bias_w)
    dqkv, _, _, dweight_w, dbias_w = kernels.talking_heads_grad(g, kept, weight_l, weight_w, bias_w)
    return y, dqkv, dweight_w, dbias_w


def _gelu(x: Array) -> Sequence[Array]:
    value, derivative = kernels.gelu(x * 3, with_derivative=True)
    return value, derivative, kernels.gelu(x * 3, with_derivative=False)[0]


def _adamw(p: Array, g: Array, m: Array, v: Array, average: Array) -> Sequence[Array]:
    v = v * v
    kernels.adamw(p, g, m, v, 7, 1e-2, (0.9, 0.999), 1e-8, 0.01, p.size // 2)
    kernels.move_average(average, p, 0.25)
    return p, m, v, average


def _lamb(p: Array, g: Array, m: Array, v: Array) -> Sequence[Array]:
    """Three tensors, one of them large, and some without decay. Narrow types are not used for weights."""
    p, g, m, v = (x.astype(np.promote_types(x.dtype, np.float32)) for x in (p, g, m, v * v + 0.1))
    tensors = [(0, 1, True), (1, 300, True), (300, p.size - 100, True), (p.size - 100, p.size, False)]
    kernels.lamb(p, g, m, v, tensors, 7, 1e-2, (0.9, 0.999), 1e-8, 0.05, 0.5)
    return p, m, v
