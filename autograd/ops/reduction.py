"""Reductions over one axis, several, or all (axis=None). float16 accumulates in float32."""

from __future__ import annotations

import math
from typing import Any

from .. import kernels
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import full_precision, normalise_axes, require_floats


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[a] for a in axes)


def _squeeze(y: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return y if keepdims else y.reshape([size for i, size in enumerate(y.shape) if i not in axes])


def _restore_axes(g: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Give a gradient its reduced axes back, with size 1, so that it broadcasts against the input."""
    return g.reshape([1 if i in axes else size for i, size in enumerate(shape)])


class Sum(Function):
    """y = sum of x;  dx = g, repeated"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        axes = normalise_axes(axis, x.ndim)
        ctx.save(x.shape, axes)
        return kernels.total(x, axes, keepdims)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        shape, axes = ctx.saved
        return array_module(g).broadcast_to(_restore_axes(g, shape, axes), shape)


class Mean(Function):
    """y = sum of x / n;  dx = g / n, repeated"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        axes = normalise_axes(axis, x.ndim)
        if _count(x.shape, axes) == 0:
            raise OperandError("the mean over an empty axis is undefined")
        ctx.save(x.shape, axes)
        return kernels.mean(x, axes, keepdims)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        shape, axes = ctx.saved
        return array_module(g).broadcast_to(_restore_axes(g * (1 / _count(shape, axes)), shape, axes), shape)

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        return sum(x, axis, keepdims) / _count(x.shape, normalise_axes(axis, x.ndim))


class Var(Function):
    """y = sum of (x - mean)^2 / (n - ddof);  dx = g 2 (x - mean) / (n - ddof)

    The gradient through the mean vanishes, because the deviations sum to zero.
    """

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool, ddof: int) -> Array:
        axes = normalise_axes(axis, x.ndim)
        n = _count(x.shape, axes) - ddof
        if n <= 0:
            raise OperandError(f"the variance needs more than ddof={ddof} values, got {n + ddof}")
        deviation = kernels.centred(kernels.widened(x), axes)
        ctx.save(deviation.astype(x.dtype, copy=False), axes, n)
        return (kernels.total(deviation * deviation, axes, keepdims) / n).astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        deviation, axes, n = ctx.saved
        return _restore_axes(g, deviation.shape, axes) * deviation * (2 / n)

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool, ddof: int) -> Tensor:
        centred = x - mean(x, axis, keepdims=True)
        return sum(centred * centred, axis, keepdims) / (_count(x.shape, normalise_axes(axis, x.ndim)) - ddof)


class _Extreme(Function):
    """Common part of max and min: g goes to the extreme value, in equal shares at ties."""

    @staticmethod
    def select(ctx: Context, x: Array, axis: Any, keepdims: bool, method: str) -> Array:
        axes = normalise_axes(axis, x.ndim)
        if _count(x.shape, axes) == 0:
            raise OperandError(f"the {method} over an empty axis is undefined")
        y = getattr(x, method)(axis=axes, keepdims=True)
        ctx.save((x == y) | (x != x) if ctx.needs[0] else None, axes)  # NaN is the extreme value if there is one
        return _squeeze(y, axes, keepdims)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        chosen, axes = ctx.saved
        wide = kernels.widened(_restore_axes(g, chosen.shape, axes))
        share = wide / chosen.sum(axis=axes, keepdims=True).astype(wide.dtype)
        return array_module(g).where(chosen, share, 0).astype(g.dtype, copy=False)


class Max(_Extreme):
    """y = largest of x;  g goes there, in equal shares at ties"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        return Max.select(ctx, x, axis, keepdims, "max")


class Min(_Extreme):
    """y = smallest of x;  g goes there, in equal shares at ties"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        return Min.select(ctx, x, axis, keepdims, "min")


class Logsumexp(Function):
    """y = log sum e^x, without overflow;  dx = g e^(x - y) = g softmax(x)"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        require_floats(x)
        axes = normalise_axes(axis, x.ndim)
        y, softmax = kernels.logsumexp(x, axes)
        ctx.save(softmax, axes)
        return _squeeze(y, axes, keepdims)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        softmax, axes = ctx.saved
        return _restore_axes(g, softmax.shape, axes) * softmax

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        return x.exp().sum(axis, keepdims).log()


# ---- public functions
# fmt: off

def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor: return Sum.apply(as_tensor(x), axis, keepdims)
def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor: return Mean.apply(as_tensor(x), axis, keepdims)
def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor: return Max.apply(as_tensor(x), axis, keepdims)
def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor: return Min.apply(as_tensor(x), axis, keepdims)
# fmt: on


def var(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Variance; ddof=1 divides by n - 1."""
    return Var.apply(as_tensor(x), axis, keepdims, ddof)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return Logsumexp.apply(full_precision(x), axis, keepdims)
