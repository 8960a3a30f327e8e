"""Optimiser updates of whole arrays, in place.

AdamW   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  p = (1 - decay) p - lr m' / (sqrt(v') + eps),
        with the bias corrections m' = m / (1 - b1^t) and v' = v / (1 - b2^t) at step t
EMA     average += part (p - average)
norm    sum of g^2, in float64, which cannot overflow
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import Array, array_module
from . import launch


def _adamw_numpy(
    p: Array, g: Array, m: Array, v: Array, of_mean: float, of_root: float, lr: float, b1: float, b2: float, eps: float,
    decay: float, decayed: int,
) -> None:  # fmt: skip
    """In place throughout, with one temporary array: memory bandwidth is the limit."""
    xp = array_module(p)
    scratch = g * (1 - b1)
    m *= b1
    m += scratch
    scratch *= g
    scratch *= (1 - b2) / (1 - b1)
    v *= b2
    v += scratch
    if decay and decayed > 0:
        p[:decayed] *= 1 - decay
    xp.sqrt(v, out=scratch)
    scratch *= of_root
    scratch += eps
    xp.divide(m, scratch, out=scratch)
    scratch *= lr * of_mean
    p -= scratch


_ADAMW = """
    const wide_t grad = g, mean = b1 * wide_t(m) + (1 - b1) * grad, square = b2 * wide_t(v) + (1 - b2) * grad * grad;
    const wide_t own = (i < decayed ? keep : wide_t(1)) * wide_t(p);
    m = mean;
    v = square;
    p = own - lr * of_mean * mean / (sqrt(square) * of_root + eps);
"""


def adamw(
    p: Array, g: Array, m: Array, v: Array, step: int, lr: float, betas: tuple[float, float], eps: float, decay: float,
    decayed: int,
) -> None:  # fmt: skip
    """AdamW's step number `step` (from 1): moves p, m and v. The first `decayed` values of p lose the part `decay`."""
    b1, b2 = betas
    of_mean, of_root = 1 / (1 - b1**step), 1 / math.sqrt(1 - b2**step)
    if launch.on_gpu(p):
        arguments = ", ".join(f"wide_t {name}" for name in ("of_mean", "of_root", "lr", "b1", "b2", "eps", "keep"))
        kernel = _kernel(f"T g, {arguments}, int64 decayed", "T p, T m, T v", _ADAMW, "adamw", p)
        kernel(g, of_mean, of_root, lr, b1, b2, eps, 1 - decay, decayed, p, m, v)
    else:
        _adamw_numpy(p, g, m, v, of_mean, of_root, lr, b1, b2, eps, decay, decayed)


def move_average(average: Array, p: Array, part: float) -> None:
    """average += part (p - average)."""
    if launch.on_gpu(p):
        formula = "average = wide_t(average) + part * (wide_t(p) - wide_t(average));"
        _kernel("T p, wide_t part", "T average", formula, "move_average", p)(p, part, average)
    else:
        step = p - average
        step *= part
        average += step


def _kernel(arguments: str, results: str, formula: str, name: str, p: Array) -> Any:
    """Elementwise kernel that computes in wide_t: double for double, else float."""
    arguments = arguments.replace("wide_t", np.promote_types(p.dtype, np.float32).name)
    return launch.elementwise(arguments, results, formula, name, p.dtype.name)


# A grid-stride loop: every block leaves one partial sum.
_BLOCK, _PER_BLOCK, _MOST_BLOCKS = 256, 2048, 256
_SQUARES = """
extern "C" __global__ void squares(const T* g, double* sums, long long n) {
    double sum = 0;
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += threads) {
        const double value = wide_t(g[i]);
        sum += value * value;
    }
    sum = over_block(sum, Sum());
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
"""


def squares(g: Array) -> Array:
    """The sum of g^2 in float64, as a few partial sums: one per CUDA block."""
    if not launch.on_gpu(g):
        return (g.astype(np.float64) ** 2).reshape(-1).sum(keepdims=True)
    g = array_module(g).ascontiguousarray(g)
    blocks = min(_MOST_BLOCKS, -(-g.size // _PER_BLOCK))
    sums = array_module(g).empty(blocks, np.float64)
    kernel = launch.compiled(_SQUARES, "squares", g.dtype.name)
    kernel((blocks,), (_BLOCK,), (g, sums, np.int64(g.size)))
    return sums
