"""The error function, and GELU with its derivative.

float64 is exact to the last bit or two and slow: it is for checking gradients. float32, which trains, uses

    erfc(w) = exp(w P(w)),  w >= 0

with a polynomial P fitted to log(erfc(w)) / w on [0, 4], weighted so that the largest absolute error of erf is least:
1.5e-7 together with all float32 roundings. float16 computes in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module
from .total import widened

_P = (-1.12838025, -0.636597734, -0.102919613, 0.0195839589,
      -0.000536931936, -0.00103240248, 0.000308802419, -3.14401886e-05)  # fmt: skip
_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_exact_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """erf(x) = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x."""
    xp = array_module(x)
    if x.dtype == np.float64:
        return _erf64(x, xp)
    wide = widened(x)
    # expm1 instead of 1 - exp: slower, but small x keep their digits
    return xp.copysign(-xp.expm1(_log_erfc(xp.abs(wide), xp)), wide).astype(x.dtype, copy=False)


def gelu(x: Array, with_derivative: bool) -> tuple[Array, Array | None]:
    """x * Phi(x) and, on request, Phi(x) + x * phi(x), with Phi and phi the normal distribution and its density."""
    xp = array_module(x)
    wide = widened(x)
    if wide.dtype == np.float64:
        phi_integral = 0.5 * (1 + _erf64(wide * _SQRT_HALF, xp))
    else:
        tail = _log_erfc(xp.abs(wide) * _SQRT_HALF, xp)
        tail = 0.5 * xp.exp(tail)  # Phi(-|x|)
        phi_integral = xp.where(wide < 0, tail, 1 - tail)
    value = (wide * phi_integral).astype(x.dtype, copy=False)
    if not with_derivative:
        return value, None
    w = xp.minimum(xp.abs(wide), 40)  # from there on the density is zero, and a square might overflow
    density = _DENSITY * xp.exp(-0.5 * (w * w))
    return value, (phi_integral + wide * density).astype(x.dtype, copy=False)


def _log_erfc(w: Array, xp: Any) -> Array:
    """w P(w) for float32 w >= 0. Beyond 4 it falls faster than log(erfc(w)), and far below what exp can hold by 16."""
    w = xp.minimum(w, 16)
    s = w * _P[-1]
    for coefficient in _P[-2::-1]:
        s += coefficient
        s *= w
    return s


def _erf64(x: Array, xp: Any) -> Array:
    return np.asarray(_exact_erf(x), dtype=np.float64) if xp is np else cuda.erf(x)
