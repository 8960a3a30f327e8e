"""What an optimiser does to every value of its arrays, in place: NumPy in few passes, CUDA in one launch each."""

from __future__ import annotations

import math

import numpy as np

from .. import cuda
from ..backend import Array, array_module

_ADAMW = """
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    p = keep * p - rate * m / (sqrt(v) * correction + eps);
"""
_AVERAGE = "average += part * (own - average);"


def adamw(
    p: Array, g: Array, m: Array, v: Array, lr: float, betas: tuple[float, float], eps: float, decay: float, step: int
) -> None:
    """Step number `step` of AdamW: it moves p and the means m of g and v of g^2, and takes `decay` of p away."""
    b1, b2 = betas
    rate, correction = lr / (1 - b1**step), 1 / math.sqrt(1 - b2**step)
    xp = array_module(p)
    if xp is not np and cuda.compiles():
        numbers = (p.dtype.type(number) for number in (b1, b2, eps, 1 - decay, rate, correction))
        arguments = "T g, T b1, T b2, T eps, T keep, T rate, T correction"
        cuda.elementwise(arguments, "T p, T m, T v", _ADAMW, "adamw")(g, *numbers, p, m, v)
        return
    scratch = g * (1 - b1)
    m *= b1
    m += scratch
    xp.multiply(g, g, out=scratch)
    scratch *= 1 - b2
    v *= b2
    v += scratch
    if decay:
        p *= 1 - decay
    xp.sqrt(v, out=scratch)
    scratch *= correction
    scratch += eps
    xp.divide(m, scratch, out=scratch)
    scratch *= rate
    p -= scratch


def move_average(average: Array, own: Array, part: float) -> None:
    """average + part (own - average)."""
    if array_module(own) is not np and cuda.compiles():
        cuda.elementwise("T own, T part", "T average", _AVERAGE, "move_average")(own, own.dtype.type(part), average)
        return
    step = own - average
    step *= part
    average += step
