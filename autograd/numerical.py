"""Numerical derivatives from five points, and their comparison with a gradient:

f'(x)  =  (f(x - 2s) - 8 f(x - s) + 8 f(x + s) - f(x + 2s)) / 12s,   with a step s; error O(s^4)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .backend import Array

STEPS = [1e-3 / 8**n for n in range(28)]
USUAL = 3  # of these steps show any derivative; smaller ones are for functions that curve strongly
MORE = 4


class Comparison(NamedTuple):
    """Both sides of (J^T v) . u = v . (J u)."""

    verdict: str  # "right", "wrong", or if there is no derivative "kink" or "not finite"
    analytic: float
    numerical: float
    allowed: float  # difference
    step: float


def compare(
    f: Callable[[Array], Array],
    x: Array,
    y: Array,
    u: Array,
    gradient: Array,
    v: Array,
    tolerance: float,
    steps: list[float],
) -> Comparison:
    """Compare the gradient of v . f(x), where y = f(x), with numerical derivatives along u, until a step agrees."""
    analytic = float((gradient * u)[u != 0].sum())
    bends, steepest, sensitive = [], 0.0, np.zeros(v.shape, bool)
    for step in steps:
        points = points_along(f, x, y, u, step)
        same = (points == points[2]) | np.isnan(points) & np.isnan(points[2])
        moved = ~same.all(axis=0)  # the others are constant: they add no error however large
        terms = np.where(moved, v * slope_of(points, step), 0)
        numerical, magnitude = float(terms.sum()), float(np.abs(terms).sum())
        sizes = np.abs(v) * np.abs(np.where(np.isfinite(points), points, 0)).max(axis=0)
        allowed = tolerance * magnitude + 1e-14 / step * float(sizes[moved].sum()) + 1e-13 * float(sizes.sum())
        # Steps below the usual ones may be too small to see a derivative that is there.
        steepest, sensitive = max(steepest, magnitude), sensitive | moved
        drowned = step < STEPS[USUAL - 1] and 1e-14 / step * float(sizes[sensitive].sum()) > 1e-3 * steepest
        if abs(analytic - numerical) <= allowed and not drowned:  # False also if one of them is NaN
            return Comparison("right", analytic, numerical, allowed, step)
        bends.append(bend_of(points, step))
    verdict = "wrong"
    if not np.isfinite(numerical):
        verdict = "not finite"
    elif min(bends) > 1e-3 and bends[-1] > bends[0] / 16:
        verdict = "kink"
    return Comparison(verdict, analytic, numerical, allowed, step)


def magnitudes_of(x: Array) -> Array:
    """The smallest n from 0 upwards for which |x| >= 8^-n; 0 for zeros, and no more than there are steps for."""
    n = np.ceil(-np.log2(np.where(x == 0, 1, np.abs(x))) / 3)
    return np.clip(n, 0, len(STEPS) - USUAL - MORE).astype(int)


def derivative(f: Callable[[Array], Array], x: Array, y: Array, u: Array, steps: list[float]) -> Array:
    """J u, from the largest step for which f is smooth."""
    for step in steps:
        points = points_along(f, x, y, u, step)
        if bend_of(points, step) < 1e-3:
            break
    return slope_of(points, step)


def points_along(f: Callable[[Array], Array], x: Array, y: Array, u: Array, step: float) -> Array:
    return np.stack([f(x + k * step * u) if k else y for k in (-2, -1, 0, 1, 2)])


def slope_of(points: Array, step: float) -> Array:
    """The derivative from f(x - 2s), f(x - s), f(x), f(x + s), f(x + 2s), with a step s."""
    far_left, left, _, right, far_right = points
    return (far_left - 8 * left + 8 * right - far_right) / (12 * step)


def bend_of(points: Array, step: float) -> float:
    """Deviation of the slopes between neighbouring points from a straight line, relative to the largest slope.

    The bend of a smooth function shrinks with the square of the step; that of a kink does not.
    """
    slopes = np.diff(points, axis=0) / step
    bends = np.diff(slopes, 2, axis=0)
    return float(np.abs(bends).max(initial=0)) / max(float(np.abs(slopes).max(initial=0)), 1e-300)
