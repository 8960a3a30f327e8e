"""Two-dimensional convolution."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .. import kernels
from ..backend import Array
from ..function import Context, Function, OperandError
from ..kernels import Geometry
from ..tensor import Tensor
from .arguments import layer_operands, narrowed
from .shape import concat, pad, transpose


class Conv2d(Function):
    """y[b, i, j, o] = bias[o] + sum over m, n, c of x[b, s i + m - p, s j + n - p, c] weight[o, c, m, n]

    x (B, H, W, C) is zero outside. With groups, outputs and channels are cut into that many parts, and each part of the
    outputs sees one part of the channels. Backward makes the windows of x again, so only x is saved.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, groups: int
    ) -> Array:
        _check_shapes(x, weight, bias, groups)
        geometry = Geometry(weight.shape[2:], stride, padding)
        if min(geometry.output_size(*x.shape[1:3])) < 1:
            raise OperandError(
                f"a kernel of {weight.shape[2:]} pixels does not fit into an image of {x.shape[1:3]} pixels with "
                f"padding {padding}"
            )
        wide = weight.dtype  # of the parameters: float32 with a float16 x under autocast
        weight = narrowed(weight, x.dtype)
        ctx.save(x if ctx.needs[1] else None, weight if ctx.needs[0] else None, x.shape, wide, geometry, groups)
        return kernels.conv2d(x, weight, bias, geometry, groups)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, weight, x_shape, wide, geometry, groups = ctx.saved
        dx = dweight = dbias = None
        if ctx.needs[0]:
            dx = kernels.conv2d_grad_input(g, x_shape, weight, geometry, groups)
        if ctx.needs[1]:
            dweight = kernels.conv2d_grad_weight(g, x, geometry, groups).astype(wide, copy=False)
        if ctx.needs[2]:
            dbias = kernels.sum_over_rows(g, wide)
        return dx, dweight, dbias

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, groups: int) -> Tensor:
        """For each part of the channels and position (m, n) in the kernel: shift, take every s-th pixel, multiply."""
        outputs, channels, height, width = weight.shape
        rows, columns = Geometry((height, width), stride, padding).output_size(*x.shape[1:3])
        x = pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
        parts = []
        for group in range(groups):
            inputs = x[..., group * channels : (group + 1) * channels]
            own = weight[group * outputs // groups : (group + 1) * outputs // groups]
            y: Any = 0
            for m in range(height):
                for n in range(width):
                    shifted = inputs[:, m :: stride[0], n :: stride[1]][:, :rows, :columns]
                    y = y + shifted @ own[:, :, m, n].T
            parts.append(y)
        joined = concat(parts, -1)
        return joined if bias is None else joined + bias


def _check_shapes(x: Array, weight: Array, bias: Array | None, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise OperandError(f"x and weight need four axes, got shapes {x.shape} and {weight.shape}")
    outputs, channels = weight.shape[:2]
    if not weight.size or x.shape[-1] != channels * groups or outputs % groups:
        raise OperandError(
            f"weight must have shape (outputs, channels / groups, height, width), none of them zero, with outputs "
            f"divisible by groups; got {weight.shape} for {x.shape[-1]} channels with groups={groups}"
        )
    if bias is not None and bias.shape != (outputs,):
        raise OperandError(f"bias must have shape {(outputs,)} to match weight {weight.shape}, got {bias.shape}")


def conv2d(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, groups: int = 1,
    channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Convolution of images x (B, C, H, W) with weight (O, C / groups, kh, kw), as in PyTorch.

    `stride` and `padding` are a number or a pair, along rows and columns. With `channels_last`, x and the result are
    (B, H, W, channels), which is faster; the weight keeps its shape. With as many groups as channels and outputs, the
    convolution is depthwise.
    """
    stride, padding = _pair("stride", stride, 1), _pair("padding", padding, 0)
    if not _is_integer(groups) or groups < 1:
        raise OperandError(f"conv2d: groups must be a positive integer, got {groups!r}")
    parameters = [weight] if bias is None else [weight, bias]
    x, weight, *biases = layer_operands("conv2d", [x], parameters)
    if x.ndim == 4 and not channels_last:
        x = transpose(x, (0, 2, 3, 1))
    y = Conv2d.apply(x, weight, biases[0] if biases else None, stride=stride, padding=padding, groups=int(groups))
    return y if channels_last else transpose(y, (0, 3, 1, 2))


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    pair = value if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2 or not all(_is_integer(n) and n >= least for n in pair):
        raise OperandError(f"conv2d: {name} must be an integer of at least {least}, or a pair of them, got {value!r}")
    return int(pair[0]), int(pair[1])


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
