"""Conversion to another dtype or device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend
from ..backend import Array
from ..function import Context, Function
from ..tensor import Tensor, as_tensor


class Astype(Function):
    """y = x in another dtype;  dx = g in x's"""

    widens = True

    @staticmethod
    def forward(ctx: Context, x: Array, dtype: np.dtype) -> Array:
        ctx.save(x.dtype)
        return x.astype(dtype)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (dtype,) = ctx.saved
        return g.astype(dtype)


class ToDevice(Function):
    """y = a copy of x on another device;  dx = a copy of g on x's"""

    @staticmethod
    def forward(ctx: Context, x: Array, device: str) -> Array:
        ctx.save(backend.device_of(x))
        return backend.to_device(x, device)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        (device,) = ctx.saved
        return backend.to_device(g, device)


def astype(x: Any, dtype: Any) -> Tensor:
    """Copy `x` to the given dtype. Integers and booleans end the graph."""
    x = as_tensor(x)
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"astype: {error}") from None
    return Astype.apply(x, dtype) if dtype in backend.FLOATS else Tensor(backend.on_device_of(x.data).astype(dtype))


def to_device(x: Any, device: str) -> Tensor:
    """Return `x` on "cpu", "cuda" or "cuda:1": `x` itself if it is already there."""
    x = as_tensor(x)
    same = x.device == device or (device == "cuda" and x.device != "cpu")
    return x if same else ToDevice.apply(x, device)
