"""Mistakes that people make in a backward, to inject into every operation.

A mistake is a function of a `Call`. It returns the wrong gradients, or None where it has no chance to be made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from autograd import Function

Gradients = list[Any]


@dataclass
class Call:
    """One call of a backward, with the arguments of its forward."""

    cls: type[Function]
    forward: Callable[..., Any]
    right: Callable[[Any, np.ndarray], Gradients]  # the original backward
    ctx: Any
    g: np.ndarray
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, Any]  # survives the call: an attribute of the class

    def gradients(self, g: np.ndarray | None = None) -> Gradients:
        return self.right(self.ctx, self.g if g is None else g)

    def floats(self) -> list[np.ndarray]:
        return [x for x in self.args if isinstance(x, np.ndarray) and x.dtype.kind == "f"]

    def argument(self, name: str) -> Any:
        return inspect.signature(self.forward).bind(self.ctx, *self.args, **self.kwargs).arguments[name]


def each(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Call], Gradients]:
    return lambda call: [None if g is None else change(g) for g in call.gradients()]


def scaled(factor: float) -> Callable[[Call], Gradients]:
    return each(lambda g: g * g.dtype.type(factor))


def last_entry_lost(g: np.ndarray) -> np.ndarray:
    g = g.copy()
    g[(-1,) * g.ndim] = 0
    return g


def swapped(call: Call) -> Gradients | None:
    gradients = call.gradients()
    inputs = {id(parent) for parent, g in zip(call.ctx.parents, gradients, strict=False) if g is not None}
    return gradients[::-1] if len(inputs) > 1 else None


VALUES = {
    "times 7": scaled(7),
    "times 1.001": scaled(1.001),
    "zero": scaled(0),
    "sign": scaled(-1),
    "transposed": each(lambda g: np.ascontiguousarray(g.T).reshape(g.shape)),
    "rolled by one": each(lambda g: np.roll(g, 1)),
    "last entry lost": each(last_entry_lost),
    "gradients swapped": swapped,
}


# ---- right once, for a contiguous gradient of ordinary size, and wrong in the way it is done


def overwrites_saved(call: Call) -> Gradients | None:
    gradients = [None if g is None else g.copy() for g in call.gradients()]
    arrays = [x for x in call.ctx.saved if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.flags.writeable]
    for x in arrays:
        x *= 1.5
    return gradients if arrays else None


def overwrites_upstream(call: Call) -> Gradients | None:
    gradients = [None if g is None else g.copy() for g in call.gradients()]
    if not call.g.flags.writeable:
        return None
    call.g[...] *= 1.5
    return gradients


def clips(call: Call) -> Gradients | None:
    return call.gradients(np.clip(call.g, -1000, 1000)) if np.abs(call.g).max(initial=0) > 1000 else None


def drops_small(call: Call) -> Gradients | None:
    large = np.abs(call.g) > 1e-3
    return call.gradients(call.g * large) if not large.any() and call.g.any() else None


def forgets_strides(call: Call) -> Gradients | None:
    """Reads the memory from front to back, as if it were contiguous."""
    g = call.g
    if g.flags.c_contiguous or not all(g.strides) or g.size < 2:
        return None
    forwards = g[tuple(slice(None, None, -1 if step < 0 else None) for step in g.strides)]
    return call.gradients(forwards.ravel("K").reshape(g.shape))


def forgets_transposition(call: Call) -> Gradients | None:
    return forgets_strides(call) if call.g.flags.f_contiguous else None


def forgets_broadcasting(call: Call) -> Gradients | None:
    g = call.g
    return scaled(2)(call) if any(n > 1 and not step for n, step in zip(g.shape, g.strides, strict=True)) else None


def needs_dense(call: Call) -> Gradients | None:
    """Wrong if some values are zero, as behind an index, a maximum or a ReLU."""
    return scaled(2)(call) if call.g.any() and not call.g.all() else None


def needs_both_signs(call: Call) -> Gradients | None:
    return scaled(2)(call) if call.g.size > 1 and (call.g > 0).all() else None


def forgets_padding(call: Call) -> Gradients | None:
    """Wrong for a part of a larger array, whose rows are contiguous."""
    g = call.g
    rows = g.ndim > 1 and g.strides[-1] == g.itemsize and g.strides[-2] > g.shape[-1] * g.itemsize
    return scaled(2)(call) if rows else None


def from_forward(when: str) -> Callable[[Call], Gradients | None]:
    """Takes what the first, or the last, forward of the class saved."""

    def wrong(call: Call) -> Gradients | None:
        saved, call.ctx.saved = call.ctx.saved, call.state[when]
        try:
            return call.gradients() if saved is not call.ctx.saved else None
        finally:
            call.ctx.saved = saved

    return wrong


MANNERS = {
    "overwrites what it saved": overwrites_saved,
    "overwrites the upstream gradient": overwrites_upstream,
    "clips large gradients": clips,
    "drops small gradients": drops_small,
    "forgets strides": forgets_strides,
    "forgets transposition": forgets_transposition,
    "forgets broadcasting": forgets_broadcasting,
    "forgets padding": forgets_padding,
    "needs dense gradients": needs_dense,
    "needs gradients of both signs": needs_both_signs,
    "state on the class": from_forward("last"),
    "cache of the first call": from_forward("first"),
}


# ---- wrong at certain sizes, values and arguments only


def when(applies: Callable[[Call], bool]) -> Callable[[Call], Gradients | None]:
    return lambda call: scaled(1.01)(call) if applies(call) else None


def shapes(call: Call) -> list[tuple[int, ...]]:
    return [call.g.shape, *(x.shape for x in call.floats())]


def tiny_values(call: Call) -> Gradients | None:
    small = [isinstance(x, np.ndarray) and x.dtype.kind == "f" and np.abs(x) < 1e-3 for x in call.args]
    gradients = call.gradients()
    if not any(np.any(mask) for mask in small):
        return None
    return [
        g if g is None or np.shape(mask) != g.shape else np.where(mask, 1.5 * g, g)
        for g, mask in zip(gradients, small, strict=False)
    ]


def negative(axis: Any) -> bool:
    return any(a < 0 for a in (axis if isinstance(axis, tuple | list) else [axis]) if a is not None)


def in_the_middle(call: Call) -> bool:
    return call.argument("axis") in (-2, 1) and call.args[0].ndim == 3


def index_of(kind: str) -> Callable[[Call], bool]:
    """A two-dimensional index array, with axes of x behind it."""

    def applies(call: Call) -> bool:
        index = call.argument("index")
        parts = index if isinstance(index, tuple) else (index,)
        found = [p for p in parts if isinstance(p, np.ndarray) and p.dtype.kind in kind and p.ndim == 2]
        return bool(found) and call.args[0].ndim > 2

    return applies


def maps(call: Call) -> np.ndarray:
    if call.cls.name == "query_attention":
        return call.ctx.saved[4][:, :, None]
    return next(x for x in call.ctx.saved if isinstance(x, np.ndarray) and x.ndim == 4)


def has_ties(call: Call) -> bool:
    if call.cls.name in ("maximum", "minimum"):
        return bool(np.any(np.equal(*call.args)))
    return bool((np.diff(np.sort(call.args[0], axis=-1), axis=-1) == 0).any())


STRUCTURE = {
    "last axis of 64 or more": when(lambda call: any(s and s[-1] >= 64 for s in shapes(call))),
    "more than 4,096 rows": when(lambda call: any(prod(s[:-1]) > 4096 for s in shapes(call))),
    "axes of size 1": when(lambda call: any(1 in s for s in shapes(call))),
    "values below 1e-3": tiny_values,
}
MASKED = {"attention", "self_attention"}
ATTENTION = MASKED | {"query_attention", "talking_heads_attention"}
REDUCTIONS = {"sum", "mean", "var", "std", "norm", "max", "min", "logsumexp"}
ARGUMENTS = {  # operations that have them, and the mistake
    "one head": (ATTENTION, when(lambda call: maps(call).shape[1] == 1)),
    "four heads or more": (ATTENTION, when(lambda call: maps(call).shape[1] >= 4)),
    "64 keys or more": (ATTENTION, when(lambda call: maps(call).shape[-1] >= 64)),
    "64 queries or more": (ATTENTION - {"query_attention"}, when(lambda call: maps(call).shape[-2] >= 64)),
    "a mask": (MASKED, when(lambda call: call.argument("mask") is not None)),
    "six inputs or more": ({"concat"}, when(lambda call: len(call.args) >= 6)),
    "three operands or more": ({"einsum"}, when(lambda call: len(call.args) >= 3)),
    "keepdims": (REDUCTIONS, when(lambda call: call.argument("keepdims"))),
    "negative axes": (REDUCTIONS | {"concat", "cumsum", "flip"}, when(lambda call: negative(call.argument("axis")))),
    "axis in the middle": (REDUCTIONS | {"concat", "cumsum"}, when(in_the_middle)),
    "two degrees of freedom": ({"var", "std"}, when(lambda call: call.argument("ddof") >= 2)),
    "negative base and power": (
        {"pow"},
        when(lambda call: np.any(np.less(call.args[0], 0) & np.less(call.args[1], 0))),
    ),
    "two-dimensional integer index": ({"getitem"}, when(index_of("iu"))),
    "two-dimensional mask": ({"getitem"}, when(index_of("b"))),
    "stride above 1": ({"conv2d"}, when(lambda call: max(call.argument("stride")) > 1)),
    "padding": ({"conv2d"}, when(lambda call: max(call.argument("padding")) > 0)),
    "kernel that is not square": ({"conv2d"}, when(lambda call: len({*call.argument("weight").shape[2:]}) > 1)),
    "groups": ({"conv2d"}, when(lambda call: 1 < call.argument("groups") < call.args[0].shape[-1])),
    "depthwise": ({"conv2d"}, when(lambda call: call.argument("groups") == call.args[0].shape[-1])),
    "statistics of the batch": ({"batch_norm"}, when(lambda call: call.argument("mean") is None)),
    "given statistics": ({"batch_norm"}, when(lambda call: call.argument("mean") is not None)),
    "ties": ({"max", "min", "maximum", "minimum"}, when(has_ties)),
}


def scaled_in(dtype: Any, factor: float) -> Callable[[Call], Gradients | None]:
    return lambda call: scaled(factor)(call) if call.g.dtype == dtype else None
