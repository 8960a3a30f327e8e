"""Arrays and where they live. Operations ask here for the module that fits an array, and so never assume NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cuda

Array = Any  # a numpy.ndarray or a cupy.ndarray
FLOATS = frozenset(np.dtype(name) for name in ("float16", "float32", "float64"))


def array_module(x: Array) -> Any:
    """The module whose functions take `x`: numpy, or cupy for an array on a GPU, which is made the current one."""
    if isinstance(x, np.ndarray) or not cuda.is_array(x):
        return np
    cuda.make_current(x.device.id)
    return cuda.module()


def work_with(x: Array) -> Array:
    """`x` itself, with its GPU made the current one: for whatever makes an array of it without `array_module`."""
    if not isinstance(x, np.ndarray):
        cuda.make_current(x.device.id)
    return x


def is_array(x: object) -> bool:
    return isinstance(x, np.ndarray) or cuda.is_array(x)


def device_of(x: Array) -> str:
    """ "cpu", or "cuda:0" and so on."""
    return "cpu" if isinstance(x, np.ndarray) else cuda.device_of(x)


def to_device(x: Array, device: str) -> Array:
    """`x` on `device` ("cpu", "cuda", "cuda:1"): itself if it is there already, else a copy.

    "cuda" is any GPU for an array that is on one, and the current one for others: 0, or where there was work last.
    """
    if device != "cpu":
        return cuda.to_gpu(x, device)
    return x if isinstance(x, np.ndarray) else cuda.to_host(x)


def as_array(x: object) -> Array:
    """An array, as it is; a NumPy scalar as a 0-d array; Python numbers and lists as float32."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if cuda.is_array(x):
        return x
    array = _from_list(x)
    return array.astype(np.float32) if array.dtype.kind in "biuf" else array


def _from_list(x: object) -> np.ndarray:
    """Numbers and nested lists of them. A Tensor among them would lose its gradient silently, so that is refused."""
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
        raise ValueError(f"this list is not an array: {error}") from None


def constant(x: object, like: Array) -> Array:
    """Plain data to work with `like`: float data takes its float dtype, and host data goes to its device."""
    array: Array = x if is_array(x) else _from_list(x)
    if array.dtype in FLOATS and like.dtype in FLOATS:
        array = work_with(array).astype(like.dtype, copy=False)
    if not isinstance(array, np.ndarray) and device_of(array) != device_of(like):
        raise ValueError(f"an array on {device_of(array)} met a Tensor on {device_of(like)}; move one of them")
    return to_device(array, device_of(like))
