"""masked(x, mask): x where the mask is True, else 0. Not a product, which would make NaN of 0 times infinity."""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module


def masked(x: Array, mask: Array) -> Array:
    if not isinstance(x, np.ndarray):
        return array_module(x).where(mask, x, 0)
    bits = f"i{x.itemsize}"  # -True has all bits set: several times as fast as NumPy's where
    return (x.view(bits) & -mask.astype(bits)).view(x.dtype)
