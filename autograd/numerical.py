"""Numerical derivatives from five points, and the steps between them:

f'(x)  =  (f(x - 2h) - 8 f(x - h) + 8 f(x + h) - f(x + 2h)) / 12h,   error O(h^4)
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .backend import Array

STEPS = [1e-3 / 8**n for n in range(12)]  # the first three suit values from 1 upwards, relative to their size


def magnitudes_of(x: Array) -> Array:
    """The smallest n from 0 upwards for which |x| >= 8^-n; the last if there is no step for it."""
    return np.clip(np.ceil(-np.log2(np.abs(x) + 2.0**-60) / 3), 0, len(STEPS) - 3).astype(int)


def slope_of(points: list[Array], step: float) -> Array:
    """The derivative from f(x - 2h), f(x - h), f(x), f(x + h), f(x + 2h)."""
    far_left, left, _, right, far_right = points
    return (far_left - 8 * left + 8 * right - far_right) / (12 * step)


def bend_of(points: list[Array], step: float) -> float:
    """Deviation of the slopes between neighbouring points from a straight line, relative to the largest slope.

    The bend of a smooth function shrinks with the square of the step; that of a kink does not.
    """
    slopes = [(b - a) / step for a, b in pairwise(points)]
    size = max(float(np.abs(s).max(initial=0)) for s in slopes)
    first, second, third, fourth = slopes
    bends = np.abs(first - 2 * second + third), np.abs(second - 2 * third + fourth)
    return max(float(bend.max(initial=0)) for bend in bends) / max(size, 1e-300)
