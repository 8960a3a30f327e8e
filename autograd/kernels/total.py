"""Sums and means that stay accurate.

float16 is added up in float32 and rounded once, at the end. NumPy adds float32 pairwise along a row, but one by one
down a column, which loses a little with every step; long columns are therefore added in pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array

PIECE = 256  # rows that are added one by one


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`: None, one axis, or a tuple of them."""
    if x.dtype == np.float16:
        return total(x.astype(np.float32), axis, keepdims).astype(np.float16)
    axes = (axis,) if isinstance(axis, int) else axis
    if isinstance(x, np.ndarray) and x.dtype == np.float32 and axes and x.size > PIECE:
        count = len(axes)
        if axes == tuple(range(count)) and count < x.ndim:  # columns: only leading axes are summed over
            tail = x.shape[count:]
            return _down_columns(x.reshape(-1, *tail)).reshape((1,) * count + tail if keepdims else tail)
    return x.sum(axis=axis, keepdims=keepdims)


def _down_columns(x: np.ndarray) -> np.ndarray:
    """The sum over the first axis, in pieces."""
    whole = len(x) // PIECE * PIECE
    if whole <= PIECE:
        return x.sum(axis=0)
    pieces = x[:whole].reshape(-1, PIECE, *x.shape[1:]).sum(axis=1)
    return _down_columns(pieces) + x[whole:].sum(axis=0)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Divided before it is rounded: the mean of many float16 exists even where their sum does not."""
    if x.dtype != np.float16:
        return x.mean(axis=axis, keepdims=keepdims)
    return x.mean(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def centred(x: Array, axis: Any) -> Array:
    """x - mean(x). A second pass takes away what rounding left of a mean that is large beside the deviations."""
    x = x - x.mean(axis=axis, keepdims=True)
    return x - x.mean(axis=axis, keepdims=True)


def widened(x: Array) -> Array:
    """`x`, in float32 if it is float16: for work in which intermediate values may overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
