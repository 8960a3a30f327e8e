"""What operations accept: the checks and conversions that their arguments have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import modes
from ..backend import FLOATS, Array, constant, work_with
from ..function import OperandError
from ..tensor import Tensor, as_tensor


def one_axis(axis: int, ndim: int) -> int:
    """An axis as NumPy counts it, negative ones from the end, counted from the front."""
    if not -ndim <= axis < ndim:
        raise OperandError(f"axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def all_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The same for one axis, several, or None, which means all."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(one_axis(a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len({*axes}) != len(axes):
        raise OperandError(f"axis {axis} names an axis twice")
    return axes


def require_floats(x: Array) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"expected floating-point values, got {x.dtype}")


def two_operands(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Tensors of one dtype, or one of them and a Python number, which goes to forward as it is and never promotes."""
    if isinstance(a, Tensor):
        # the two usual cases, without the detours below
        if type(b) is float or type(b) is int or (isinstance(b, Tensor) and a.data.dtype is b.data.dtype):
            return a, b
    elif not isinstance(b, Tensor):
        a = as_tensor(a)
    a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))  # a NumPy scalar would promote
    if isinstance(a, int | float) or isinstance(b, int | float):
        return a, b
    first, second = of_one_dtype(name, a, b)
    return first, second


def of_one_dtype(name: str, *xs: Any) -> list[Tensor]:
    """All as Tensors of one dtype on one device.

    Plain arrays and lists follow the Tensors beside them, and integers follow floats. Two kinds of float Tensor are a
    mistake more often than a wish, so they are refused; but under `autocast`, where both are about, the wider is taken.
    """
    given = [x for x in xs if isinstance(x, Tensor)] or [as_tensor(xs[0])]
    floats = [x for x in given if x.dtype in FLOATS]
    like = (floats or given)[0]
    if casting() and floats:
        like = max(floats, key=lambda x: x.dtype.itemsize)
    return [_as_tensor_like(name, x, like) for x in xs]


def for_products(name: str, *xs: Any) -> list[Tensor]:
    """Factors of a product: as above, and under `autocast` float16 in place of float32."""
    if not casting():
        return of_one_dtype(name, *xs)
    like = next((x for x in xs if isinstance(x, Tensor) and x.dtype in FLOATS), as_tensor(xs[0]))
    return [x.astype(np.float16) if x.dtype == np.float32 else x for x in (beside(name, x, like) for x in xs)]


def with_parameters(name: str, xs: list[Any], parameters: list[Any]) -> list[Tensor]:
    """Factors, and what they are multiplied with or added to, of one dtype.

    Under `autocast`, only the factors become float16. Parameters stay as they are: so do their gradients then, which
    are sums over many tokens and would lose too much.
    """
    if not casting():
        return of_one_dtype(name, *xs, *parameters)
    factors = for_products(name, *xs)
    return [*factors, *of_one_dtype(name, *(beside(name, x, factors[0]) for x in parameters))]


def in_float32(x: Any) -> Tensor:
    """What `autocast` leaves in full precision: float16 becomes float32 there."""
    x = as_tensor(x)
    return x.astype(np.float32) if casting() and x.dtype == np.float16 else x


def casting() -> bool:
    """Whether `autocast` makes float16 of factors."""
    return modes.current().products == "float16"


def beside(name: str, x: Any, like: Tensor) -> Tensor:
    """Plain data as a Tensor beside `like`; an error names the operation."""
    if isinstance(x, Tensor):
        return x
    try:
        return Tensor(constant(x, like=like.data))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _as_tensor_like(name: str, x: Any, like: Tensor) -> Tensor:
    x = beside(name, x, like)
    if x.dtype == like.dtype or like.dtype not in FLOATS:
        return x
    if x.dtype not in FLOATS:
        return Tensor(work_with(x.data).astype(like.dtype))
    if casting():
        return x.astype(like.dtype)
    raise TypeError(
        f"{name}: operands must have one float dtype, got {like.dtype} and {x.dtype}; convert one with .astype(...)"
    )
