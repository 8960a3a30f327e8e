"""Batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import kernels
from ..backend import Array, array_module, constant
from ..function import Context, Function, OperandError
from ..modes import replayed
from ..tensor import Tensor, as_tensor
from .arguments import as_tensor_like, autocasting, normalise_axis, plain_number, require_floats, to_common_dtype
from .shape import swapaxes

Observer = Callable[[Array, Array, int], None]


class BatchNorm(Function):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, with one mean and var for each channel, the last axis

    They are those of x, over all other axes, unless given as constants. `observe` gets those of x once, not again when
    a checkpoint runs a second time.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Array, weight: Array, bias: Array, mean: Array, var: Array, eps: float,
        observe: Observer | None,
    ) -> Array:  # fmt: skip
        require_floats(x)
        given = mean is not None
        if not given:
            count = x.size // max(1, x.shape[-1])
            if count < 2:
                raise OperandError(f"batch statistics need at least two values for each channel, got shape {x.shape}")
            mean, var = kernels.moments(x)
            if observe is not None:
                replayed(lambda: observe(mean, var, count))
        rstd = 1 / array_module(x).sqrt(var + eps)
        ctx.save(x, mean, rstd, weight, given)
        return kernels.batch_norm(x, mean, rstd, weight, bias)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, mean, rstd, weight, given = ctx.saved
        return kernels.batch_norm_grad(g, x, mean, rstd, weight, given, ctx.needs)  # for x, weight, bias

    @staticmethod
    def reference(
        x: Tensor, weight: Tensor, bias: Tensor, mean: Any, var: Any, eps: float, observe: Observer | None
    ) -> Tensor:
        if mean is None:
            axes = tuple(range(x.ndim - 1))
            mean, var = x.mean(axes), x.var(axes)
        return (x - mean) / (var + eps) ** 0.5 * weight + bias


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any = None, var: Any = None, eps: float = 1e-5, axis: int = 1,
    observe: Observer | None = None,
) -> Tensor:  # fmt: skip
    """Normalise every channel, along `axis`, then scale and shift it; weight and bias have that axis's size.

    Without mean and var, over the batch: over all other axes. `observe(mean, var, count)` then gets its mean, its
    variance and the number of values of each channel, to update running statistics; this variance is divided by
    `count`. With mean and var, which get no gradient, these are used instead: in evaluation.

    Under `autocast`, x keeps its dtype. Statistics of float16 are computed in float32.
    """
    if weight is None or bias is None:
        raise TypeError("batch_norm: weight and bias must be arrays, got None; without them, pass ones and zeros")
    if (mean is None) != (var is None):
        raise TypeError("batch_norm: expected both mean and var, or neither, got only one of them")
    x, weight, bias = _operands(x, weight, bias)
    if not x.ndim:
        raise OperandError("batch_norm: x needs an axis of channels, got shape ()")
    try:
        axis = normalise_axis(axis, x.ndim)
    except OperandError as error:
        raise OperandError(f"batch_norm: {error}") from None
    channels = x.shape[axis]
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter.shape != (channels,):
            raise OperandError(
                f"batch_norm: {name} must have shape {(channels,)} to match axis {axis} of x {x.shape}, "
                f"got {parameter.shape}"
            )
    mean, var = (_statistic(name, value, x, channels) for name, value in (("mean", mean), ("var", var)))
    options = {"mean": mean, "var": var, "eps": plain_number("batch_norm: eps", eps), "observe": observe}
    if axis == x.ndim - 1:
        return BatchNorm.apply(x, weight, bias, **options)
    return swapaxes(BatchNorm.apply(swapaxes(x, axis, -1), weight, bias, **options), axis, -1)


def _operands(x: Any, weight: Any, bias: Any) -> list[Tensor]:
    if not autocasting():
        return to_common_dtype("batch_norm", x, weight, bias)
    x = as_tensor(x)
    return [x, *to_common_dtype("batch_norm", *(as_tensor_like("batch_norm", p, x) for p in (weight, bias)))]


def _statistic(name: str, value: Any, x: Tensor, channels: int) -> Array | None:
    """The mean or variance as an array beside x, in float32 for float16."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise TypeError(f"batch_norm: {name} gets no gradient: pass an array, or detach() the Tensor")
        value = value.data
    wide = array_module(x.data).empty(0, np.promote_types(x.dtype, np.float32))
    array = constant(value, like=wide)
    if array.shape != (channels,):
        raise OperandError(f"batch_norm: {name} must have shape {(channels,)}, got {array.shape}")
    return array
