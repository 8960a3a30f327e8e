"""Checks and conversions of arguments that operations share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import modes
from ..backend import FLOATS, Array, constant, on_device_of
from ..function import OperandError
from ..tensor import Tensor, as_tensor


def normalise_axis(axis: int, ndim: int) -> int:
    """Check one axis, and count a negative one from the front."""
    if not -ndim <= axis < ndim:
        raise OperandError(f"axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def normalise_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Check one axis, several, or None for all, and count negative ones from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(normalise_axis(a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len({*axes}) != len(axes):
        raise OperandError(f"axis {axis} names an axis twice")
    return axes


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True if an array of `shape` broadcasts to `target`."""
    matches = (n in (1, size) for n, size in zip(shape[::-1], target[::-1], strict=False))
    return len(shape) <= len(target) and all(matches)


def plain_number(name: str, value: Any) -> float:
    """A number that gets no gradient. A Tensor that requires one would lose it without a word."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise TypeError(f"{name} gets no gradient: pass a number, or detach() the Tensor")
    return float(value)


def require_floats(x: Array) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"expected floating-point values, got {x.dtype}")


def binary_operands(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two Tensors of one dtype, or a Tensor and a Python number, which never promotes and goes to forward unchanged."""
    if isinstance(a, Tensor):
        # fast path for the two usual cases
        if type(b) is float or type(b) is int or (isinstance(b, Tensor) and a.data.dtype is b.data.dtype):
            return a, b
    elif not isinstance(b, Tensor):
        a = as_tensor(a)
    a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))  # a NumPy scalar would promote
    if isinstance(a, int | float) or isinstance(b, int | float):
        return a, b
    first, second = to_common_dtype(name, a, b)
    return first, second


def to_common_dtype(name: str, *xs: Any) -> list[Tensor]:
    """Convert all operands to Tensors of one dtype on one device.

    Plain arrays and lists take the dtype of the Tensors, and integers that of the floats. Mixed float dtypes are
    usually a mistake and raise, except under `autocast`, where the wider one is used.
    """
    first = xs[0]
    if isinstance(first, Tensor) and all(isinstance(x, Tensor) and x.data.dtype is first.data.dtype for x in xs):
        return [*xs]  # as in a model
    given = [x for x in xs if isinstance(x, Tensor)] or [as_tensor(first)]
    floats = [x for x in given if x.dtype in FLOATS]
    like = (floats or given)[0]
    if autocasting() and floats:
        like = max(floats, key=lambda x: x.dtype.itemsize)
    return [_cast_like(name, x, like) for x in xs]


def matmul_operands(name: str, *xs: Any) -> list[Tensor]:
    """Operands of a matrix product: converted as above, and under `autocast` cast from float32 to float16."""
    if not autocasting():
        return to_common_dtype(name, *xs)
    like = next((x for x in xs if isinstance(x, Tensor) and x.dtype in FLOATS), as_tensor(xs[0]))
    return [x.astype(np.float16) if x.dtype == np.float32 else x for x in (as_tensor_like(name, x, like) for x in xs)]


def layer_operands(name: str, inputs: list[Any], parameters: list[Any]) -> list[Tensor]:
    """Inputs and parameters of a layer, converted to one dtype.

    Under `autocast`, only the inputs become float16. Parameters keep their dtype, and so do their gradients, which are
    sums over many tokens and would lose too much precision.
    """
    if not autocasting():
        return to_common_dtype(name, *inputs, *parameters)
    tensors = matmul_operands(name, *inputs)
    return [*tensors, *to_common_dtype(name, *(as_tensor_like(name, x, tensors[0]) for x in parameters))]


def narrowed(weight: Array, dtype: Any) -> Array:
    """A weight in the dtype of a product. Under `autocast` that is a copy, which a trainer may have made for all."""
    if weight.dtype == dtype:
        return weight
    halves = modes.current().halves
    copy = None if halves is None else halves.get(weight.data.ptr)
    if copy is None or copy.dtype != dtype or copy.size != weight.size or not weight.flags.c_contiguous:
        return weight.astype(dtype)
    return copy.reshape(weight.shape)


def full_precision(x: Any) -> Tensor:
    """Input of an operation that `autocast` keeps in full precision: float16 is cast to float32."""
    x = as_tensor(x)
    return x.astype(np.float32) if autocasting() and x.dtype == np.float16 else x


def autocasting() -> bool:
    """True if `autocast` casts operands to float16."""
    return modes.current().products == "float16"


def as_tensor_like(name: str, x: Any, like: Tensor) -> Tensor:
    """Wrap plain data in a Tensor on the device of `like`; errors name the operation."""
    if isinstance(x, Tensor):
        return x
    try:
        return Tensor(constant(x, like=like.data))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _cast_like(name: str, x: Any, like: Tensor) -> Tensor:
    x = as_tensor_like(name, x, like)
    if x.dtype == like.dtype or like.dtype not in FLOATS:
        return x
    if x.dtype not in FLOATS:
        return Tensor(on_device_of(x.data).astype(like.dtype))
    if autocasting():
        return x.astype(like.dtype)
    raise TypeError(
        f"{name}: operands must have one float dtype, got {like.dtype} and {x.dtype}; convert one with .astype(...)"
    )
