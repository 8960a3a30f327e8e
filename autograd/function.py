"""Function: a differentiable operation, `forward` and `backward` side by side.

`MyOp.apply(*args)` runs forward on the arrays and, if an input requires grad, adds a `Context` to the graph: what
forward saved, and where the gradients go. A Context references its inputs but not its output, so the graph has no
reference cycles and is freed with the last Tensor that needs it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from . import anomaly, kernels, modes
from .backend import Array, as_array, device_of, is_array, on_device_of
from .tensor import Tensor

PLAIN = object()  # marks an argument that is not a Tensor in Context.parents
_FLOAT64 = np.dtype("float64")
_LEAF_TYPES = frozenset([int, float, bool, str, type(None), slice, type(...), np.ndarray])  # cannot contain a Tensor


class Context:
    """A node of the graph: one recorded operation, with what forward saved for backward."""

    __slots__ = ("device", "dtype", "function", "needs", "parents", "restore", "saved", "shape", "trace")

    function: type[Function]
    needs: list[bool]  # per argument of forward: does it need a gradient?
    parents: list[Any] | None  # per argument: Context, leaf Tensor, None (no gradient needed) or PLAIN; None once freed
    saved: tuple[Any, ...]
    shape: tuple[int, ...]  # of the output, and so of the upstream gradient
    dtype: np.dtype
    device: str
    restore: Callable[[], tuple[Any, ...]] | None  # recomputes `saved`, in a checkpoint
    trace: anomaly.Trace | None  # for detect_anomaly

    def save(self, *values: Any) -> None:
        """Keep arrays or plain values for backward, as `ctx.saved`. Save only what backward needs."""
        self.saved = values

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"a Tensor computed by {self.function.name} cannot be deep-copied or pickled, because its graph cannot: "
            "detach() it first"
        )

    def unbroadcast(self, i: int, g: Array) -> Array | None:
        """Sum `g` over the broadcast axes of argument i; None if it needs no gradient."""
        return unbroadcast(g, self.parents[i].shape) if self.needs[i] and self.parents else None

    def free(self) -> None:
        self.saved = ()
        self.parents = None
        self.restore = None


class Function:
    """A differentiable operation. Subclasses define two static methods, fused ones a third:

    forward(ctx, *args)   takes arrays in place of Tensors, and plain values unchanged; returns one array
    backward(ctx, g)      takes the upstream gradient; returns a gradient array or None per Tensor argument (and
                          optionally None for each plain argument): one array, or a tuple. To stop the gradient of a
                          single argument, return (None,): None alone is an error, usually a forgotten return
    reference(*args)      the same operation built from simpler ones on Tensors: the explanation and the test oracle

    `ctx.needs[i]` is True if argument i needs a gradient. Neither method may edit its arguments. An array that backward
    returns becomes the engine's own, and is added to in place, only if nothing else references it or views it. Errors
    raised by forward reach the user prefixed with the name of the operation.
    """

    name: str = "function"
    widens: bool = False  # may return float64 for narrower inputs; elsewhere that is an error

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()

    @staticmethod
    def forward(ctx: Context, *args: Any, **kwargs: Any) -> Array:
        raise TypeError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        raise TypeError("a Function needs a static method backward(ctx, g)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Tensor:
        """Run the operation and record it. Tensors are positional arguments, keywords are plain values."""
        mode = modes.current()
        recording = mode.grad
        requires_grad = not_numpy = False
        arrays: list[Any] = []
        needs: list[bool] = []
        parents: list[Any] = []
        for arg in args:
            if isinstance(arg, Tensor):
                data = arg.data
                arrays.append(data)
                if type(data) is not np.ndarray:
                    not_numpy = True
                if recording and arg._requires_grad:
                    requires_grad = True
                    needs.append(True)
                    parents.append(arg if arg.node is None else arg.node)
                else:
                    needs.append(False)
                    parents.append(None)
            else:
                if type(arg) not in _LEAF_TYPES and _contains_tensor(arg):
                    _refuse_hidden(cls.name)
                arrays.append(arg)
                needs.append(False)
                parents.append(PLAIN)
        if not_numpy:
            _use_common_device(cls.name, args)
        if kwargs and _contains_tensor([*kwargs.values()]):
            _refuse_hidden(cls.name)

        ctx = Context()
        ctx.function = cls
        ctx.needs = needs
        ctx.saved = ()
        try:
            data = cls.forward(ctx, *arrays, **kwargs)
        except (ValueError, TypeError, IndexError) as error:
            _reraise(cls.name, error, args)
        if type(data) is not np.ndarray:
            data = _as_output(cls.name, data)
        dtype = data.dtype
        if dtype == _FLOAT64 and not cls.widens:
            _check_promotion(cls.name, args)
        if mode.anomaly:
            anomaly.check_forward(cls.name, data, arrays)

        out = Tensor.__new__(Tensor)
        out.data = data
        out.grad = None
        out._requires_grad = requires_grad
        if not requires_grad:
            out.node = None
            return out
        ctx.parents = parents
        ctx.shape = data.shape
        ctx.dtype = dtype
        ctx.device = device_of(data)
        ctx.restore = None
        ctx.trace = anomaly.Trace(ctx.saved) if mode.anomaly else None
        if mode.tape is not None:
            mode.tape.record(ctx)
        out.node = ctx
        return out


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of an input of `shape` that was broadcast to the shape of `g`: the sum over its copies."""
    if g.shape == shape:
        return g
    added = g.ndim - len(shape)
    axes = (*range(added), *(added + i for i, size in enumerate(shape) if size == 1))
    return kernels.total(g, axes).reshape(shape)


def _describe(arg: Any) -> str:
    data = arg.data if isinstance(arg, Tensor) else arg
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return f"{tuple(data.shape)} {data.dtype}"
    text = " ".join(repr(data).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _reraise(name: str, error: Exception, args: tuple[Any, ...]) -> NoReturn:
    """Raise an error of forward again, with the operation's name and arguments in the message."""
    kind = next(k for k in (TypeError, IndexError, ValueError) if isinstance(error, k))
    if isinstance(error, IndexError) and isinstance(error, ValueError):  # NumPy's AxisError is both
        kind = ValueError
    tensors = [arg.shape for arg in args if isinstance(arg, Tensor)]
    message = str(error)
    if "could not be broadcast" in message and len(tensors) > 1:
        message = f"shapes {' and '.join(map(str, tensors))} do not broadcast together"
    got = ", ".join(_describe(arg) for arg in args)
    raise kind(f"{name}: {message} [called with {got}]") from (None if isinstance(error, OperandError) else error)


def _contains_tensor(value: Any) -> bool:
    """True for a Tensor, or a list, tuple, set, deque or dict with one inside, at any depth."""
    if isinstance(
        value, (list, tuple, set, frozenset, deque)
    ):  # faster than list | tuple, and shapes, axes and indices all come here
        return not _LEAF_TYPES.issuperset(map(type, value)) and any(map(_contains_tensor, value))
    return isinstance(value, Tensor) or (isinstance(value, dict) and _contains_tensor([*value.values()]))


def _refuse_hidden(name: str) -> NoReturn:
    raise TypeError(
        f"{name}: pass Tensors by position, each as an argument of its own; by keyword or inside a list they would get "
        "no gradient"
    )


def _as_output(name: str, result: Any) -> Array:
    """Return forward's result as an array. NumPy scalars are fine: arithmetic on 0-d arrays returns them."""
    if not is_array(result) and not isinstance(result, np.generic):
        raise TypeError(f"{name}: forward must return one array, got {type(result).__name__}")
    return as_array(result)


def _check_promotion(name: str, args: tuple[Any, ...]) -> None:
    """Raise if float64 came out and no input was float64."""
    dtypes = [arg.dtype for arg in args if isinstance(arg, Tensor)]
    if not dtypes or _FLOAT64 in dtypes:
        return
    got = ", ".join(_describe(arg) for arg in args)
    raise TypeError(
        f"{name}: the result would silently become float64; cast integers first, x.astype('float32'), and keep float64 "
        f"constants out of forward [called with {got}]"
    )


def _use_common_device(name: str, args: tuple[Any, ...]) -> None:
    """Check that all Tensors are on one device, and make it current."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    devices = [tensor.device for tensor in tensors]
    if len(set(devices)) > 1:
        raise ValueError(f"{name}: all Tensors must be on one device, got {', '.join(devices)}; move one with .to(...)")
    on_device_of(tensors[0].data)


class OperandError(ValueError):
    """Raised by an operation's own checks. Its message is complete, so its cause is not shown."""
