"""Chapter 1: derivatives without an engine."""

from __future__ import annotations

import math
from collections.abc import Callable


def numerical_derivative(f: Callable[[float], float], x: float, delta: float = 1e-5) -> float:
    """1.1  The derivative of f at x, from two values of f: one a step `delta` to the left of x, one to the right.

    f      takes a number and returns one
    delta  the step, called h in many books and Δ in chapter 1

    Example: numerical_derivative(lambda x: x * x, 3.0) returns 6.0 to ten digits.
    """
    return (f(x + delta) - f(x - delta)) / (2 * delta)


def neuron_gradient(x: float, w: float, b: float, t: float) -> tuple[float, float, float]:
    """1.2  The gradient of a neuron's loss by the chain rule: the tuple (dL/dw, dL/db, dL/dx).

        z = w x + b,    y = tanh z,    L = (y - t)^2 / 2

    Example: with x = 2, w = 0.5, b = -0.6, t = 1 it returns (-1.0611, -0.5305, -0.2653), rounded to four digits.
    """
    y = math.tanh(w * x + b)
    dz = (y - t) * (1 - y * y)
    return dz * x, dz, dz * w
