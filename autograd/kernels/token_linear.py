"""A linear layer along the tokens x (B, N, d), the same for every channel:

    y = W x + b,    dx = W^T g,    dW = sum over samples of g x^T,    db = sum over samples and channels of g

with W (M, N) and b (M,). It is made of products and sums, and so needs no CUDA of its own.
"""

from __future__ import annotations

from typing import Any

from ..backend import Array
from .launch import on_gpu
from .product import product
from .sums import sum_over_rows, total, wide_dtype


def token_linear(x: Array, weight: Array, bias: Array) -> Array:
    y = product(weight, x)
    y += bias[:, None]
    return y


def token_linear_grad(g: Array, x: Array, weight: Array, dtype: Any, needs: list[bool]) -> tuple[Array | None, ...]:
    """Gradients for x, weight and bias, if needed. The last two have `dtype`."""
    dx = dweight = dbias = None
    if needs[0]:
        dx = product(weight.T, g)
    if needs[1]:
        dweight = total(product(g, x.swapaxes(1, 2), dtype=wide_dtype(g)), 0).astype(dtype, copy=False)
    if needs[2]:
        dbias = _bias_grad(g).astype(dtype, copy=False)
    return dx, dweight, dbias


def _bias_grad(g: Array) -> Array:
    if on_gpu(g):
        return sum_over_rows(total(g, -1, dtype=wide_dtype(g)))
    return total(g, (0, 2), dtype=wide_dtype(g))
