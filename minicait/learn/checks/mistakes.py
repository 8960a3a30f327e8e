"""Right gradients, and mistakes that people make in them: what a gradient check must tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
from autograd import ops

Array = np.ndarray
Backward = Callable[[Array, Array], Array]

X = np.random.default_rng(3).standard_normal((4, 4))
A = np.arange(16.0).reshape(4, 4) / 8
SQUARE = "A x, with a square matrix A"

OPERATIONS: dict[str, Callable[[ag.Tensor], ag.Tensor]] = {
    "softmax": ops.softmax,
    "layer norm": lambda x: ops.layer_norm(x, np.ones(4), np.zeros(4)),
    "x - mean": lambda x: x - x.mean(-1, keepdims=True),
    "transpose": ops.transpose,
    "mean of rows": lambda x: x.mean(-1),
    "the sum of squares": lambda x: (x * x).sum(),
    "gelu": ops.gelu,
    "a product with a matrix": lambda x: x @ np.arange(12.0).reshape(4, 3),
    SQUARE: lambda x: ops.matmul(ag.Tensor(A), x),
    "exp(x + 7), large values": lambda x: (x + 7).exp(),
    "sin(x) / 10,000, small values": lambda x: x.sin() * 1e-4,
}
CONSTANT: dict[str, Callable[[ag.Tensor], ag.Tensor]] = {
    "softmax of one column, whose gradient is zero": lambda x: ops.softmax(x[:, :1]),
    "sums of x - mean, whose gradient is zero": lambda x: (x - x.mean(-1, keepdims=True)).sum(-1),
}


def value_of(op: Callable[[ag.Tensor], ag.Tensor]) -> Callable[[Array], Array]:
    return lambda x: op(ag.Tensor(x)).numpy()


def backward_of(op: Callable[[ag.Tensor], ag.Tensor]) -> Backward:
    def backward(x: Array, v: Array) -> Array:
        leaf = ag.Tensor(x, requires_grad=True)
        (gradient,) = ag.grad(op(leaf), leaf, v)
        assert gradient is not None
        return gradient.numpy()

    return backward


def entry_wrong(row: int, column: int) -> Callable[[Array], Array]:
    """A change of a single entry, by a tenth of the largest."""

    def change(g: Array) -> Array:
        g = g.copy()
        g[row, column] += 0.1 * np.abs(g).max()
        return g

    return change


VALUES: dict[str, Callable[[Array], Array]] = {
    "7 times too large": lambda g: 7 * g,
    "0.1% too large": lambda g: 1.001 * g,
    "zero": lambda g: 0 * g,
    "of the wrong sign": lambda g: -g,
    "transposed": lambda g: g.T.copy(),
    "rolled by one entry": lambda g: np.roll(g, 1),
    "flattened": lambda g: g.reshape(-1),
    "not a number": lambda g: g * np.nan,
} | {f"wrong at [{row}, {column}]": entry_wrong(row, column) for row in range(4) for column in range(4)}


def spoiled(backward: Backward, change: Callable[[Array], Array]) -> Backward:
    return lambda x, v: change(backward(x, v))


def ignores_cotangent(backward: Backward) -> Backward:
    return lambda x, v: backward(x, np.ones_like(v))


def edits_cotangent(backward: Backward) -> Backward:
    def wrong(x: Array, v: Array) -> Array:
        gradient = backward(x, v)
        v *= 1.5
        return gradient

    return wrong


def edits_input(backward: Backward) -> Backward:
    def wrong(x: Array, v: Array) -> Array:
        gradient = backward(x, v)
        x += 0.5
        return gradient

    return wrong


MANNERS: dict[str, Callable[[Backward], Any]] = {
    "ignores v": ignores_cotangent,
    "edits v": edits_cotangent,
    "edits x": edits_input,
}
