"""sigmoid(x) = 1 / (1 + e^-x), as e^x / (1 + e^x) for negative x: accurate to the last digit on both sides."""

from __future__ import annotations

from ..backend import Array, array_module
from .launch import elementwise, on_gpu


def _sigmoid_numpy(x: Array) -> Array:
    xp = array_module(x)
    e = xp.exp(-xp.abs(x))
    return xp.where(x < 0, e, 1).astype(x.dtype, copy=False) / (1 + e)


_CUDA = """
    const wide_t w = x, e = exp(w < 0 ? w : -w);
    y = (w < 0 ? e : wide_t(1)) / (1 + e);
"""


def sigmoid(x: Array) -> Array:
    if not on_gpu(x):
        return _sigmoid_numpy(x)
    return elementwise("T x", "T y", _CUDA, "sigmoid", x.dtype.name)(x)


_CUDA_GRAD = """
    const wide_t s = y;
    dx = wide_t(g) * (s * (1 - s));
"""


def sigmoid_grad(g: Array, y: Array) -> Array:
    """g y (1 - y), for y = sigmoid(x)."""
    if not on_gpu(g):
        return g * (y * (1 - y))
    return elementwise("T g, T y", "T dx", _CUDA_GRAD, "sigmoid_grad", g.dtype.name)(g, y)
