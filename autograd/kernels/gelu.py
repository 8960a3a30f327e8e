"""The error function, and GELU with its derivative:

    erf(x) = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x
    gelu(x) = x * Phi(x),    gelu'(x) = Phi(x) + x * phi(x),    with Phi(x) = (1 + erf(x / sqrt(2))) / 2 and phi = Phi'

float64 is accurate to the last bit or two and slow: it is for checking gradients. float32, which trains, uses formulas
whose error, rounding included, is at most 2e-7; float16 computes in float32.

erf:   erfc(w) = exp(w P(w)) for w >= 0. The polynomial P is fitted to log(erfc(w)) / w on [0, 4], with weights that
       minimise the largest absolute error of erf. Small x keep their digits.
GELU:  Phi(-w) = Q(1 / (1 + p w)) exp(-w^2 / 2) for w >= 0 (Abramowitz and Stegun, 7.1.26). The derivative needs the
       same exponential, so one serves both; and there is no comparison, which NumPy is slow at.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module
from .launch import elementwise, on_gpu
from .sums import widened

_P = (-1.12838025, -0.636597734, -0.102919613, 0.0195839589,
      -0.000536931936, -0.00103240248, 0.000308802419, -3.14401886e-05)  # fmt: skip
_T = 0.3275911 * math.sqrt(0.5)
_Q = (0.127414796, -0.142248368, 0.7107068705, -0.7265760135, 0.5307027145)
_SIGN = np.uint32(1 << 31)
_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_exact_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    xp = array_module(x)
    if x.dtype == np.float64:
        return _erf64(x, xp)
    wide = widened(x)
    # expm1 is slower than 1 - exp, but small x keep their digits
    return xp.copysign(-xp.expm1(_log_erfc(xp.abs(wide), xp)), wide).astype(x.dtype, copy=False)


def _log_erfc(w: Array, xp: Any) -> Array:
    """w P(w) for float32 w >= 0. Beyond 4 it falls faster than log(erfc(w)); at 16, its exponential is long 0."""
    w = xp.minimum(w, 16)
    s = w * _P[-1]
    for coefficient in _P[-2::-1]:
        s += coefficient
        s *= w
    return s


def _erf64(x: Array, xp: Any) -> Array:
    return np.asarray(_exact_erf(x), dtype=np.float64) if xp is np else cuda.erf(x)


def _gelu_numpy(x: Array, with_derivative: bool) -> tuple[Array, Array | None]:
    xp = array_module(x)
    if x.dtype == np.float64:
        return _gelu64(x, xp, with_derivative)
    at_least_1d = widened(x).reshape(x.shape or (1,))  # NumPy cannot update a scalar in place
    with np.errstate(over="ignore"):  # the square of a large x is infinite, and its density rightly 0
        results = _gelu32(at_least_1d, xp, with_derivative)
    value, derivative = (None if r is None else r.reshape(x.shape).astype(x.dtype, copy=False) for r in results)
    return value, derivative


def _gelu32(x: Array, xp: Any, with_derivative: bool) -> tuple[Array, Array | None]:
    """In place wherever possible: memory is the bottleneck. w = |x| and tail = Phi(-w) throughout."""
    w = xp.abs(x)
    t = w * _T
    t += 1
    xp.divide(1, t, out=t)  # takes half the time of NumPy's reciprocal
    tail = t * _Q[-1]
    for coefficient in _Q[-2::-1]:
        tail += coefficient
        tail *= t
    xp.multiply(w, w, out=t)
    t *= -0.5
    xp.exp(t, out=t)
    tail *= t
    value = x + w  # x Phi(x) = max(x, 0) - w tail, and this is twice the maximum
    value *= 0.5
    if not with_derivative:
        w *= tail
        value -= w
        return value, None
    t *= _DENSITY
    t *= w
    t -= tail
    t += 0.5  # t = 1/2 - tail + w phi(w) is not negative; the derivative is 1/2 + t or 1/2 - t, by the sign of x
    w *= tail
    value -= w
    bits = t.view(np.uint32)
    bits |= x.view(np.uint32) & _SIGN
    t += 0.5
    return value, t


def _gelu64(x: Array, xp: Any, with_derivative: bool) -> tuple[Array, Array | None]:
    integral = 0.5 * (1 + _erf64(x * _SQRT_HALF, xp))
    if not with_derivative:
        return x * integral, None
    w = xp.minimum(xp.abs(x), 40)  # beyond, the density is 0, and a square might overflow
    return x * integral, integral + x * (_DENSITY * xp.exp(-0.5 * (w * w)))


_CUDA = """
    wide_t w = x;
    wide_t integral = wide_t(0.5) * (wide_t(1) + erf(w * wide_t(0.70710678118654752440)));
    value = w * integral;
"""
_CUDA_WITH_DERIVATIVE = f"""{_CUDA}
    wide_t inner = w > 40 ? wide_t(40) : w < -40 ? wide_t(-40) : w;  // beyond, the density is 0
    derivative = integral + w * wide_t(0.39894228040143267794) * exp(wide_t(-0.5) * inner * inner);
"""


def gelu(x: Array, with_derivative: bool) -> tuple[Array, Array | None]:
    """gelu(x) and, if asked for, its derivative."""
    if not on_gpu(x):
        return _gelu_numpy(x, with_derivative)
    if not with_derivative:
        return elementwise("T x", "T value", _CUDA, "gelu", x.dtype.name)(x), None
    both = "T value, T derivative"
    return elementwise("T x", both, _CUDA_WITH_DERIVATIVE, "gelu_with_derivative", x.dtype.name)(x)
