"""Products of matrices: `matmul` in all of NumPy's cases, and `linear`, the layer's y = x W^T + b."""

from __future__ import annotations

from typing import Any

from .. import kernels
from ..backend import Array
from ..function import Context, Function, OperandError, unbroadcast
from ..tensor import Tensor
from .arguments import of_one_dtype


class Matmul(Function):
    """y = a b;  da = g b^T, db = a^T g, over the last two axes

    A vector on the left is a row, a vector on the right a column; leading axes are broadcast.
    """

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        if not a.ndim or not b.ndim:
            raise OperandError(f"operands need at least one axis, got shapes {a.shape} and {b.shape}")
        rows = a.shape[-1]
        columns = b.shape[-2] if b.ndim > 1 else b.shape[0]
        if rows != columns:
            raise OperandError(f"the last axis of a {a.shape} must match the second to last of b {b.shape}")
        ctx.save(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        if a.ndim == 1:
            g = g[..., None, :] if b.ndim > 1 else g[..., None]
        if b.ndim == 1:
            g = g[..., None]
        row = a[None, :] if a.ndim == 1 else a
        column = b[:, None] if b.ndim == 1 else b
        da = db = None
        if ctx.needs[0]:
            da = unbroadcast(g @ column.swapaxes(-1, -2), row.shape).reshape(a.shape)
        if ctx.needs[1]:
            if column.ndim == 2 and row.ndim > 2:  # one large product instead of a sum over many small ones
                db = _rows(row).T @ _rows(g)
            else:
                db = unbroadcast(row.swapaxes(-1, -2) @ g, column.shape)
            db = db.reshape(b.shape)
        return da, db


class Linear(Function):
    """y = x W^T + b over the last axis, W (out, in);  dx = g W, dW = g^T x, db = sum of g"""

    @staticmethod
    def forward(ctx: Context, x: Array, weight: Array, bias: Array | None) -> Array:
        if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
            raise OperandError(
                f"weight must have shape (out, {x.shape[-1] if x.ndim else 'in'}) to match the last axis of x "
                f"{x.shape}, got {weight.shape}"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise OperandError(
                f"bias must have shape {weight.shape[:1]} to match weight {weight.shape}, got {bias.shape}"
            )
        ctx.save(x, weight)
        y = _rows(x) @ weight.T
        if bias is not None:
            y += bias
        return y.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, weight = ctx.saved
        rows = _rows(g)
        return (
            (rows @ weight).reshape(x.shape) if ctx.needs[0] else None,
            rows.T @ _rows(x) if ctx.needs[1] else None,
            kernels.total(rows, 0) if ctx.needs[2] else None,
        )

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x @ weight.T
        return y if bias is None else y + bias


def _rows(x: Array) -> Array:
    """All leading axes as one, without a copy where memory allows."""
    size = 1
    for n in x.shape[:-1]:
        size *= n
    return x.reshape(size, x.shape[-1])


def matmul(a: Any, b: Any) -> Tensor:
    return Matmul.apply(*of_one_dtype("matmul", a, b))


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """x W^T + bias, with W stored (out, in)."""
    if bias is None:
        return Linear.apply(*of_one_dtype("linear", x, weight), None)
    return Linear.apply(*of_one_dtype("linear", x, weight, bias))
