"""Operations of neural networks, fused for speed. Each has a `reference` built from simpler operations."""

from __future__ import annotations

from typing import Any

from .. import kernels
from ..backend import Array, device_of, to_device
from ..function import Context, Function, OperandError
from ..random import Stream
from ..tensor import Tensor, as_tensor
from .arguments import (
    as_tensor_like,
    autocasting,
    full_precision,
    normalise_axis,
    plain_number,
    require_floats,
    to_common_dtype,
)


class Softmax(Function):
    """y = e^x / sum e^x;  dx = y (g - sum(g y))"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: int) -> Array:
        require_floats(x)
        axis = normalise_axis(axis, x.ndim)
        y = kernels.softmax(x, axis)
        ctx.save(y, axis)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        y, axis = ctx.saved
        return kernels.softmax_grad(g, y, axis)

    @staticmethod
    def reference(x: Tensor, axis: int) -> Tensor:
        e = (x - x.detach().max(axis, keepdims=True)).exp()  # the shift cancels out, so it needs no gradient
        return e / e.sum(axis, keepdims=True)


class LogSoftmax(Function):
    """y = x - log sum e^x;  dx = g - softmax(x) sum(g)"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: int) -> Array:
        require_floats(x)
        axis = normalise_axis(axis, x.ndim)
        y = kernels.log_softmax(x, axis)
        ctx.save(y, axis)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        y, axis = ctx.saved
        return kernels.log_softmax_grad(g, y, axis)

    @staticmethod
    def reference(x: Tensor, axis: int) -> Tensor:
        return x - x.logsumexp(axis, keepdims=True)


class LayerNorm(Function):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the last axis"""

    @staticmethod
    def forward(ctx: Context, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        require_floats(x)
        if not x.ndim or not x.shape[-1]:
            raise OperandError(f"x needs a last axis with at least one value, got shape {x.shape}")
        for name, parameter in (("weight", weight), ("bias", bias)):
            if parameter.shape != x.shape[-1:]:
                raise OperandError(
                    f"{name} must have shape {x.shape[-1:]} to match the last axis of x {x.shape}, "
                    f"got {parameter.shape}"
                )
        y, x_hat, rstd = kernels.layer_norm(x, weight, bias, eps)
        ctx.save(x_hat, rstd, weight)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return kernels.layer_norm_grad(g, *ctx.saved)  # for x, weight, bias

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdims=True)
        return centred / ((centred * centred).mean(-1, keepdims=True) + eps).sqrt() * weight + bias


class Affine(Function):
    """y = weight x + shift, with one weight for each channel, the last axis; shift has the shape of weight or of x"""

    @staticmethod
    def forward(ctx: Context, x: Array, weight: Array, shift: Array) -> Array:
        require_floats(x)
        if not x.ndim or weight.shape != x.shape[-1:] or shift.shape not in (weight.shape, x.shape):
            raise OperandError(
                f"x {x.shape} needs a weight of shape {x.shape[-1:]} and a shift of that shape or its own, got "
                f"{weight.shape} and {shift.shape}"
            )
        ctx.save(x, weight, shift.ndim > 1)
        return kernels.affine(x, weight, shift)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        x, weight, whole = ctx.saved
        return kernels.affine_grad(g, x, weight, whole, ctx.needs)  # for x, weight, shift

    @staticmethod
    def reference(x: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        return weight * x + shift


class Gelu(Function):
    """y = x Phi(x), Phi the normal CDF;  dx = g (Phi(x) + x phi(x)), phi its density

    Forward computes the derivative along with the value, because they share most of the work, and saves only that.
    """

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        require_floats(x)
        y, derivative = kernels.gelu(x, with_derivative=ctx.needs[0])
        ctx.save(derivative)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (derivative,) = ctx.saved
        return g * derivative

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + (x * 0.5**0.5).erf())


class Silu(Function):
    """y = x s, s = sigmoid(x);  dx = g (s + y (1 - s))"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        require_floats(x)
        s = kernels.sigmoid(x)
        y = x * s
        ctx.save(s + y * (1 - s) if ctx.needs[0] else None)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (derivative,) = ctx.saved
        return g * derivative

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x * x.sigmoid()


class Dropout(Function):
    """y = x keep / (1 - rate), keep random;  dx = g keep / (1 - rate)

    `keep` has a shape that broadcasts to that of x: with one value per sample, whole samples are dropped (stochastic
    depth).
    """

    @staticmethod
    def forward(ctx: Context, x: Array, keep: Array, rate: float) -> Array:
        require_floats(x)
        ctx.save(keep, rate)
        return _keep(x, keep, rate)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        keep, rate = ctx.saved
        return _keep(g, keep, rate)

    @staticmethod
    def reference(x: Tensor, keep: Array, rate: float) -> Tensor:
        return x * keep / (1 - rate)


def _keep(x: Array, keep: Array, rate: float) -> Array:
    y = kernels.masked(x, keep)
    y *= x.dtype.type(1 / (1 - rate))
    return y


def softmax(x: Any, axis: int = -1) -> Tensor:
    """Softmax, stable for logits of any size. -inf gets weight 0, and a row of only -inf gives zeros."""
    return Softmax.apply(full_precision(x), axis)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    return LogSoftmax.apply(full_precision(x), axis)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-6) -> Tensor:
    """Layer normalisation over the last axis; weight and bias have that axis's size."""
    if weight is None or bias is None:
        raise TypeError("layer_norm: weight and bias must be arrays, got None; without them, pass ones and zeros")
    return LayerNorm.apply(
        *to_common_dtype("layer_norm", full_precision(x), weight, bias), plain_number("layer_norm: eps", eps)
    )


def affine(x: Any, weight: Any, shift: Any) -> Tensor:
    """Scale every channel, the last axis, then shift it; or add `shift`, if that has the shape of x.

    Under `autocast`, x keeps its dtype, and the result has that of weight and shift.
    """
    if not autocasting():
        return Affine.apply(*to_common_dtype("affine", x, weight, shift))
    x = as_tensor(x)
    return Affine.apply(x, *to_common_dtype("affine", *(as_tensor_like("affine", p, x) for p in (weight, shift))))


def gelu(x: Any) -> Tensor:
    """Exact GELU, with erf: exact in float64, with an error of erf of at most 1.5e-7 in float32."""
    return Gelu.apply(as_tensor(x))


def silu(x: Any) -> Tensor:
    """SiLU, also called swish: like GELU, but with a sigmoid."""
    return Silu.apply(as_tensor(x))


def dropout(x: Any, rate: float, stream: Stream) -> Tensor:
    """Drop each value with probability `rate`, and scale up the others to keep the mean.

    The same stream gives the same mask. Row i of `x` is sample `stream.sample + i`, see `autograd.random`.
    """
    x = as_tensor(x)
    return _drop("dropout", x, rate, stream, x.shape)


def drop_path(x: Any, rate: float, stream: Stream) -> Tensor:
    """Stochastic depth: drop whole samples (rows) with probability `rate`, and scale up the others."""
    x = as_tensor(x)
    return _drop("drop_path", x, rate, stream, (*x.shape[:1], *(1 for _ in x.shape[1:])))


def _drop(name: str, x: Tensor, rate: float, stream: Stream, mask_shape: tuple[int, ...]) -> Tensor:
    rate = plain_number(f"{name}: rate", rate)
    if not 0 <= rate < 1:
        raise OperandError(f"{name}: rate must be in [0, 1), got {rate}")
    if x.ndim == 0:
        raise OperandError(f"{name}: x needs a first axis of samples, got shape ()")
    if not isinstance(stream, Stream):
        raise TypeError(f"{name}: stream must be an autograd.random.Stream, got {type(stream).__name__}")
    if rate == 0:
        return x
    keep = stream.uniform(mask_shape) >= rate
    return Dropout.apply(x, to_device(keep, device_of(x.data)), rate)
