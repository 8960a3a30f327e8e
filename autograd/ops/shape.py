"""Reshaping, transposing, joining, padding and triangles. Results are views where NumPy returns views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from numbers import Integral
from typing import Any

import numpy as np

from .. import modes
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import normalise_axes, normalise_axis, plain_number, to_common_dtype


class Reshape(Function):
    """y = x in another shape;  dx = g in x's"""

    @staticmethod
    def forward(ctx: Context, x: Array, shape: tuple[int, ...]) -> Array:
        ctx.save(x.shape)
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (shape,) = ctx.saved
        return g.reshape(shape)


class Transpose(Function):
    """y = x with its axes permuted;  dx = g with the inverse permutation"""

    @staticmethod
    def forward(ctx: Context, x: Array, axes: tuple[int, ...]) -> Array:
        axes = normalise_axes(axes, x.ndim)
        if len(axes) != x.ndim:
            raise OperandError(f"axes must name each of the {x.ndim} axes of x {x.shape} once, got {axes}")
        ctx.save(axes)
        return x.transpose(axes)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (axes,) = ctx.saved
        return g.transpose(np.argsort(axes).tolist())


class BroadcastTo(Function):
    """y = x broadcast to a larger shape, without a copy;  dx = g summed over the broadcast axes"""

    @staticmethod
    def forward(ctx: Context, x: Array, shape: tuple[int, ...]) -> Array:
        return array_module(x).broadcast_to(x, shape)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array | None:
        return ctx.unbroadcast(0, g)


class Concat(Function):
    """y = the inputs joined along an axis;  each gets its slice of g"""

    @staticmethod
    def forward(ctx: Context, *xs: Array, axis: int) -> Array:
        if not xs[0].ndim or any(x.ndim != xs[0].ndim for x in xs):
            raise OperandError("all inputs must have the same number of axes, at least one")
        axis = normalise_axis(axis, xs[0].ndim)
        xp, ends = array_module(xs[0]), list(accumulate(x.shape[axis] for x in xs))
        ctx.save(axis, ends)
        if modes.current().capture is None:
            return xp.concatenate(xs, axis=axis)
        # a CUDA graph cannot hold what CuPy does for many arrays: it copies their addresses to the GPU
        y = xp.empty((*xs[0].shape[:axis], ends[-1], *xs[0].shape[axis + 1 :]), xs[0].dtype)
        for part, x in zip(xp.split(y, ends[:-1], axis), xs, strict=True):
            part[...] = x
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        axis, ends = ctx.saved
        return tuple(array_module(g).split(g, ends[:-1], axis))


class Pad(Function):
    """y = x padded with a constant;  dx = the part of g inside the padding"""

    @staticmethod
    def forward(ctx: Context, x: Array, widths: list[tuple[int, int]], value: float) -> Array:
        shape = [before + size + after for size, (before, after) in zip(x.shape, widths, strict=True)]
        inside = tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))
        ctx.save(inside)
        y = array_module(x).full(shape, value, dtype=x.dtype)
        y[inside] = x
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (inside,) = ctx.saved
        return g[inside]


class Flip(Function):
    """y = x reversed along some axes;  dx = g reversed"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: Any) -> Array:
        axes = normalise_axes(axis, x.ndim)
        ctx.save(axes)
        return array_module(x).flip(x, axes)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (axes,) = ctx.saved
        return array_module(g).flip(g, axes)


class Tril(Function):
    """y = x on and below diagonal k of the last two axes, and 0 above;  dx = g there, and 0 above"""

    @staticmethod
    def forward(ctx: Context, x: Array, k: int) -> Array:
        if x.ndim < 2:
            raise OperandError(f"x needs at least two axes, got shape {x.shape}")
        ctx.save(k)
        return array_module(x).tril(x, k)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (k,) = ctx.saved
        return array_module(g).tril(g, k)


def reshape(x: Any, shape: int | Sequence[int]) -> Tensor:
    """Reshape; one size may be -1 and is inferred from the others."""
    return Reshape.apply(as_tensor(x), _sizes(shape))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes, by default reversing them."""
    x = as_tensor(x)
    return Transpose.apply(x, tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))


def swapaxes(x: Any, axis1: int, axis2: int) -> Tensor:
    x = as_tensor(x)
    axes = list(range(x.ndim))
    try:
        axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    except IndexError:
        raise OperandError(f"swapaxes: axis {axis1} or {axis2} is out of range for shape {x.shape}") from None
    return Transpose.apply(x, tuple(axes))


def broadcast_to(x: Any, shape: int | Sequence[int]) -> Tensor:
    return BroadcastTo.apply(as_tensor(x), _sizes(shape))


def expand_dims(x: Any, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of size 1 at position `axis` of the result."""
    x = as_tensor(x)
    new = _sizes(axis)
    ndim = x.ndim + len(new)
    positions = {a % ndim for a in new if -ndim <= a < ndim}
    if len(positions) != len(new):
        raise OperandError(f"expand_dims: axis {axis} does not fit into a result of {ndim} axes for shape {x.shape}")
    sizes = iter(x.shape)
    return Reshape.apply(x, tuple(1 if i in positions else next(sizes) for i in range(ndim)))


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Tensor:
    """Remove the given axes of size 1, by default all of them."""
    x = as_tensor(x)
    if axis is None:
        return Reshape.apply(x, tuple(size for size in x.shape if size != 1))
    removed = _sizes(axis)
    for a in removed:
        if not -x.ndim <= a < x.ndim or x.shape[a] != 1:
            raise OperandError(f"squeeze: axis {a} of shape {x.shape} does not exist or is not of size 1")
    positions = {a % x.ndim for a in removed}
    return Reshape.apply(x, tuple(size for i, size in enumerate(x.shape) if i not in positions))


def concat(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Join Tensors along an existing axis."""
    if not xs:
        raise OperandError("concat: needs at least one Tensor, got none")
    return Concat.apply(*to_common_dtype("concat", *xs), axis=axis)


def stack(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Join Tensors of equal shape along a new axis."""
    if not xs:
        raise OperandError("stack: needs at least one Tensor, got none")
    tensors = to_common_dtype("stack", *xs)
    if not -tensors[0].ndim - 1 <= axis <= tensors[0].ndim:
        raise OperandError(f"stack: axis {axis} is out of range for {tensors[0].ndim + 1} axes")
    if len({x.shape for x in tensors}) > 1:
        raise OperandError(f"stack: all shapes must be equal, got {', '.join(str(x.shape) for x in tensors)}")
    return Concat.apply(*(expand_dims(x, axis) for x in tensors), axis=axis)


def pad(x: Any, pad_width: int | Sequence[Any], constant_values: float = 0) -> Tensor:
    """Pad with a constant. `pad_width` as in NumPy: a number, (before, after) for every axis, or a pair per axis."""
    x = as_tensor(x)
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
    except ValueError:
        widths = np.full(1, -1)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise OperandError(f"pad: pad_width must give (before, after) >= 0 for the axes of {x.shape}, got {pad_width}")
    return Pad.apply(
        x, [tuple(width) for width in widths.tolist()], plain_number("pad: constant_values", constant_values)
    )


def flip(x: Any, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverse the order along the given axes, by default all."""
    return Flip.apply(as_tensor(x), axis)


def tril(x: Any, k: int = 0) -> Tensor:
    """Lower triangle of the last two axes, up to diagonal `k`: as booleans, a mask for causal attention."""
    return Tril.apply(as_tensor(x), k)


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, Integral) else tuple(map(int, shape))  # type: ignore[arg-type]
