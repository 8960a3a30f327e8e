"""LAMB's update (You et al., 2020) of many tensors that lie in one flat array, in place:

    g = scale g                                to clip it
    m = b1 m + (1 - b1) g,    v = b2 v + (1 - b2) g^2
    u = m' / (sqrt(v') + eps) + decay p        with the bias corrections m' = m / (1 - b1^t) and v' = v / (1 - b2^t)
    p = p - lr r u                             with r = |p| / |u| of each tensor, its trust ratio

A tensor without decay has r = 1, as has one of which |p| or |u| is 0. Sums of squares are combined in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..backend import Array, array_module, device_of, to_device
from . import launch

Span = tuple[int, int, bool]  # start and end of a tensor in the flat array, and whether it decays

_CHUNK = 1 << 17  # values that are updated at a time, so that they stay in the cache


def _lamb_numpy(
    p: Array, g: Array, m: Array, v: Array, scale: float, mean_correction: float, root_correction: float, lr: float,
    b1: float, b2: float, eps: float, decay: float,
) -> None:  # fmt: skip
    """One tensor: its u, chunk by chunk, and then, with the ratio, its p."""
    xp, p_squares, u_squares = array_module(p), 0.0, 0.0
    u = xp.empty(p.shape, p.dtype)
    chunks = [slice(start, start + _CHUNK) for start in range(0, p.size, _CHUNK)]
    for chunk in chunks:
        part, mean, square, step = p[chunk], m[chunk], v[chunk], u[chunk]
        xp.multiply(g[chunk], scale * (1 - b1), out=step)
        mean *= b1
        mean += step
        step *= step
        step *= (1 - b2) / (1 - b1) ** 2
        square *= b2
        square += step
        xp.sqrt(square, out=step)
        step *= root_correction / mean_correction
        step += eps / mean_correction
        xp.divide(mean, step, out=step)
        if decay:
            step += part * decay
            p_squares += float(xp.vdot(part, part))
            u_squares += float(xp.vdot(step, step))
    ratio = math.sqrt(p_squares / u_squares) if p_squares > 0 and u_squares > 0 else 1.0
    for chunk in chunks:
        u[chunk] *= lr * ratio
        p[chunk] -= u[chunk]


# A block of threads for each piece of a tensor. A row of `pieces` has the start and end of a piece, and the range of
# pieces that make up its tensor, which is empty if the ratio is 1. Every block leaves the sums of squares of its piece.
# In the second launch every block adds up those of its tensor, all blocks in the same order.
_PIECE, _BLOCK = 4096, 256
_LAMB = """
extern "C" __global__ void lamb_direction(
    const T* p, const T* g, T* m, T* v, T* u, const long long* pieces, double* squares,
    wide_t scale, wide_t mean_correction, wide_t root_correction, wide_t b1, wide_t b2, wide_t eps, wide_t decay
) {
    const long long* piece = pieces + 4 * (long long)blockIdx.x;
    const wide_t own_decay = piece[2] < piece[3] ? decay : wide_t(0);
    double p_squares = 0, u_squares = 0;
    for (long long i = piece[0] + threadIdx.x; i < piece[1]; i += blockDim.x) {
        const wide_t weight = p[i], grad = scale * g[i];
        const wide_t mean = b1 * m[i] + (1 - b1) * grad, square = b2 * v[i] + (1 - b2) * grad * grad;
        const wide_t step = mean_correction * mean / (sqrt(square) * root_correction + eps) + own_decay * weight;
        m[i] = mean;
        v[i] = square;
        u[i] = step;
        p_squares += double(weight) * weight;
        u_squares += double(step) * step;
    }
    p_squares = over_block(p_squares, Sum());
    u_squares = over_block(u_squares, Sum());
    if (threadIdx.x == 0) {
        squares[2 * (long long)blockIdx.x] = p_squares;
        squares[2 * (long long)blockIdx.x + 1] = u_squares;
    }
}

extern "C" __global__ void lamb_move(T* p, const T* u, const long long* pieces, const double* squares, wide_t lr) {
    const long long* piece = pieces + 4 * (long long)blockIdx.x;
    double p_squares = 0, u_squares = 0;
    for (long long i = piece[2] + threadIdx.x; i < piece[3]; i += blockDim.x) {
        p_squares += squares[2 * i];
        u_squares += squares[2 * i + 1];
    }
    p_squares = over_block(p_squares, Sum());
    u_squares = over_block(u_squares, Sum());
    const wide_t rate = lr * wide_t(p_squares > 0 && u_squares > 0 ? sqrt(p_squares / u_squares) : 1.0);
    for (long long i = piece[0] + threadIdx.x; i < piece[1]; i += blockDim.x) p[i] -= rate * u[i];
}
"""


@lru_cache(maxsize=1024)
def _pieces(tensors: tuple[Span, ...], device: str) -> Array:
    """The table for the CUDA kernels. It is copied to the GPU once, not in every step."""
    rows: list[tuple[int, int, int, int]] = []
    for start, end, decayed in tensors:
        edges = [*range(start, end, _PIECE), end]
        first, last = len(rows), len(rows) + len(edges) - 1
        rows += [(a, b, first, last if decayed else first) for a, b in pairwise(edges)]
    return to_device(np.array(rows, np.int64).reshape(-1, 4), device)


def lamb(
    p: Array, g: Array, m: Array, v: Array, tensors: Sequence[Span], step: int, lr: float, betas: tuple[float, float],
    eps: float, decay: float, scale: float,
) -> None:  # fmt: skip
    """LAMB's step number `step` (from 1) for these tensors in the flat arrays, along `scale` g: moves p, m and v."""
    b1, b2 = betas
    mean_correction, root_correction = 1 / (1 - b1**step), 1 / math.sqrt(1 - b2**step)
    factors = scale, mean_correction, root_correction
    if not launch.on_gpu(p):
        for start, end, decayed in tensors:
            part, own_decay = slice(start, end), decay if decayed else 0.0
            _lamb_numpy(p[part], g[part], m[part], v[part], *factors, lr, b1, b2, eps, own_decay)
        return
    xp, wide = array_module(p), np.promote_types(p.dtype, np.float32).type
    g = xp.ascontiguousarray(g, p.dtype)
    pieces = _pieces(tuple((start, end, decayed and decay != 0) for start, end, decayed in tensors), device_of(p))
    u, squares = xp.empty(p.shape, p.dtype), xp.empty((len(pieces), 2), np.float64)
    constants = (wide(x) for x in (*factors, b1, b2, eps, decay))
    direction, move = (launch.compiled(_LAMB, f"lamb_{name}", p.dtype.name) for name in ("direction", "move"))
    direction((len(pieces),), (_BLOCK,), (p, g, m, v, u, pieces, squares, *constants))
    move((len(pieces),), (_BLOCK,), (p, u, pieces, squares, wide(lr)))
