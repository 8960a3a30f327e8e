"""Arrays and their devices. Operations get the array module from here and never assume NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cuda, modes

Array = Any  # a numpy.ndarray or a cupy.ndarray
FLOATS = frozenset(np.dtype(name) for name in ("float16", "float32", "float64"))


def array_module(x: Array) -> Any:
    """Return numpy, or for an array on a GPU cupy, after making that GPU current."""
    if isinstance(x, np.ndarray) or not cuda.is_array(x):
        return np
    cuda.make_current(x.device.id)
    return cuda.module()


def on_device_of(x: Array) -> Array:
    """Make the device of `x` current and return `x`, for expressions that allocate without `array_module`."""
    if not isinstance(x, np.ndarray):
        cuda.make_current(x.device.id)
    return x


def is_array(x: object) -> bool:
    return isinstance(x, np.ndarray) or cuda.is_array(x)


def device_of(x: Array) -> str:
    """Device of an array: "cpu", "cuda:0", "cuda:1", ..."""
    return "cpu" if isinstance(x, np.ndarray) else cuda.device_of(x)


def to_device(x: Array, device: str) -> Array:
    """Return `x` on `device` ("cpu", "cuda", "cuda:1"): `x` itself if it is already there, else a copy.

    "cuda" leaves an array on the GPU it is on, and copies others to the current GPU: 0, or the one used last.
    """
    if device != "cpu":
        return cuda.to_gpu(x, device)
    if isinstance(x, np.ndarray):
        return x
    modes.refuse_in_graph("a copy to the host")
    return np.asarray(x.get())


def as_array(x: object) -> Array:
    """Return arrays unchanged, NumPy scalars as 0-d arrays, and Python numbers and lists as float32 arrays."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if cuda.is_array(x):
        return x
    array = from_list(x)
    return array.astype(np.float32) if array.dtype.kind in "biuf" else array


def from_list(x: object) -> np.ndarray:
    """Convert numbers and nested lists. A Tensor among them would silently lose its gradient, so it is refused."""
    items = [x]
    while items:
        item = items.pop()
        if isinstance(item, list | tuple):
            items.extend(item)
        elif hasattr(item, "requires_grad"):
            raise TypeError("a list of Tensors is not a Tensor: join them with ops.stack or ops.concat")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"cannot make an array of this list: {error}") from None


def constant(x: object, like: Array) -> Array:
    """Convert plain data to the device of `like`, and float data to its float dtype."""
    array: Array = x if is_array(x) else from_list(x)
    if array.dtype in FLOATS and like.dtype in FLOATS:
        array = on_device_of(array).astype(like.dtype, copy=False)
    if not isinstance(array, np.ndarray) and device_of(array) != device_of(like):
        raise ValueError(f"the array is on {device_of(array)} but the Tensor on {device_of(like)}; move one of them")
    return to_device(array, device_of(like))
