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

    Compare both sides of (J^T v) . u = v . (J u) for some random v and u, independent of each other and of x, with J u
    from a numerical derivative along u (chapter 4). Return False, without an exception, for a gradient that

    - is off by 0.1%, or wrong in a single entry, whichever it is;
    - has a NaN in it, or another shape than x;
    - is right, but from a backward that edited x or v.

    Return True for every right one, with values of f from 1e-4 to 1e4, and for one that is zero, where both sides are
    only rounding errors.

    Example: gradient_is_right(np.sin, lambda x, v: v * np.cos(x), x) is True, and with v * np.sin(x) it is False.
    """
    raise NotImplementedError("4.1")
