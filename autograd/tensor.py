"""Tensor: an array, its gradient, and the operation that produced it. Methods and operators are sugar over `ops`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .backend import FLOATS, Array, as_array, device_of, from_list, is_array, on_device_of, to_device

if TYPE_CHECKING:
    from .draw import Svg
    from .function import Context


NO_GRADIENT = {  # functions of NumPy whose results have none
    np.shape, np.ndim, np.size, np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.argmax, np.argmin,
    np.argsort, np.allclose, np.isclose, np.array_equal, np.count_nonzero, np.any, np.all,
}  # fmt: skip


class Tensor:
    """An array that can require a gradient.

    It shares the array's memory and dtype; Python numbers and lists become float32. Operations on Tensors that require
    grad are recorded. `loss.backward()` then fills `.grad` of the leaves, the Tensors that no operation produced.
    NumPy's functions refuse a Tensor that requires grad, because they would cut its graph.
    """

    __slots__ = ("__weakref__", "_requires_grad", "data", "grad", "node")
    __array_ufunc__ = None  # so that `array * tensor` calls Tensor.__rmul__

    data: Array
    grad: Tensor | None
    node: Context | None  # the operation that produced this, None for a leaf

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            data = data.data
        self.data = as_array(data)
        if self.data.dtype.kind not in "biuf":
            raise TypeError(f"Tensor: expected booleans, integers or floats, got dtype {self.data.dtype}")
        self.grad = None
        self.node = None
        self._requires_grad = False
        self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self.data.dtype not in FLOATS:
            raise TypeError(f"Tensor: only floating-point Tensors can require grad, got dtype {self.data.dtype}")
        if self.node is not None and not value:
            raise RuntimeError("requires_grad: this Tensor was computed from others that require grad; use detach()")
        self._requires_grad = bool(value)

    # ---- attributes of the array
    # fmt: off

    @property
    def shape(self) -> tuple[int, ...]: return self.data.shape
    @property
    def ndim(self) -> int: return self.data.ndim
    @property
    def size(self) -> int: return self.data.size
    @property
    def dtype(self) -> np.dtype: return self.data.dtype
    @property
    def device(self) -> str: return device_of(self.data)
    # fmt: on

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a Tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        text = np.array2string(self.numpy(), prefix="Tensor(", separator=", ", threshold=20, precision=4)
        notes = "" if self.dtype == np.float32 else f", dtype={self.dtype}"
        notes += "" if self.device == "cpu" else f", device={self.device!r}"
        if self.node is not None:
            notes += f", made by {self.node.function.name}"
        elif self._requires_grad:
            notes += ", requires_grad=True"
        return f"Tensor({text}{notes})"

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.size != 1:
            raise TypeError(f"format: {spec!r} is for a single value, got a Tensor of shape {self.shape}")
        return format(self.item(), spec)

    # ---- conversion

    def numpy(self) -> np.ndarray:
        """Return the values as a NumPy array, without the graph. On the CPU it shares memory with the Tensor."""
        return to_device(self.data, "cpu")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_without_graph(self), dtype=dtype, copy=copy)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Apply a function of NumPy to the values, unless that would cut the graph."""
        return func(*_without_graph(args, func), **_without_graph(kwargs, func))

    def item(self) -> float | int | bool:
        """Return the single value as a Python number."""
        if self.size != 1:
            raise ValueError(f"item: expected a Tensor with a single value, got shape {self.shape}")
        return self.data.item()

    def detach(self) -> Tensor:
        """Return a leaf that shares the array and requires no grad."""
        return Tensor(self.data)

    def to(self, device: str) -> Tensor:
        """Copy to another device ("cpu", "cuda", "cuda:1"), recorded; the Tensor itself if it is already there."""
        return ops.to_device(self, device)

    # ---- gradients

    def backward(self, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Accumulate the gradients of this Tensor in the `.grad` of the leaves it depends on. See `autograd.engine`."""
        engine.backward(self, grad, retain_graph, create_graph)

    def draw(self, names: Any = None, gradients: bool = False) -> Svg:
        """Draw the graph behind this Tensor as an SVG picture. See `autograd.draw`."""
        return draw_graph(self, names, gradients)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "a Tensor cannot be assigned to, because backward may need its old values: build a new one with ops.where, "
            "or write to tensor.data[...] before the Tensor is used"
        )

    # ---- operators and methods: one line each, implemented in autograd/ops
    # fmt: off

    def __add__(self, other: Any) -> Tensor: return ops.add(self, other)
    def __radd__(self, other: Any) -> Tensor: return ops.add(other, self)
    def __sub__(self, other: Any) -> Tensor: return ops.subtract(self, other)
    def __rsub__(self, other: Any) -> Tensor: return ops.subtract(other, self)
    def __mul__(self, other: Any) -> Tensor: return ops.multiply(self, other)
    def __rmul__(self, other: Any) -> Tensor: return ops.multiply(other, self)
    def __truediv__(self, other: Any) -> Tensor: return ops.divide(self, other)
    def __rtruediv__(self, other: Any) -> Tensor: return ops.divide(other, self)
    def __pow__(self, other: Any) -> Tensor: return ops.pow(self, other)
    def __rpow__(self, other: Any) -> Tensor: return ops.pow(other, self)
    def __matmul__(self, other: Any) -> Tensor: return ops.matmul(self, other)
    def __rmatmul__(self, other: Any) -> Tensor: return ops.matmul(other, self)
    def __neg__(self) -> Tensor: return ops.negative(self)
    def __abs__(self) -> Tensor: return ops.abs(self)
    def __getitem__(self, index: Any) -> Tensor: return ops.getitem(self, index)
    # Comparisons return boolean Tensors, which need no gradient, and combine by &, | and ~.
    def __and__(self, other: Any) -> Tensor: return ops.logical_and(self, other)
    def __rand__(self, other: Any) -> Tensor: return ops.logical_and(other, self)
    def __or__(self, other: Any) -> Tensor: return ops.logical_or(self, other)
    def __ror__(self, other: Any) -> Tensor: return ops.logical_or(other, self)
    def __invert__(self) -> Tensor: return ops.logical_not(self)
    def __lt__(self, other: Any) -> Tensor: return _compare(operator.lt, self, other)
    def __le__(self, other: Any) -> Tensor: return _compare(operator.le, self, other)
    def __gt__(self, other: Any) -> Tensor: return _compare(operator.gt, self, other)
    def __ge__(self, other: Any) -> Tensor: return _compare(operator.ge, self, other)
    def __eq__(self, other: Any) -> Tensor: return _compare(operator.eq, self, other)  # type: ignore[override]
    def __ne__(self, other: Any) -> Tensor: return _compare(operator.ne, self, other)  # type: ignore[override]
    __hash__ = object.__hash__
    def __float__(self) -> float: return float(self.item())
    def __int__(self) -> int: return int(self.item())
    def __bool__(self) -> bool: return bool(self.item())

    def abs(self) -> Tensor: return ops.abs(self)
    def exp(self) -> Tensor: return ops.exp(self)
    def log(self) -> Tensor: return ops.log(self)
    def expm1(self) -> Tensor: return ops.expm1(self)
    def log1p(self) -> Tensor: return ops.log1p(self)
    def sin(self) -> Tensor: return ops.sin(self)
    def cos(self) -> Tensor: return ops.cos(self)
    def sqrt(self) -> Tensor: return ops.sqrt(self)
    def tanh(self) -> Tensor: return ops.tanh(self)
    def erf(self) -> Tensor: return ops.erf(self)
    def sigmoid(self) -> Tensor: return ops.sigmoid(self)
    def relu(self) -> Tensor: return ops.relu(self)
    def gelu(self) -> Tensor: return ops.gelu(self)
    def silu(self) -> Tensor: return ops.silu(self)
    def clip(self, min: Any = None, max: Any = None) -> Tensor: return ops.clip(self, min, max)
    def astype(self, dtype: Any) -> Tensor: return ops.astype(self, dtype)
    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.sum(self, axis, keepdims)
    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.mean(self, axis, keepdims)
    def var(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
        return ops.var(self, axis, keepdims, ddof)
    def std(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
        return ops.std(self, axis, keepdims, ddof)
    def norm(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.norm(self, axis, keepdims)
    def cumsum(self, axis: int | None = None) -> Tensor: return ops.cumsum(self, axis)
    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.max(self, axis, keepdims)
    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.min(self, axis, keepdims)
    def any(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.any(self, axis, keepdims)
    def all(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.all(self, axis, keepdims)
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor: return ops.argmax(self, axis, keepdims)
    def logsumexp(self, axis: Any = None, keepdims: bool = False) -> Tensor: return ops.logsumexp(self, axis, keepdims)
    def softmax(self, axis: int = -1) -> Tensor: return ops.softmax(self, axis)
    def log_softmax(self, axis: int = -1) -> Tensor: return ops.log_softmax(self, axis)
    def reshape(self, *shape: Any) -> Tensor: return ops.reshape(self, _one_tuple(shape))
    def transpose(self, *axes: Any) -> Tensor: return ops.transpose(self, _one_tuple(axes) or None)
    def swapaxes(self, axis1: int, axis2: int) -> Tensor: return ops.swapaxes(self, axis1, axis2)
    def broadcast_to(self, *shape: Any) -> Tensor: return ops.broadcast_to(self, _one_tuple(shape))
    def expand_dims(self, axis: Any) -> Tensor: return ops.expand_dims(self, axis)
    def squeeze(self, axis: Any = None) -> Tensor: return ops.squeeze(self, axis)
    def flip(self, axis: Any = None) -> Tensor: return ops.flip(self, axis)
    @property
    def T(self) -> Tensor: return ops.transpose(self)  # noqa: N802
    # fmt: on


def as_tensor(x: Any) -> Tensor:
    """Return a Tensor unchanged, and wrap anything else in one."""
    return x if isinstance(x, Tensor) else Tensor(x)


def _compare(compare: Callable[[Any, Any], Any], x: Tensor, other: Any) -> Tensor:
    other = other.data if isinstance(other, Tensor) else other
    if not isinstance(other, int | float):
        other = other if is_array(other) else from_list(other)
        if other.dtype.kind not in "biuf":
            return NotImplemented  # a string, None, ...: Python answers == and !=, and raises a TypeError for <
    try:
        return Tensor(compare(on_device_of(x.data), other))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # NumPy's own types take other arguments
        raise kind(f"{compare.__name__}: a Tensor of shape {x.shape} cannot be compared ({error})") from None


def _without_graph(value: Any, func: Any = np.asarray) -> Any:
    """Replace Tensors, also inside lists, tuples and dicts, by their arrays; refuse those that require grad."""
    if isinstance(value, list | tuple):
        items = [_without_graph(item, func) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _without_graph(item, func) for key, item in value.items()}
    if not isinstance(value, Tensor):
        return value
    if value.requires_grad and func not in NO_GRADIENT:
        ours = {"concatenate": "concat", "dot": "matmul"}.get(func.__name__, func.__name__)
        raise TypeError(
            f"{func.__module__}.{func.__name__}: NumPy would cut the graph of a Tensor that requires grad; use "
            f"{f'ops.{ours}' if ours in ops.__all__ else 'autograd.ops'}, or .numpy() for its values"
        )
    return value.numpy()


def _one_tuple(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Accept both `x.reshape(2, 3)` and `x.reshape((2, 3))`."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args


from . import engine, ops  # noqa: E402  (these import Tensor, so they come after it)
from .draw import draw as draw_graph  # noqa: E402
