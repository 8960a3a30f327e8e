"""The modes that operations obey: `no_grad`, `autocast`, `detect_anomaly`, and the tape of a running `checkpoint`.

They live in one context variable, so two threads or two coroutines never see each other's modes. A new thread
starts with the defaults; `inherit_modes` hands the caller's modes to a worker.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import wraps
from typing import Any, NamedTuple


class Modes(NamedTuple):
    grad: bool = True  # record operations, so that backward can follow them
    anomaly: bool = False  # look for NaN, Inf and edited arrays
    products: str = "as given"  # in which precision matrices are multiplied: one of PRODUCTS
    tape: Any = None  # a running checkpoint, told of every operation that is recorded


PRODUCTS = ("as given", "tf32", "float16")
_DEFAULTS = Modes()
_modes = contextvars.ContextVar("autograd_modes", default=_DEFAULTS)
current = _modes.get  # one look-up per operation: this is on the hot path


class changed(ContextDecorator):  # noqa: N801  (used like a function)
    """Run a `with` block, or every call of a decorated function, in the current modes with some of them changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.tokens: list[contextvars.Token[Modes]] = []  # a stack: one object may be entered again

    def _recreate_cm(self) -> changed:  # a decorated function may run in many threads: one for each call
        return changed(**self.changes)

    def __enter__(self) -> None:
        self.tokens.append(_modes.set(_modes.get()._replace(**self.changes)))

    def __exit__(self, *exc: object) -> None:
        _modes.reset(self.tokens.pop())


def no_grad() -> changed:
    """Do not record: results need no gradient and nothing is kept for backward. Also a decorator."""
    return changed(grad=False)


def autocast(products: str = "float16") -> changed:
    """Multiply float32 matrices in a lower precision, which the tensor cores of a GPU do several times as fast.

    "float16"   linear layers, products and attention, with the softmax in it, convert their factors and give float16;
                norms, losses and softmax elsewhere stay in float32, and where float16 meets float32, float32 comes out.
                The Tensors that are given stay as they are, and so do their gradients. Small gradients vanish in
                float16: multiply the loss by a large number, as `minicait.train.Trainer` does, and divide the gradients
                by it.
    "tf32"      everything is float32, but products take only 10 bits of a factor's 23 behind the point. NumPy, and GPUs
                older than 2020, multiply in float32 as ever.

    Run forward *and* backward inside the block.
    """
    if products not in PRODUCTS:
        raise ValueError(
            f"autocast: products must be 'float16' or 'tf32' (or 'as given', for neither), got {products!r}"
        )
    return changed(products=products)


def detect_anomaly() -> changed:
    """Stop at the first operation that makes a NaN or Inf, or whose saved arrays were edited in place.

    The error names the operation and shows the line that called it. Every array is read once more on the way, so
    this is for finding mistakes, not for training. Run forward *and* backward inside the block.
    """
    return changed(anomaly=True)


def inherit_modes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, to be called from other threads, as if it were called here: `pool.submit(inherit_modes(work), x)`."""
    context = contextvars.copy_context()

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(fn, *args, **kwargs)  # a context runs in one thread at a time, hence the copy

    return run
