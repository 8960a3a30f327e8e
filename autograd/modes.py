"""The modes that operations obey: `no_grad`, `autocast`, `detect_anomaly`, the tape of a running `checkpoint`, and the
CUDA graph that is being made.

They live in one context variable, so threads and coroutines never see each other's modes. A new thread starts with the
defaults; `inherit_modes` passes the caller's modes to a worker.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import wraps
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Modes(NamedTuple):
    grad: bool = True  # record operations for backward
    anomaly: bool = False  # check for NaN, Inf and arrays edited in place
    products: str = "as given"  # precision of matrix products, one of PRODUCTS
    halves: Any = None  # float16 copies of weights, by their address on a GPU: see `ops.arguments.narrowed`
    sample_threads: int = 0  # threads over which a convolution distributes the samples of a batch; 0: none
    tape: Any = None  # the running checkpoint, which records every operation
    capture: Any = None  # the CUDA graph that is being made: see `graph`


PRODUCTS = ("as given", "tf32", "float16")
_DEFAULTS = Modes()
_modes = contextvars.ContextVar("autograd_modes", default=_DEFAULTS)
current = _modes.get  # bound once: every operation calls it
_enclosing: contextvars.ContextVar[tuple[Modes, ...]] = contextvars.ContextVar("autograd_enclosing_modes", default=())


class changed(ContextDecorator):  # noqa: N801  (used like a function)
    """Context manager and decorator that changes some of the current modes.

    It has no state of its own, so one object may be entered repeatedly, and by several threads at once.
    """

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(self, fn: Any) -> Any:
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"a mode cannot decorate {getattr(fn, '__name__', fn)}: a generator or coroutine runs after the call "
                "returns; use a with block inside it, but not around a yield"
            )
        return super().__call__(fn)

    def __enter__(self) -> None:
        _enclosing.set((*_enclosing.get(), _modes.get()))
        _modes.set(_modes.get()._replace(**self.changes))

    def __exit__(self, *exc: object) -> None:
        *enclosing, modes = _enclosing.get()
        _enclosing.set(tuple(enclosing))
        _modes.set(modes)


def no_grad() -> changed:
    """Disable recording: results require no gradient and nothing is saved for backward. Also a decorator."""
    return changed(grad=False)


def autocast(products: str = "float16") -> changed:
    """Multiply float32 matrices in a lower precision, several times as fast on the tensor cores of a GPU.

    "float16"   linear layers, convolutions, matrix products and attention (including its softmax) cast their operands
                to float16 and return float16. Norms, losses and other softmaxes stay in float32, but `batch_norm` keeps
                the dtype of its input; mixing float16 with float32 gives float32. The Tensors passed in keep their
                dtype, and so do their gradients. Small gradients underflow in float16: scale the loss, as
                `minicait.train.Trainer` does, and unscale the gradients.
    "tf32"      everything is float32, but products use only the upper 10 of the 23 mantissa bits. NumPy, and GPUs older
                than 2020, multiply in float32 as usual.

    Run forward *and* backward inside the block.
    """
    if products not in PRODUCTS:
        raise ValueError(
            f"autocast: products must be 'float16' or 'tf32' (or 'as given', for neither), got {products!r}"
        )
    return changed(products=products)


def detect_anomaly() -> changed:
    """Raise at the first operation that produces a NaN or Inf, or whose saved arrays were edited in place.

    The error names the operation and shows the line that called it. Every array is read once more, so this is for
    debugging, not for training. Run forward *and* backward inside the block.
    """
    return changed(anomaly=True)


class CaptureError(RuntimeError):
    """A CUDA graph cannot hold what was asked for."""


def refuse_in_graph(what: str) -> None:
    """Raise CaptureError while a CUDA graph is made: every launch would repeat what happens now."""
    if current().capture is not None:
        raise CaptureError(f"a CUDA graph cannot hold {what}")


def replayed(draw: Callable[[], T]) -> T:
    """Return draw(), or in the replay of a checkpoint what it returned in the first run."""
    tape = current().tape
    return draw() if tape is None else tape.draw(draw)


def inherit_modes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `fn` so that other threads run it in the caller's modes: `pool.submit(inherit_modes(work), x)`."""
    context = contextvars.copy_context()

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(fn, *args, **kwargs)  # copied, because a context runs in one thread at a time

    return run
