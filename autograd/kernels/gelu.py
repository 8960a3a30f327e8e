"""The error function, and GELU with its derivative:

    erf(x) = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x
    gelu(x) = x * Phi(x),    gelu'(x) = Phi(x) + x * phi(x),    with Phi(x) = (1 + erf(x / sqrt(2))) / 2 and phi = Phi'

float64 is accurate to the last bit or two and slow: it is for checking gradients. float32, which trains, uses formulas
whose error, rounding included, is at most 1.6e-7 of max(1, |x|); float16 computes in float32.

erf:   erfc(w) = exp(w P(w)) for w >= 0. The polynomial P is fitted to log(erfc(w)) / w on [0, 4], with weights that
       minimise the largest absolute error of erf. Small x keep their digits.
GELU:  Phi(x) = 1 / (1 + exp(-x R(x^2))). The polynomial R is fitted to log(Phi(x) / Phi(-x)) / x on [0, 6.2], with
       weights that minimise the largest error of GELU beside max(1, |x|). Beyond, it is positive and grows. Every
       operation is a pass over the array, and this formula needs fewer than others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module
from .exponential import EXP, UNIT
from .launch import elementwise, on_gpu
from .sums import widened

_P = (-1.12838025, -0.636597734, -0.102919613, 0.0195839589,
      -0.000536931936, -0.00103240248, 0.000308802419, -3.14401886e-05)  # fmt: skip
_R = (1.59577062, 0.0726641297, -6.34829489e-05, -0.000111207903, 8.02520191e-06, -2.71460865e-07, 3.69332305e-09)
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
    """In place wherever possible: memory is the bottleneck."""
    exp = getattr(xp, EXP)
    square = x * x
    phi = square * (-UNIT * _R[-1])
    for coefficient in _R[-2:0:-1]:
        phi += -UNIT * coefficient
        phi *= square
    phi += -UNIT * _R[0]
    phi *= x
    exp(phi, out=phi)
    phi += 1
    xp.divide(1, phi, out=phi)  # takes half the time of NumPy's reciprocal
    value = x * phi
    if not with_derivative:
        return value, None
    square *= -UNIT / 2
    square += UNIT * math.log(_DENSITY)
    density = exp(square, out=square)
    density *= x
    density += phi
    return value, density


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
