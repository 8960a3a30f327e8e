"""Operations on two operands, which are broadcast against each other; either may be a plain number or array.

A plain number stays one and a plain float array takes the Tensor's dtype, so neither can promote a float32 Tensor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend
from ..backend import FLOATS, Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor


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
        return (
            ctx.unbroadcast(0, g * b) if ctx.needs[0] else None,
            ctx.unbroadcast(1, g * a) if ctx.needs[1] else None,
        )


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

    Where b is 0, y is 1 for every a and da is 0, also at a = 0. Where a is 0, db is 0.
    """

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        y = a**b
        ctx.save(a, b, y if ctx.needs[1] else None)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b, y = ctx.saved
        xp = array_module(g)
        da = db = None
        if ctx.needs[0]:
            if isinstance(b, int | float):
                slope = b * a ** (b - 1) if b != 0 else xp.zeros_like(a)
            else:
                slope = xp.where(b == 0, 0, b * a ** xp.where(b == 0, 1, b - 1))
            da = ctx.unbroadcast(0, g * slope)
        if ctx.needs[1]:
            log_a = math.log(a) if isinstance(a, int | float) and a > 0 else xp.log(xp.where(a == 0, 1, a))
            db = ctx.unbroadcast(1, g * y * log_a)
        return da, db


class Maximum(Function):
    """y = max(a, b);  g goes to the larger one, half to each where they are equal"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a, b)
        return array_module(a if backend.is_array(a) else b).maximum(a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return _to_the_winner(ctx, g, a > b, a == b)


class Minimum(Function):
    """y = min(a, b);  g goes to the smaller one, half to each where they are equal"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        ctx.save(a, b)
        return array_module(a if backend.is_array(a) else b).minimum(a, b)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        a, b = ctx.saved
        return _to_the_winner(ctx, g, a < b, a == b)


def _to_the_winner(ctx: Context, g: Array, first_wins: Array, tie: Array) -> tuple[Array | None, Array | None]:
    to_first = g * first_wins + 0.5 * g * tie
    return ctx.unbroadcast(0, to_first), ctx.unbroadcast(1, g - to_first)


class Where(Function):
    """y = a where the condition holds, else b;  g goes where y came from"""

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


# ---- the functions that people call


def add(a: Any, b: Any) -> Tensor:
    return Add.apply(*_operands("add", a, b))


def subtract(a: Any, b: Any) -> Tensor:
    return Subtract.apply(*_operands("subtract", a, b))


def multiply(a: Any, b: Any) -> Tensor:
    return Multiply.apply(*_operands("multiply", a, b))


def divide(a: Any, b: Any) -> Tensor:
    return Divide.apply(*_operands("divide", a, b))


def pow(a: Any, b: Any) -> Tensor:
    return Pow.apply(*_operands("pow", a, b))


def maximum(a: Any, b: Any) -> Tensor:
    return Maximum.apply(*_operands("maximum", a, b))


def minimum(a: Any, b: Any) -> Tensor:
    return Minimum.apply(*_operands("minimum", a, b))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """`a` where the boolean condition holds, else `b`: the way to "assign" to parts of a Tensor."""
    condition = condition if isinstance(condition, Tensor) else Tensor(np.asarray(condition))
    return Where.apply(condition, *_operands("where", a, b))


def _operands(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands as forward wants them: numbers as they are, everything else as Tensors of one dtype."""
    if isinstance(a, Tensor):
        # the two usual cases, without the detours below
        if type(b) is float or type(b) is int or (isinstance(b, Tensor) and a.data.dtype is b.data.dtype):
            return a, b
    elif not isinstance(b, Tensor):
        a = as_tensor(a)
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    like = next((x for x in tensors if x.dtype in FLOATS), tensors[0])
    return _operand(name, a, like), _operand(name, b, like)


def _operand(name: str, x: Any, like: Tensor) -> Any:
    if isinstance(x, np.generic):
        x = x.item()  # a NumPy scalar would promote, a Python number does not
    if isinstance(x, int | float):
        return x
    if not isinstance(x, Tensor):
        if backend.is_array(x) and backend.device_of(x) != like.device:
            raise ValueError(
                f"{name}: a Tensor on {like.device} met an array on {backend.device_of(x)}; move one of them"
            )
        x = Tensor(backend.constant(x, like=like.data))
    if x.dtype == like.dtype or like.dtype not in FLOATS:
        return x
    if x.dtype in FLOATS:  # two kinds of float are a mistake more often than a wish
        raise TypeError(
            f"{name}: operands must have one float dtype, got {like.dtype} and {x.dtype}; convert one with .astype(...)"
        )
    return Tensor(x.data.astype(like.dtype))
