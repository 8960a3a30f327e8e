"""Chapter 4: a check that finds wrong gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def gradient_is_right(
    f: Callable[[Array], Array], backward: Callable[[Array, Array], Array], x: Array, seed: int = 0
) -> bool:
    """4.1  True if backward(x, v) is the gradient of sum(v * f(x)) by x, for any cotangent v.

    f         takes an array and returns one, of any shape
    backward  takes x and v, of the shape of f(x), and returns J^T v, of the shape of x
    seed      of the random numbers you draw

    Compare both sides of (J^T v) . u = v . (J u) for some random v and u, with J u from a numerical derivative along u
    (chapter 4). Return False for a gradient that

    - is off by 0.1%, or wrong in a single entry, whichever it is;
    - has another shape than x;
    - is right, but from a backward that edited x or v.

    Return True for every right one, with values of f from 1e-4 to 1e4. No print, no exception.

    Example: gradient_is_right(np.sin, lambda x, v: v * np.cos(x), x) is True, and with v * np.sin(x) it is False.
    """
    rng = np.random.default_rng([seed, 4])
    step = 1e-4
    for _ in range(3):
        v = rng.standard_normal(np.shape(f(x)))
        kept = x.copy(), v.copy()
        gradient = backward(x, v)
        if not (np.array_equal(x, kept[0]) and np.array_equal(v, kept[1])) or np.shape(gradient) != x.shape:
            return False
        for _ in range(3):
            u = rng.standard_normal(x.shape)
            slopes = v * (f(x + step * u) - f(x - step * u)) / (2 * step)  # the terms of v . (J u)
            difference = abs((gradient * u).sum() - slopes.sum())
            if not difference <= 1e-6 * np.abs(slopes).sum() + 1e-10:
                return False
    return True
