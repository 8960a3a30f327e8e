"""How an operation is declared: a `Function` with `forward` and `backward` beside each other.

`MyOp.apply(*args)` runs forward on the arrays and, if a gradient will be wanted, leaves a `Context` in the graph: what
forward saved, and where the gradients go. A Context knows its inputs but not its output, so the graph has no reference
cycles and dies with the last Tensor that needs it.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from . import anomaly, kernels, modes
from .backend import Array, as_array, device_of, is_array, work_with
from .tensor import Tensor

PLAIN = object()  # stands in Context.parents for an argument that is not a Tensor
_FLOAT64 = np.dtype("float64")


class Context:
    """One recorded operation, a node of the graph: what links forward to backward."""

    __slots__ = ("device", "dtype", "function", "needs", "parents", "saved", "shape", "tape", "trace")

    function: type[Function]
    needs: list[bool]  # whether argument i of forward wants a gradient
    parents: list[Any] | None  # per argument: Context, leaf Tensor, None (no gradient wanted) or PLAIN; None once freed
    saved: tuple[Any, ...]
    shape: tuple[int, ...]  # of the output, and so of the gradient that arrives here
    dtype: np.dtype
    device: str
    tape: Any  # the checkpoint that can make `saved` again, or None
    trace: anomaly.Trace | None  # what detect_anomaly wants to know later

    def save(self, *values: Any) -> None:
        """Keep arrays or plain values for backward, which finds them in `saved`. Save only what backward needs."""
        self.saved = values

    def unbroadcast(self, i: int, g: Array) -> Array | None:
        """`g` as the gradient of argument i, summed over the copies that broadcasting made; None if nobody wants it."""
        return unbroadcast(g, self.parents[i].shape) if self.needs[i] and self.parents else None

    def free(self) -> None:
        self.saved = ()
        self.parents = None
        self.tape = None


class Function:
    """A differentiable operation. Subclasses write two static methods, and a fused one a third:

    forward(ctx, *args)   gets arrays in place of Tensors, and plain values as they are; returns one array
    backward(ctx, g)      gets the gradient of the output; returns a gradient array, or None, per Tensor argument
                          (None for the plain arguments may be given too)
    reference(*args)      the same operation from simpler ones, on Tensors: the explanation and the test oracle

    `ctx.needs[i]` tells whether argument i wants a gradient. Neither method may edit its arguments. What backward
    returns belongs to the engine from then on, except for `g`, views, and saved arrays, which may be returned and stay
    as they are. Errors raised by forward reach the user with the name of the operation in front.
    """

    name: str = "function"
    widens: bool = False  # whether float64 may come out where none went in; elsewhere that is caught as a mistake

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
        """Run the operation and record it. Tensors are positional arguments; keywords are plain values."""
        mode = modes.current()
        recording = mode.grad
        wanted = foreign = False
        arrays: list[Any] = []
        needs: list[bool] = []
        parents: list[Any] = []
        for arg in args:
            if isinstance(arg, Tensor):
                data = arg.data
                arrays.append(data)
                if type(data) is not np.ndarray:
                    foreign = True
                if recording and arg._requires_grad:
                    wanted = True
                    needs.append(True)
                    parents.append(arg if arg.node is None else arg.node)
                else:
                    needs.append(False)
                    parents.append(None)
            else:
                arrays.append(arg)
                needs.append(False)
                parents.append(PLAIN)
        if foreign:
            _go_to_device(cls.name, args)
        if kwargs and any(isinstance(value, Tensor) for value in kwargs.values()):
            raise TypeError(f"{cls.name}: give Tensors by position; by keyword they would get no gradient")

        ctx = Context()
        ctx.function = cls
        ctx.needs = needs
        ctx.saved = ()
        try:
            data = cls.forward(ctx, *arrays, **kwargs)
        except (ValueError, TypeError, IndexError) as error:
            _explain(cls.name, error, args)
        if type(data) is not np.ndarray:
            data = _one_array(cls.name, data)
        dtype = data.dtype
        if dtype == _FLOAT64 and not cls.widens:
            _check_promotion(cls.name, args)
        if mode.anomaly:
            anomaly.check_forward(cls.name, data, arrays)

        out = Tensor.__new__(Tensor)
        out.data = data
        out.grad = None
        out._requires_grad = wanted
        if not wanted:
            out.node = None
            return out
        ctx.parents = parents
        ctx.shape = data.shape
        ctx.dtype = dtype
        ctx.device = device_of(data)
        ctx.tape = None
        ctx.trace = anomaly.Trace(ctx.saved) if mode.anomaly else None
        if mode.tape is not None:
            mode.tape.record(ctx)
        out.node = ctx
        return out


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an input of `shape` that was broadcast to g's shape: the sum over the copies that were made."""
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


def _explain(name: str, error: Exception, args: tuple[Any, ...]) -> NoReturn:
    """Forward's error again, in one sentence with the operation's name and what it was called with."""
    kind = next(k for k in (TypeError, IndexError, ValueError) if isinstance(error, k))
    if isinstance(error, IndexError) and isinstance(error, ValueError):  # NumPy's AxisError is both
        kind = ValueError
    tensors = [arg.shape for arg in args if isinstance(arg, Tensor)]
    message = str(error)
    if "could not be broadcast" in message and len(tensors) > 1:
        message = f"shapes {' and '.join(map(str, tensors))} do not broadcast together"
    got = ", ".join(_describe(arg) for arg in args)
    raise kind(f"{name}: {message} [called with {got}]") from (None if isinstance(error, OperandError) else error)


def _one_array(name: str, result: Any) -> Array:
    """What forward returned, as an array: arithmetic on 0-d arrays gives NumPy scalars, and those are fine."""
    if not is_array(result) and not isinstance(result, np.generic):
        raise TypeError(f"{name}: forward must return one array, got {type(result).__name__}")
    return as_array(result)


def _check_promotion(name: str, args: tuple[Any, ...]) -> None:
    """float64 may come only from a Tensor that is float64."""
    dtypes = [arg.dtype for arg in args if isinstance(arg, Tensor)]
    if not dtypes or _FLOAT64 in dtypes:
        return
    got = ", ".join(_describe(arg) for arg in args)
    raise TypeError(
        f"{name}: the result would silently become float64; cast integers first, x.astype('float32'), and keep float64 "
        f"constants out of forward [called with {got}]"
    )


def _go_to_device(name: str, args: tuple[Any, ...]) -> None:
    """Work where the Tensors are, which must be one place."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    devices = [tensor.device for tensor in tensors]
    if len(set(devices)) > 1:
        raise ValueError(f"{name}: all Tensors must be on one device, got {', '.join(devices)}; move one with .to(...)")
    work_with(tensors[0].data)


class OperandError(ValueError):
    """Raised by an operation's own checks; its message is complete and needs no cause behind it."""
