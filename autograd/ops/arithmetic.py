"""Binary operations with broadcasting. Either operand may be a plain number or array.

Plain numbers stay numbers and plain float arrays take the Tensor's dtype, so neither can promote a float32 Tensor.
"""

from __future__ import annotations

import math
from typing import Any

from .. import backend, kernels
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import as_tensor_like, binary_operands


class Add(Function):
    """y = a + b;  da = g, db = g"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        return a + b

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return ctx.unbroadcast(0, g), ctx.unbroadcast(1, g)


class Subtract(Function):
    """y = a - b;  da = g, db = -g"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        return a - b

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return ctx.unbroadcast(0, g), ctx.unbroadcast(1, -g) if ctx.needs[1] else None


class Multiply(Function):
    """y = a b;  da = g b, db = g a"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a if ctx.needs[1] else None, b if ctx.needs[0] else None)
        return a * b

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return _factor_gradient(ctx, 0, g, b), _factor_gradient(ctx, 1, g, a)


def _factor_gradient(ctx: Context, i: int, g: Array, other: Any) -> Array | None:
    if not ctx.needs[i] or not ctx.parents:
        return None
    fused = kernels.sum_products(g, other, ctx.parents[i].shape)
    return ctx.unbroadcast(i, g * other) if fused is None else fused


class Divide(Function):
    """y = a / b;  da = g / b, db = -g a / b^2"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a if ctx.needs[1] else None, b)
        return a / b

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return (
            ctx.unbroadcast(0, g / b) if ctx.needs[0] else None,
            ctx.unbroadcast(1, -g * (a / b) / b) if ctx.needs[1] else None,
        )


class Pow(Function):
    """y = a^b;  da = g b a^(b-1), db = g y log(a)

    Where b is 0, y is 1 for every a and da is 0, even at a = 0. Where a is 0, db is 0, even if y is infinite. There the
    other factors are replaced, because 0 times infinity is NaN.
    """

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        y = a**b
        ctx.save(a, b, y if ctx.needs[1] else None)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b, y = ctx.saved
        return _base_gradient(ctx, g, a, b), _exponent_gradient(ctx, g, a, y)


def _base_gradient(ctx: Context, g: Array, a: Array, b: Any) -> Array | None:
    if not ctx.needs[0]:
        return None
    xp = array_module(g)
    if isinstance(b, int | float):
        return ctx.unbroadcast(0, g * (b * a ** (b - 1)) if b != 0 else xp.zeros_like(g))
    zero = b == 0
    return ctx.unbroadcast(0, xp.where(zero, 0, g) * (b * a ** xp.where(zero, 0, b - 1)))


def _exponent_gradient(ctx: Context, g: Array, a: Any, y: Array) -> Array | None:
    if not ctx.needs[1]:
        return None
    xp = array_module(g)
    if isinstance(a, int | float):
        log_a = math.log(a) if a > 0 else math.nan
        return ctx.unbroadcast(1, g * y * log_a if a != 0 else xp.zeros_like(g))
    zero = a == 0
    return ctx.unbroadcast(1, xp.where(zero, 0, g) * xp.where(zero, 1, y) * xp.log(xp.where(zero, 1, a)))


class Maximum(Function):
    """y = max(a, b);  g goes to the larger one, half to each at ties"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a, b)
        return array_module(a if backend.is_array(a) else b).maximum(a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return _split_gradient(ctx, g, a > b, a == b)


class Minimum(Function):
    """y = min(a, b);  g goes to the smaller one, half to each at ties"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a, b)
        return array_module(a if backend.is_array(a) else b).minimum(a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return _split_gradient(ctx, g, a < b, a == b)


def _split_gradient(ctx: Context, g: Array, first_wins: Array, tie: Array) -> tuple[Array | None, Array | None]:
    xp = array_module(g)
    to_first = xp.where(tie, 0.5 * g, xp.where(first_wins, g, 0))
    to_second = xp.where(tie, 0.5 * g, xp.where(first_wins, 0, g))
    return ctx.unbroadcast(0, to_first), ctx.unbroadcast(1, to_second)


class Where(Function):
    """y = a where the condition holds, else b;  g goes to the one chosen"""

    @staticmethod
    def forward(ctx: Context, condition: Array, a: Array, b: Array) -> Array:
        if condition.dtype != bool:
            raise OperandError(f"condition must be boolean, got {condition.dtype}")
        ctx.save(condition)
        return array_module(condition).where(condition, a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        (condition,) = ctx.saved
        xp = array_module(g)
        return (
            None,
            ctx.unbroadcast(1, xp.where(condition, g, 0)) if ctx.needs[1] else None,
            ctx.unbroadcast(2, xp.where(condition, 0, g)) if ctx.needs[2] else None,
        )


# ---- public functions
# fmt: off

def add(a: Any, b: Any) -> Tensor: return Add.apply(*binary_operands("add", a, b))
def subtract(a: Any, b: Any) -> Tensor: return Subtract.apply(*binary_operands("subtract", a, b))
def multiply(a: Any, b: Any) -> Tensor: return Multiply.apply(*binary_operands("multiply", a, b))
def divide(a: Any, b: Any) -> Tensor: return Divide.apply(*binary_operands("divide", a, b))
def pow(a: Any, b: Any) -> Tensor: return Pow.apply(*binary_operands("pow", a, b))
def maximum(a: Any, b: Any) -> Tensor: return Maximum.apply(*binary_operands("maximum", a, b))
def minimum(a: Any, b: Any) -> Tensor: return Minimum.apply(*binary_operands("minimum", a, b))
# fmt: on


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Choose `a` where the boolean condition holds, else `b`: the way to "assign" to parts of a Tensor."""
    a, b = binary_operands("where", a, b)
    return Where.apply(as_tensor_like("where", condition, a if isinstance(a, Tensor) else b), a, b)
