"""Matrix products: `matmul` for all of NumPy's cases, `linear`, y = x W^T + b, and `token_linear`, y = W x + b."""

from __future__ import annotations

from typing import Any

from .. import kernels
from ..backend import Array
from ..function import Context, Function, OperandError, unbroadcast
from ..tensor import Tensor
from .arguments import layer_operands, matmul_operands, narrowed


class Matmul(Function):
    """y = a b;  da = g b^T, db = a^T g, over the last two axes

    A vector on the left is a row, a vector on the right a column. Leading axes are broadcast.
    """

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        if not a.ndim or not b.ndim:
            raise OperandError(f"operands need at least one axis, got shapes {a.shape} and {b.shape}")
        rows = a.shape[-1]
        columns = b.shape[-2] if b.ndim > 1 else b.shape[0]
        if rows != columns:
            raise OperandError(f"the last axis of a {a.shape} must match the second to last of b {b.shape}")
        ctx.save(a if ctx.needs[1] else None, b if ctx.needs[0] else None, a.shape, b.shape)
        return kernels.product(a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b, a_shape, b_shape = ctx.saved
        row_shape = (1, *a_shape) if len(a_shape) == 1 else a_shape
        column_shape = (*b_shape, 1) if len(b_shape) == 1 else b_shape
        if len(b_shape) == 1:
            g = g[..., None]
        if len(a_shape) == 1:
            g = g[..., None, :]
        da = db = None
        if ctx.needs[0]:
            b = b.reshape(column_shape)
            da = unbroadcast(kernels.product(g, b.swapaxes(-1, -2)), row_shape).reshape(a_shape)
        if ctx.needs[1]:
            a = a.reshape(row_shape)
            if len(column_shape) == 2 and a.ndim > 2:  # one large product instead of a sum over many small ones
                db = kernels.product(kernels.as_rows(a).T, kernels.as_rows(g))
            else:
                db = unbroadcast(kernels.product(a.swapaxes(-1, -2), g), column_shape)
            db = db.reshape(b_shape)
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
        wide = weight.dtype  # of the parameters: float32 with a float16 x under autocast
        weight = narrowed(weight, x.dtype)
        ctx.save(x if ctx.needs[1] else None, weight if ctx.needs[0] else None, x.shape, wide)
        y = kernels.product(kernels.as_rows(x), weight.T)
        if bias is not None:
            y += bias
        return y.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, weight, x_shape, wide = ctx.saved
        rows = kernels.as_rows(g)
        return (
            kernels.product(rows, weight).reshape(x_shape) if ctx.needs[0] else None,
            kernels.product(rows.T, kernels.as_rows(x), dtype=wide) if ctx.needs[1] else None,
            kernels.sum_over_rows(rows, wide) if ctx.needs[2] else None,
        )

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x @ weight.T
        return y if bias is None else y + bias


class TokenLinear(Function):
    """y = W x + b over the tokens, the second axis of x (B, N, d);  dx = W^T g, dW = sum of g x^T, db = sum of g"""

    @staticmethod
    def forward(ctx: Context, x: Array, weight: Array, bias: Array) -> Array:
        if x.ndim != 3 or weight.ndim != 2 or weight.shape[1] != x.shape[1] or bias.shape != weight.shape[:1]:
            raise OperandError(
                f"x must have shape (B, N, d), weight (M, N) and bias (M,), got {x.shape}, {weight.shape} and "
                f"{bias.shape}"
            )
        wide = weight.dtype  # of the parameters: float32 with a float16 x under autocast
        weight = narrowed(weight, x.dtype)
        ctx.save(x if ctx.needs[1] else None, weight if ctx.needs[0] else None, wide)
        return kernels.token_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, weight, wide = ctx.saved
        return kernels.token_linear_grad(g, x, weight, wide, ctx.needs)  # for x, weight, bias

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return weight @ x + bias[:, None]


def matmul(a: Any, b: Any) -> Tensor:
    return Matmul.apply(*matmul_operands("matmul", a, b))


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """Linear layer x W^T + bias, with W of shape (out, in)."""
    if bias is None:
        return Linear.apply(*layer_operands("linear", [x], [weight]), None)
    return Linear.apply(*layer_operands("linear", [x], [weight, bias]))


def token_linear(x: Any, weight: Any, bias: Any) -> Tensor:
    """Linear layer W x + bias along the tokens of x (B, N, d), with W of shape (M, N): ResMLP's mixing of patches."""
    return TokenLinear.apply(*layer_operands("token_linear", [x], [weight, bias]))
