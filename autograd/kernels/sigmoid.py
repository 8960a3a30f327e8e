"""sigmoid(x) = 1 / (1 + e^-x), as e^x / (1 + e^x) for negative x: accurate to the last digit on both sides."""

from __future__ import annotations

from ..backend import Array, array_module


def sigmoid(x: Array) -> Array:
    xp = array_module(x)
    e = xp.exp(-xp.abs(x))
    return xp.where(x < 0, e, 1).astype(x.dtype, copy=False) / (1 + e)
