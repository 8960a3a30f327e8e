"""Checks of softmax, layer norm and GELU (chapter 4), and of cross entropy (chapter 10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograd import Tensor, ops

from ..functions import EXAMPLE, Tried, check_function, normal, overflow, table
from ..learner import Learner


def _softmax_slips(tried: Tried, g: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    y = ops.softmax(tried.arrays[0]).numpy()
    mean = (g * y).sum(axis=-1, keepdims=True)
    yield "y * g keeps only the part with [i = j]; the -y_i in every term is missing", g * y
    yield "this is the diagonal of the Jacobian alone; every g_j counts for every i", g * (y - y * y)
    yield "the sum of g * y is subtracted, not added", y * g + y * mean
    yield "the sum of g * y needs the factor y, too", y * g - mean


def softmax(me: Learner) -> None:
    cases = [
        Tried(EXAMPLE, [np.log([0.25, 0.75])], g=np.array([1.0, 0.0])),
        *table("softmax", "last axis", "wide", prefix="x of shape "),
        normal("one column", (3, 1)),
        normal("four axes", (2, 2, 3, 5)),
        normal("scores up to thousands", (3, 4), size=1000.0),
    ]
    check_function(me, me.get("layers.Softmax"), ops.softmax, ("x",), cases, slips=_softmax_slips)


def layer_norm(me: Learner) -> None:
    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.layer_norm(x, weight, bias)

    cases = [
        *table("layer_norm", "plain", "wide", prefix="x, weight, bias of shapes "),
        normal("no axis but the last", (6,), (6,), (6,)),
        normal("one channel", (3, 1), (1,), (1,)),
        Tried("a mean of 100", [100 + x if x.ndim > 1 else x for x in normal("", (4, 8), (8,), (8,)).arrays]),
        Tried("values below the square root of eps", [x * 1e-4 if x.ndim > 1 else x
                                                     for x in normal("", (4, 8), (8,), (8,)).arrays]),
    ]  # fmt: skip
    theirs, names = me.get("layers.LayerNorm"), ("x", "weight", "bias")
    example = Tried(EXAMPLE, [np.array([1.0, 3.0]), np.ones(2), np.zeros(2)])
    check_function(me, theirs, ours, names, [example], backward=False)
    check_function(me, theirs, ours, names, cases)


def gelu(me: Learner) -> None:
    far = np.array([[-40.0, -8.0, -1.0, 0.0], [1.0, 3.0, 8.0, 40.0]])
    cases = [*table("gelu", "plain", "wide", prefix="x of shape "), Tried("from -40 to 40", [far])]
    example = Tried(EXAMPLE, [np.array([-1.0, 0.0, 1.0])])
    check_function(me, me.get("layers.Gelu"), ops.gelu, ("x",), [example], backward=False)
    check_function(me, me.get("layers.Gelu"), ops.gelu, ("x",), cases)


def cross_entropy(me: Learner) -> None:
    rng = np.random.default_rng(0)

    def soft(samples: int, classes: int) -> np.ndarray:
        t = rng.uniform(size=(samples, classes)).astype(np.float32).astype(np.float64)
        return t / t.sum(axis=-1, keepdims=True)

    def tried(name: str, samples: int, classes: int, size: float = 1.0, smoothing: float | None = None) -> Tried:
        given = normal(name, (samples, classes), size=size, targets=soft(samples, classes))
        given.settings |= {} if smoothing is None else {"smoothing": smoothing}
        return given

    def ours(logits: Tensor, targets: np.ndarray, smoothing: float = 0.0) -> Tensor:
        return ops.cross_entropy(logits, targets, smoothing)

    cases = [
        tried("3 samples, 4 classes, smoothing 0", 3, 4),
        tried("2 samples, 5 classes, smoothing 0.1", 2, 5, smoothing=0.1),
        tried("one sample", 1, 10, smoothing=0.2),
        tried("logits up to thousands", 4, 3, size=3000.0, smoothing=0.1),
    ]
    cases[0].settings["targets"] = np.eye(4)[[1, 0, 3]]
    example = Tried(EXAMPLE, [np.zeros((2, 4))], {"targets": np.eye(4)[:2]})
    theirs = me.get("loss.CrossEntropy")
    check_function(me, theirs, ours, ("logits",), [example], backward=False)
    check_function(me, theirs, ours, ("logits",), cases, slips=overflow)
