"""Sums that are safe in low precision: float16 is added up in float32 and rounded once, at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array


def total(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    if x.dtype != np.float16:
        return x.sum(axis=axis, keepdims=keepdims)
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Divided before it is rounded: the mean of many float16 exists even where their sum does not."""
    if x.dtype != np.float16:
        return x.mean(axis=axis, keepdims=keepdims)
    return x.mean(axis=axis, keepdims=keepdims, dtype=np.float32).astype(np.float16)


def widened(x: Array) -> Array:
    """`x`, in float32 if it is float16: for work in which intermediate values may overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x
