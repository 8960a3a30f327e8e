"""Operations whose results are booleans or indices, and so have no gradient: they end the graph."""

from __future__ import annotations

from ..backend import Array
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import as_tensor_like, normalise_axes, normalise_axis


class LogicalAnd(Function):
    """y = a and b"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        _require_booleans(a, b)
        return a & b


class LogicalOr(Function):
    """y = a or b"""

    @staticmethod
    def forward(ctx: Context, a: Array, b: Array) -> Array:
        _require_booleans(a, b)
        return a | b


class LogicalNot(Function):
    """y = not x"""

    @staticmethod
    def forward(ctx: Context, x: Array) -> Array:
        _require_booleans(x)
        return ~x


class Any(Function):
    """y = True if any value of x is true: True, or a number other than 0"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: object, keepdims: bool) -> Array:
        return x.any(axis=normalise_axes(axis, x.ndim), keepdims=keepdims)


class All(Function):
    """y = True if all values of x are true: True, or numbers other than 0"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: object, keepdims: bool) -> Array:
        return x.all(axis=normalise_axes(axis, x.ndim), keepdims=keepdims)


class Argmax(Function):
    """y = index of the largest of x, the first one at ties"""

    @staticmethod
    def forward(ctx: Context, x: Array, axis: int | None, keepdims: bool) -> Array:
        if axis is not None:
            axis = normalise_axis(axis, x.ndim)
        if (x.size if axis is None else x.shape[axis]) == 0:
            raise OperandError("the argmax over an empty axis is undefined")
        return x.argmax(axis=axis, keepdims=keepdims)


def _require_booleans(*xs: Array) -> None:
    for x in xs:
        if x.dtype != bool:
            raise TypeError(f"expected booleans, got {x.dtype}; comparisons need parentheses, (x > 0) & (x < 1)")


def _operands(name: str, *xs: object) -> list[Tensor]:
    like = next((x for x in xs if isinstance(x, Tensor)), Tensor(0))
    return [as_tensor_like(name, x, like) for x in xs]


# ---- public functions
# fmt: off

def logical_and(a: object, b: object) -> Tensor: return LogicalAnd.apply(*_operands("logical_and", a, b))
def logical_or(a: object, b: object) -> Tensor: return LogicalOr.apply(*_operands("logical_or", a, b))
def logical_not(x: object) -> Tensor: return LogicalNot.apply(*_operands("logical_not", x))
# fmt: on


def any(x: object, axis: object = None, keepdims: bool = False) -> Tensor:
    return Any.apply(as_tensor(x).detach(), axis, keepdims)


def all(x: object, axis: object = None, keepdims: bool = False) -> Tensor:
    return All.apply(as_tensor(x).detach(), axis, keepdims)


def argmax(x: object, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the largest value along an axis, or without one, in the flattened Tensor."""
    return Argmax.apply(as_tensor(x).detach(), axis, keepdims)
