"""Axes as NumPy counts them, with negative ones from the end, checked and counted from the front."""

from __future__ import annotations

from typing import Any

from ..function import OperandError


def one_axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise OperandError(f"axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def all_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` may be one, several, or None for all."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(one_axis(a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len({*axes}) != len(axes):
        raise OperandError(f"axis {axis} names an axis twice")
    return axes
