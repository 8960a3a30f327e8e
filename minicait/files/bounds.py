"""Bounds on tensors as files describe them, checked before anything is computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..text import shortened

MAX_NAME = 200  # characters; the longest names of published models have about 60
MAX_NDIM = 32  # as in NumPy 1; weights have four dimensions at most
MAX_VALUES = 2**48  # so that sizes in bytes fit 64 bits; a tensor without values may not claim more, either


def checked_shape(name: str, shape: Iterable[Any]) -> tuple[int, ...]:
    """The shape as a tuple, if a tensor can have it."""
    sizes = tuple(shape)
    right = len(sizes) <= MAX_NDIM and all(type(n) is int and 0 <= n <= MAX_VALUES for n in sizes)
    if not right or math.prod(n for n in sizes if n) > MAX_VALUES:
        raise ValueError(f"{shortened(name)} has an impossible shape")
    return sizes
