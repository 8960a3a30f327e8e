"""Reductions over one axis, several, or all (axis=None), and running sums. float16 accumulates in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import full_precision, normalise_axes, normalise_axis, require_floats


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
        deviation, variance, axes, n = _spread(x, axis, ddof)
        ctx.save(deviation.astype(x.dtype, copy=False), axes, n)
        return _squeeze(variance, axes, keepdims).astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        deviation, axes, n = ctx.saved
        return _restore_axes(g, deviation.shape, axes) * deviation * (2 / n)

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool, ddof: int) -> Tensor:
        centred = x - mean(x, axis, keepdims=True)
        return sum(centred * centred, axis, keepdims) / (_count(x.shape, normalise_axes(axis, x.ndim)) - ddof)


class Std(Function):
    """y = sqrt of the variance;  dx = g (x - mean) / (y (n - ddof)), 0 where y is 0"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool, ddof: int) -> Array:
        deviation, variance, axes, n = _spread(x, axis, ddof)
        y = array_module(x).sqrt(variance)
        ctx.save(deviation.astype(x.dtype, copy=False), y, axes, n)
        return _squeeze(y, axes, keepdims).astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        deviation, y, axes, n = ctx.saved
        return _along(g, deviation, y, axes) * (1 / n)

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool, ddof: int) -> Tensor:
        return var(x, axis, keepdims, ddof).sqrt()


def _spread(x: Array, axis: Any, ddof: int) -> tuple[Array, Array, tuple[int, ...], int]:
    """Deviations from the mean, and the variance with its axes kept, both at least float32; the axes, and n - ddof."""
    axes = normalise_axes(axis, x.ndim)
    n = _count(x.shape, axes) - ddof
    if n <= 0:
        raise OperandError(f"the variance needs more than ddof={ddof} values, got {n + ddof}")
    deviation = kernels.centred(kernels.widened(x), axes)
    return deviation, kernels.total(deviation * deviation, axes, keepdims=True) / n, axes, n


class Norm(Function):
    """y = sqrt of the sum of x^2;  dx = g x / y, 0 where y is 0"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any, keepdims: bool) -> Array:
        require_floats(x)
        axes = normalise_axes(axis, x.ndim)
        wide = kernels.widened(x)
        y = array_module(x).sqrt(kernels.total(wide * wide, axes, keepdims=True))
        ctx.save(x, y, axes)
        return _squeeze(y, axes, keepdims).astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        return _along(g, *ctx.saved)

    @staticmethod
    def reference(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
        return (x * x).sum(axis, keepdims).sqrt()


def _along(g: Array, x: Array, y: Array, axes: tuple[int, ...]) -> Array:
    """g x / y, 0 where y is 0."""
    direction = x / array_module(x).where(y == 0, 1, y)
    return (_restore_axes(g, x.shape, axes) * direction).astype(x.dtype, copy=False)


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


class Cumsum(Function):
    """y_i = x_0 + ... + x_i along an axis;  dx_i = g_i + ... + g_n"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: int) -> Array:
        axis = normalise_axis(axis, x.ndim)
        ctx.save(axis)
        return _running_sum(x, axis)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (axis,) = ctx.saved
        xp = array_module(g)
        return xp.flip(_running_sum(xp.flip(g, axis), axis), axis)


def _running_sum(x: Array, axis: int) -> Array:
    y = kernels.widened(x).cumsum(axis=axis)
    return y.astype(x.dtype) if x.dtype == np.float16 else y


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


def std(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Standard deviation; ddof=1 divides by n - 1."""
    return Std.apply(as_tensor(x), axis, keepdims, ddof)


def norm(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Euclidean norm, of all values or over some axes."""
    return Norm.apply(as_tensor(x), axis, keepdims)


def cumsum(x: Any, axis: int | None = None) -> Tensor:
    """Running sums along an axis, or without one, of the flattened Tensor."""
    x = as_tensor(x)
    return Cumsum.apply(x, axis) if axis is not None else Cumsum.apply(x.reshape(-1), 0)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return Logsumexp.apply(full_precision(x), axis, keepdims)
