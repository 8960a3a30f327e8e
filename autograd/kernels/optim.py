"""What an optimiser does to every value of its arrays, in place: NumPy in few passes, CUDA in one launch each.

How a step goes is said by four numbers, its pace, in an array on the device of the weights, so that a GPU can decide
them by itself (see `judge`) and the host need not wait to hear them.
"""

from __future__ import annotations

import math

import numpy as np

from .. import cuda
from ..backend import Array, array_module, to_device
from . import launch as rows

# The places of a pace: what gradients are multiplied by (0: nothing moves), what the bias of AdamW's two means is
# corrected by, and the part of the way that the average of the weights goes towards them.
BY, OF_MEAN, OF_ROOT, PART = range(4)
PACE_PLACES = "enum { BY, OF_MEAN, OF_ROOT, PART };"

_ADAMW = (
    PACE_PLACES
    + """
    if (pace[BY] != 0) {
        const P h = pace[BY] * P(g), mean = b1 * P(m) + (1 - b1) * h, square = b2 * P(v) + (1 - b2) * h * h;
        const P own = (i < decayed ? keep : P(1)) * P(p);
        m = mean;
        v = square;
        p = own - lr * pace[OF_MEAN] * mean / (sqrt(square) * pace[OF_ROOT] + eps);
        AVERAGE
    }
"""
)
_AVERAGE = "average = P(average) + pace[PART] * (P(p) - P(average));"
_MOVE_AVERAGE = PACE_PLACES + "if (pace[PART] != 0) " + _AVERAGE

# A block for every so many values, up to a number that fills any GPU; each thread takes every so-manieth value.
_BLOCK, _PER_BLOCK, _MOST_BLOCKS = 256, 2048, 256
_SQUARES = """
extern "C" __global__ void squares(const {T}* g, double* sums, long long n) {{
    double sum = 0;
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += threads) {{
        const double value = {wide}(g[i]);
        sum += value * value;
    }}
    sum = over_block(sum, Sum());
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}}
"""


def pace_of(steps: float, betas: tuple[float, float], ema_decay: float = 1.0, by: float = 1.0) -> list[float]:
    """Of step number `steps` (from 1). Early on, the average follows the weights faster than `ema_decay` says."""
    b1, b2 = betas
    return [by, 1 / (1 - b1**steps), 1 / math.sqrt(1 - b2**steps), 1 - min(ema_decay, (1 + steps) / (10 + steps))]


def adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    pace: Array,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decayed: int,
    average: Array | None = None,
) -> None:
    """A step of AdamW: it moves p and the means m of g and v of g^2, and the average of p if there is one.

    Before that it takes the part `decay` of the first `decayed` values of p away.
    """
    b1, b2 = betas
    if rows.on_gpu(p):
        name, results, averaging = "adamw", "T p, T m, T v", ""
        if average is not None:
            name, results, averaging = "adamw_and_average", results + ", T average", _AVERAGE
        arguments = "T g, raw P pace, P lr, P b1, P b2, P eps, P keep, int64 decayed"
        numbers = (pace.dtype.type(number) for number in (lr, b1, b2, eps, 1 - decay))
        moved = (p, m, v) if average is None else (p, m, v, average)
        cuda.elementwise(arguments, results, _ADAMW.replace("AVERAGE", averaging), name)(
            g, pace, *numbers, decayed, *moved
        )
        return
    by, of_mean, of_root, part = (float(number) for number in to_device(pace, "cpu"))
    if by == 0:
        return
    xp = array_module(p)
    scratch = g * (by * (1 - b1))
    m *= b1
    m += scratch
    scratch *= scratch  # and not g * g, which `by` may have to make smaller before it can be squared
    scratch *= (1 - b2) / (1 - b1) ** 2
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
    if average is not None:
        xp.subtract(p, average, out=scratch)
        scratch *= part
        average += scratch


def move_average(average: Array, own: Array, pace: Array) -> None:
    """average + part (own - average)."""
    if rows.on_gpu(own):
        cuda.elementwise("T p, raw P pace", "T average", _MOVE_AVERAGE, "move_average")(own, pace, average)
        return
    part = float(to_device(pace, "cpu")[PART])
    if part:
        step = own - average
        step *= part
        average += step


def squares(g: Array) -> Array:
    """The sum of g^2 in float64, which cannot overflow, as a few parts of it: CUDA's blocks make one each."""
    if not rows.on_gpu(g):
        return (g.astype(np.float64) ** 2).reshape(-1).sum(keepdims=True)
    g = array_module(g).ascontiguousarray(g)
    blocks = min(_MOST_BLOCKS, -(-g.size // _PER_BLOCK))
    sums = array_module(g).empty(blocks, np.float64)
    narrow, wide = rows.C_TYPES[g.dtype.name]
    kernel = rows.compiled(_SQUARES.format(T=narrow, wide=wide), "squares", "float64")
    kernel((blocks,), (_BLOCK,), (g, sums, np.int64(g.size)))
    return sums
