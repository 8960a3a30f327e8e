"""Unary elementwise operations, and clipping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import broadcasts, require_floats, to_common_dtype


class Negative(Function):
    """y = -x;  dx = -g"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        return -x

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        return -g


class Exp(Function):
    """y = e^x;  dx = g y"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).exp(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (y,) = ctx.saved
        return g * y


class Log(Function):
    """y = log x;  dx = g / x"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)
        return array_module(x).log(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        return g / x


class Expm1(Function):
    """y = e^x - 1, accurate near 0;  dx = g e^x"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)  # not y: where it is near -1, y + 1 has few digits
        return array_module(x).expm1(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        return g * array_module(x).exp(x)


class Log1p(Function):
    """y = log(1 + x), accurate near 0;  dx = g / (1 + x)"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)
        return array_module(x).log1p(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        return g / (1 + x)


class Sin(Function):
    """y = sin x;  dx = g cos x"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)
        return array_module(x).sin(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        return g * array_module(x).cos(x)


class Cos(Function):
    """y = cos x;  dx = -g sin x"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        ctx.save(x)
        return array_module(x).cos(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        return -g * array_module(x).sin(x)


class Sqrt(Function):
    """y = sqrt x;  dx = g / 2y"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).sqrt(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (y,) = ctx.saved
        return g / (2 * y)


class Tanh(Function):
    """y = tanh x;  dx = g (1 - y^2)"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).tanh(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (y,) = ctx.saved
        return g * (1 - y * y)


class Sigmoid(Function):
    """y = 1 / (1 + e^-x);  dx = g y (1 - y)"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = kernels.sigmoid(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (y,) = ctx.saved
        return kernels.sigmoid_grad(g, y)


class Erf(Function):
    """y = erf x;  dx = g 2/sqrt(pi) e^(-x^2)"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        require_floats(x)
        ctx.save(x)
        return kernels.erf(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (x,) = ctx.saved
        xp = array_module(x)
        w = xp.minimum(xp.abs(x), 40)  # beyond, the derivative is zero, and the square might overflow
        return g * (2 / math.sqrt(math.pi) * xp.exp(-w * w))


class Relu(Function):
    """y = max(x, 0);  dx = g where x > 0"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        y = array_module(x).maximum(x, 0)
        ctx.save(y)  # y > 0 exactly where x > 0, and the next operation often saves y anyway
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (y,) = ctx.saved
        return kernels.positive(g, y)


class Abs(Function):
    """y = |x|;  dx = g sign(x), 0 at 0"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        xp = array_module(x)
        ctx.save(xp.sign(x) if ctx.needs[0] else None)
        return xp.abs(x)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (sign,) = ctx.saved
        return array_module(g).where(sign == 0, 0, g) * sign


class Clip(Function):
    """y = x clipped to [low, high], numbers, arrays or None;  dx = g inside, 0 outside"""

    @staticmethod
    def forward(ctx: Context, x: Array, low: Any, high: Any) -> Array:
        if low is None and high is None:
            raise OperandError("expected min, max or both, got neither")
        for name, shape in (("min", getattr(low, "shape", ())), ("max", getattr(high, "shape", ()))):
            if not broadcasts(shape, x.shape):
                raise OperandError(f"{name} must broadcast to the shape of x {x.shape}, got shape {shape}")
        ctx.save((low is None or x >= low) & (high is None or x <= high))
        return array_module(x).clip(x, low, high)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (inside,) = ctx.saved
        return kernels.masked(g, inside)


# ---- public functions
# fmt: off

def negative(x: Any) -> Tensor: return Negative.apply(as_tensor(x))
def exp(x: Any) -> Tensor: return Exp.apply(as_tensor(x))
def log(x: Any) -> Tensor: return Log.apply(as_tensor(x))
def expm1(x: Any) -> Tensor: return Expm1.apply(as_tensor(x))
def log1p(x: Any) -> Tensor: return Log1p.apply(as_tensor(x))
def sin(x: Any) -> Tensor: return Sin.apply(as_tensor(x))
def cos(x: Any) -> Tensor: return Cos.apply(as_tensor(x))
def sqrt(x: Any) -> Tensor: return Sqrt.apply(as_tensor(x))
def tanh(x: Any) -> Tensor: return Tanh.apply(as_tensor(x))
def sigmoid(x: Any) -> Tensor: return Sigmoid.apply(as_tensor(x))
def relu(x: Any) -> Tensor: return Relu.apply(as_tensor(x))
def abs(x: Any) -> Tensor: return Abs.apply(as_tensor(x))
# fmt: on


def erf(x: Any) -> Tensor:
    """Error function: exact in float64, with an error of at most 1.5e-7 in float32."""
    return Erf.apply(as_tensor(x))


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Clip to [min, max]. Bounds are constants: None, numbers, or arrays that broadcast to the shape of x."""
    x = as_tensor(x)
    return Clip.apply(x, _bound(x, min), _bound(x, max))


def _bound(x: Tensor, bound: Any) -> Any:
    if bound is None or isinstance(bound, int | float | np.generic):
        return bound.item() if isinstance(bound, np.generic) else bound
    if isinstance(bound, Tensor):
        if bound.requires_grad:
            raise OperandError("clip: bounds get no gradient: use ops.maximum and ops.minimum, or detach() them")
        bound = bound.data
    return to_common_dtype("clip", x, bound)[1].data
