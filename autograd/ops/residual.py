"""The end of a residual branch: its last linear layer, a scale for every channel, and the sum with the main path."""

from __future__ import annotations

from typing import Any

from .. import kernels
from ..backend import Array, to_device
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import of_one_dtype
from .shape import concat


class LinearResidual(Function):
    """y = x + s (h W^T + b), with one value of s for each channel

    The scale is taken into the weight, S = diag(s) W, so y needs no pass over the tokens for it. Backward needs only h:
    with G = g^T h and the sum of g over the tokens,

    dh = g S,  dW = diag(s) G,  db = s sum(g),  ds = sum over each row of (G W) + b sum(g)

    With `rows`, there is a branch for those rows of x only, and the others stay as they are: what a residual block with
    stochastic depth does not keep, it need not compute.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Array, h: Array, weight: Array, bias: Array, scale: Array, factor: float, rows: Array | None
    ) -> Array:
        count = x.shape[0] if rows is None else len(rows)
        if h.ndim != x.ndim or h.shape[:-1] != (count, *x.shape[1:-1]) or weight.shape != (x.shape[-1], h.shape[-1]):
            raise OperandError(
                f"x {x.shape} needs h of shape {(count, *x.shape[1:-1], 'in')} and a weight of shape "
                f"{(x.shape[-1], 'in')}, got {h.shape} and {weight.shape}"
            )
        if bias.shape != x.shape[-1:] or scale.shape != x.shape[-1:]:
            raise OperandError(f"bias and scale must have shape {x.shape[-1:]}, got {bias.shape} and {scale.shape}")
        ctx.save(h, weight, bias, scale, factor, rows)
        h, weight, bias, scale = map(kernels.widened, (h, weight, bias, scale))  # float16 has no room for a small scale
        own = scale * scale.dtype.type(factor)
        y = kernels.as_rows(h) @ (weight * own[:, None]).T
        y += bias * own
        y = y.reshape(count, *x.shape[1:]).astype(x.dtype, copy=False)
        if rows is None:
            y += x
            return y
        whole = x.copy()
        whole[rows] += y
        return whole

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        *arrays, factor, rows = ctx.saved
        h, weight, bias, scale = map(kernels.widened, arrays)
        _, h_needed, weight_needed, bias_needed, scale_needed, *_ = ctx.needs
        own = scale * scale.dtype.type(factor)
        g_rows = kernels.widened(kernels.as_rows(g if rows is None else g[rows]))
        dh = dweight = dbias = dscale = None
        if h_needed:
            dh = (g_rows @ (weight * own[:, None])).reshape(h.shape)
        if weight_needed or scale_needed:
            dweight = g_rows.T @ kernels.as_rows(h)
        if bias_needed or scale_needed:
            dbias = kernels.sum_over_rows(g_rows)
        if scale_needed:
            dscale = kernels.row_dots(dweight, weight)[:, 0]
            dscale += bias * dbias
            dscale *= scale.dtype.type(factor)
        if weight_needed:
            dweight *= own[:, None]
        if bias_needed:
            dbias *= own
        return g, *(d if d is None else d.astype(g.dtype, copy=False) for d in (dh, dweight, dbias, dscale))

    @staticmethod
    def reference(
        x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, factor: float, rows: Array | None
    ) -> Tensor:
        branch = factor * scale * (h @ weight.T + bias)
        if rows is None:
            return x + branch
        order = [next((i for i, row in enumerate(rows) if row == n), None) for n in range(x.shape[0])]
        return concat([x[n : n + 1] if i is None else x[n : n + 1] + branch[i : i + 1] for n, i in enumerate(order)])


def linear_residual(
    x: Any, h: Any, weight: Any, bias: Any, scale: Any, factor: float = 1.0, rows: Array | None = None
) -> Tensor:
    """x + factor * scale * linear(h), with `scale` (d,) as in LayerScale; `rows` are those of x that have a branch."""
    operands = of_one_dtype("linear_residual", x, h, weight, bias, scale)
    if rows is not None:
        rows = to_device(rows, operands[0].device)
    return LinearResidual.apply(*operands, float(factor), rows)
