"""The fused end of a residual branch: last linear layer, per-channel scale, and the residual sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels
from ..backend import Array, constant, is_array, on_device_of, to_device
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import layer_operands, narrowed, plain_number
from .shape import concat


class LinearResidual(Function):
    """y = x + s (h W^T + b), with one value of s per channel, or one for all

    With `rows`, only those rows of x have a branch and the others pass through unchanged, so that stochastic depth need
    not compute the rows it drops. A `factor` for each row of h drops them where shapes cannot change, with a 0.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Array, h: Array, weight: Array, bias: Array, scale: Array | None, factor: Array,
        rows: Array | None,
    ) -> Array:  # fmt: skip
        count = x.shape[0] if rows is None else len(rows)
        if h.ndim != x.ndim or h.shape[:-1] != (count, *x.shape[1:-1]) or weight.shape != (x.shape[-1], h.shape[-1]):
            raise OperandError(
                f"x {x.shape} needs h of shape {(count, *x.shape[1:-1], 'in')} and a weight of shape "
                f"{(x.shape[-1], 'in')}, got {h.shape} and {weight.shape}"
            )
        for name, value in (("bias", bias), ("scale", scale)):
            if value is not None and value.shape != x.shape[-1:]:
                raise OperandError(f"{name} must have shape {x.shape[-1:]}, got {value.shape}")
        if is_array(factor) and factor.shape != (count,):
            raise OperandError(f"factor must be a number or have shape {(count,)}, got {factor.shape}")
        narrow = narrowed(weight, h.dtype)  # under autocast, weights are float32 and h is float16
        ctx.save(h, narrow, weight, bias, scale, factor, rows)
        return kernels.linear_residual(x, h, narrow, bias, scale, factor, rows)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        h, narrow, weight, bias, scale, factor, rows = ctx.saved
        gradients = kernels.linear_residual_grad(g, h, narrow, weight, bias, scale, factor, rows, ctx.needs[1:5])
        return g, *(gradients if scale is not None else gradients[:-1])

    @staticmethod
    def reference(
        x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None, factor: Array,
        rows: Array | None,
    ) -> Tensor:  # fmt: skip
        factor = factor.reshape(-1, *(1,) * (x.ndim - 1)) if is_array(factor) else factor
        branch = factor * (h @ weight.T + bias)
        branch = branch if scale is None else scale * branch
        if rows is None:
            return x + branch
        order = [next((i for i, row in enumerate(rows) if row == n), None) for n in range(x.shape[0])]
        return concat([x[n : n + 1] if i is None else x[n : n + 1] + branch[i : i + 1] for n, i in enumerate(order)])


def linear_residual(
    x: Any, h: Any, weight: Any, bias: Any, scale: Any = None, factor: Any = 1.0, rows: Any = None
) -> Tensor:
    """x + factor * scale * linear(h), with `scale` (d,) as in LayerScale, or without.

    `factor` is a constant: a number, or an array of one for each row of h.
    `rows` lists the rows of x that have a branch, each once. An array on a GPU is not checked: that would synchronise.
    """
    parameters = [x, weight, bias] if scale is None else [x, weight, bias, scale]
    h, x, weight, bias, *given = layer_operands("linear_residual", [h], parameters)
    scale = given[0] if given else None
    if rows is not None:
        rows = to_device(_checked_rows(rows, len(x)), x.device)
    if is_array(factor) and factor.ndim:
        factor = constant(factor, like=x.data)
    else:
        factor = plain_number("linear_residual: factor", factor)
    return LinearResidual.apply(x, h, weight, bias, scale, factor, rows)


def _checked_rows(rows: Any, count: int) -> Array:
    rows = rows.data if isinstance(rows, Tensor) else rows
    if not is_array(rows):
        rows = np.asarray(rows)
        rows = rows if rows.size else rows.astype(np.int64)
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        raise OperandError(f"linear_residual: rows must be a list of integers, got {rows.dtype} of shape {rows.shape}")
    if isinstance(rows, np.ndarray) and rows.size:
        if not 0 <= rows.min() <= rows.max() < count:
            raise IndexError(f"linear_residual: rows must be in [0, {count - 1}], got {rows.min()} to {rows.max()}")
        counts = np.bincount(rows.astype(np.int64))
        if counts.max() > 1:
            raise OperandError(f"linear_residual: rows must be distinct, but {counts.argmax()} is repeated")
    return on_device_of(rows).astype(np.int64, copy=False)
