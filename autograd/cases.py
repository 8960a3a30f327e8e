"""One table of test cases for every operation, used for gradient checks, references, mutations and devices.

A case calls one operation on float inputs drawn from a seeded generator. A new operation needs a small case and a wide
and a tall one; a test fails for any operation without them. The table is part of the package, so that `minicait
selftest` can check any machine.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import engine, ops
from .cases_conv import CONVOLUTION
from .random import Stream
from .samples import Maker, apart, between, normal, positive, probabilities, quiet, same, tied, tiny
from .tensor import Tensor


@dataclass(frozen=True)
class Case:
    op: str  # name in autograd.ops
    variant: str
    fn: Callable[..., Tensor]
    inputs: tuple[Maker, ...]
    long_sums: bool = False  # of many values of either sign, whose rounding errors depend on the order

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [make(rng) for make in self.inputs]

    def __str__(self) -> str:
        return f"{self.op}-{self.variant}"

    def slack(self, dtype: Any) -> float:
        """Factor for the tolerance between devices, which add in different orders."""
        return 1 if not self.long_sums else 2 if dtype == np.float16 else 32  # float16 is rounded once, at the end

    def run(self, device: str, dtype: Any, rounded_to: Any = None) -> list[np.ndarray]:
        """Value and gradients on `device` in `dtype`, from inputs first rounded to `rounded_to`."""
        rounded_to = dtype if rounded_to is None else rounded_to
        tensors = [Tensor(x.astype(rounded_to).astype(dtype)).to(device) for x in self.arrays()]
        for x in tensors:
            x.requires_grad = True
        output = self.fn(*tensors)
        cotangent = np.random.default_rng(0).standard_normal(output.shape).astype(rounded_to)
        gradients = engine.grad(output, tensors, cotangent)
        results = [output, *(g for g in gradients if g is not None)]
        assert len(results) == 1 + len(tensors) and {x.device for x in results} == {tensors[0].device}
        return [x.numpy() for x in results]


def roundings_apart(got: Sequence[np.ndarray], want: Sequence[np.ndarray], dtype: Any) -> float:
    """Largest difference between two lists of arrays, in machine epsilons of `dtype`.

    Differences are relative to the largest value of each wanted array, or to 1 if that is larger. Infinite if shapes
    differ, or if a value is NaN or infinite in only one of the two.
    """
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return np.inf
        a, b = a.astype(np.float64), b.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.abs(a[~same] - b[~same]).max(initial=0) / np.abs(b[np.isfinite(b)]).max(initial=1)
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf)) / float(np.finfo(dtype).eps))
    return worst


ROWS = np.array([0, 2, 2, 1, 2])  # with repeated rows
GRID = np.array([[2, 0], [1, 2]])  # a two-dimensional index
MASK = np.array([[True, False, True, True], [False, False, True, False], [True, True, False, False]])
LABELS = np.array([1, 0, 3])
STREAM = Stream(seed=3, purpose="cases")

BY_HAND = [
    Case("add", "same shape", ops.add, (normal(3, 4), normal(3, 4))),
    Case("add", "broadcast", ops.add, (normal(2, 1, 4), normal(3, 1))),
    Case("add", "number", lambda x: 2 + x, (normal(3, 4),)),
    Case("subtract", "broadcast", ops.subtract, (normal(3, 1), normal(2, 3, 4))),
    Case("subtract", "number on the left", lambda x: 2 - x, (normal(3, 4),)),
    Case("multiply", "same shape", ops.multiply, (normal(3, 4), normal(3, 4))),
    Case("multiply", "broadcast", ops.multiply, (normal(4), normal(2, 3, 4))),
    Case("multiply", "by itself", lambda x: x * x, (normal(3, 4),)),
    Case("divide", "broadcast", ops.divide, (normal(2, 3), positive(2, 1))),
    Case("divide", "number on the left", lambda x: 2 / x, (positive(3, 4),)),
    Case("negative", "plain", ops.negative, (normal(3, 4),)),
    Case("pow", "number", lambda x: x**3, (normal(3, 4),)),
    Case("pow", "fraction", lambda x: x**-0.5, (positive(3, 4),)),
    Case("pow", "both", ops.pow, (positive(3, 4), normal(4))),
    Case("pow", "number to a Tensor", lambda x: 2**x, (normal(3, 4),)),
    Case("pow", "number below 1 to a Tensor", lambda x: 0.5**x, (normal(3, 4),)),
    Case("pow", "negative base", lambda x: x**-1, (apart(3, 4),)),
    Case("pow", "negative bases and powers", lambda x: ops.pow(x, [-2.0, -1.0, 0.0, 3.0]), (apart(3, 4),)),
    Case("exp", "plain", ops.exp, (normal(3, 4),)),
    Case("log", "plain", ops.log, (positive(3, 4),)),
    Case("sqrt", "plain", ops.sqrt, (positive(3, 4),)),
    Case("tanh", "plain", ops.tanh, (normal(3, 4),)),
    Case("erf", "plain", ops.erf, (normal(3, 4),)),
    Case("sigmoid", "plain", ops.sigmoid, (normal(3, 4),)),
    Case("relu", "plain", ops.relu, (apart(3, 4),)),
    Case("abs", "plain", ops.abs, (apart(3, 4),)),
    Case("maximum", "broadcast", ops.maximum, (apart(3, 4), between(4))),
    Case("maximum", "number", lambda x: ops.maximum(x, 0.1), (apart(3, 5),)),
    Case("maximum", "ties", ops.maximum, (same(3, 4), same(3, 4))),
    Case("minimum", "broadcast", ops.minimum, (apart(3, 4), between(4))),
    Case("minimum", "number", lambda x: ops.minimum(0.1, x), (apart(3, 5),)),
    Case("minimum", "ties", ops.minimum, (same(3, 4), same(3, 4))),
    Case("where", "broadcast", lambda a, b: ops.where(MASK, a, b), (normal(3, 1), normal(4))),
    Case("where", "number", lambda a: ops.where(MASK, a, 1.5), (normal(3, 4),)),
    Case("clip", "both ends", lambda x: ops.clip(x, -0.21, 0.31), (apart(3, 4),)),
    Case("clip", "one end", lambda x: ops.clip(x, max=0.01), (apart(3, 4),)),
    Case("astype", "same", lambda x: ops.astype(x, x.dtype), (normal(3, 4),)),
    Case("to_device", "where it is", lambda x: ops.to_device(x, x.device) * x, (normal(3, 4),)),
    Case("sum", "all", ops.sum, (normal(3, 4),)),
    Case("sum", "axes", lambda x: ops.sum(x, (0, -1)), (normal(2, 3, 4),)),
    Case("sum", "keepdims", lambda x: ops.sum(x, 1, keepdims=True), (normal(2, 3, 4),)),
    Case("sum", "negative axes, keepdims", lambda x: ops.sum(x, (-1, -3), keepdims=True), (normal(2, 3, 4),)),
    Case("sum", "axis in the middle", lambda x: ops.sum(x, -2), (normal(2, 300, 3),), long_sums=True),
    Case("mean", "all", ops.mean, (normal(3, 4),)),
    Case("mean", "axis", lambda x: ops.mean(x, -1), (normal(4, 3, 2),)),
    Case("mean", "axis in the middle", lambda x: ops.mean(x, 1), (normal(2, 3, 4),)),
    Case("mean", "negative axes, keepdims", lambda x: ops.mean(x, (-3, -2), keepdims=True), (normal(2, 3, 4),)),
    Case("var", "axis", lambda x: ops.var(x, 1), (normal(3, 4),)),
    Case("var", "ddof and keepdims", lambda x: ops.var(x, (0, 2), keepdims=True, ddof=1), (normal(2, 3, 4),)),
    Case("var", "two degrees of freedom", lambda x: ops.var(x, -2, ddof=2), (normal(2, 5, 3),)),
    Case("max", "all", ops.max, (apart(3, 4),)),
    Case("max", "axis", lambda x: ops.max(x, 1), (apart(3, 4),)),
    Case("max", "axis in the middle", lambda x: ops.max(x, 1), (apart(2, 3, 4),)),
    Case("max", "negative axis, keepdims, ties", lambda x: ops.max(x, -1, keepdims=True), (tied(3, 5),)),
    Case("min", "axes", lambda x: ops.min(x, (0, 2), keepdims=True), (apart(2, 3, 4),)),
    Case("min", "axis in the middle", lambda x: ops.min(x, 1), (apart(2, 3, 4),)),
    Case("min", "negative axis, keepdims, ties", lambda x: ops.min(x, -1, keepdims=True), (tied(3, 5),)),
    Case("logsumexp", "all", ops.logsumexp, (normal(3, 4),)),
    Case("logsumexp", "axis", lambda x: ops.logsumexp(x, 0, keepdims=True), (normal(3, 4),)),
    Case("logsumexp", "axis in the middle", lambda x: ops.logsumexp(x, 1), (normal(2, 3, 4),)),
    Case("logsumexp", "negative axes", lambda x: ops.logsumexp(x, (-1, -3)), (normal(2, 3, 4),)),
    Case("reshape", "plain", lambda x: ops.reshape(x, (2, -1)), (normal(3, 4),)),
    Case("transpose", "reversed", ops.transpose, (normal(3, 4),)),
    Case("transpose", "permuted", lambda x: ops.transpose(x, (2, 0, 1)), (normal(2, 3, 4),)),
    Case("swapaxes", "plain", lambda x: ops.swapaxes(x, 0, -1), (normal(2, 3, 4),)),
    Case("broadcast_to", "plain", lambda x: ops.broadcast_to(x, (2, 3, 4)), (normal(3, 1),)),
    Case("expand_dims", "plain", lambda x: ops.expand_dims(x, (0, -1)), (normal(3, 4),)),
    Case("squeeze", "axis", lambda x: ops.squeeze(x, -2), (normal(3, 1, 4),)),
    Case("concat", "three", lambda a, b, c: ops.concat([a, b, c], 1), (normal(3, 2), normal(3, 1), normal(3, 4))),
    Case("concat", "the same twice", lambda a: ops.concat([a, a], -1), (normal(3, 2),)),
    Case("concat", "seven", lambda *xs: ops.concat(xs), (normal(1, 2),) * 7),
    Case("concat", "axis in the middle", lambda a, b: ops.concat([a, b], -2), (normal(2, 3, 2), normal(2, 1, 2))),
    Case("concat", "first of three axes", lambda a, b: ops.concat([a, b]), (normal(2, 3, 2), normal(1, 3, 2))),
    Case("stack", "last axis", lambda a, b: ops.stack([a, b], -1), (normal(3, 4), normal(3, 4))),
    Case("stack", "axis in the middle", lambda a, b: ops.stack([a, b], 1), (normal(3, 4), normal(3, 4))),
    Case("split", "equal", lambda x: operator.mul(*ops.split(x, 2, -1)), (normal(3, 4),)),
    Case("split", "at indices", lambda x: ops.concat(ops.split(x, [1, 3])[::-1], 0), (normal(4, 2),)),
    Case("pad", "pairs", lambda x: ops.pad(x, ((1, 0), (2, 1)), 5.0), (normal(3, 4),)),
    Case("pad", "number", lambda x: ops.pad(x, 2), (normal(1, 3),)),
    Case("flip", "axis", lambda x: ops.flip(x, 1), (normal(3, 4),)),
    Case("flip", "all", ops.flip, (normal(3, 4),)),
    Case("flip", "negative axes", lambda x: ops.flip(x, (-1, -3)), (normal(2, 3, 4),)),
    Case("flip", "three of four axes", lambda x: ops.flip(x, (0, 1, 3)), (normal(2, 3, 1, 2),)),
    Case("getitem", "slices", lambda x: x[1:, ::-2, None], (normal(3, 4),)),
    Case("getitem", "integer and ellipsis", lambda x: x[..., -1], (normal(3, 4),)),
    Case("getitem", "repeated rows", lambda x: x[ROWS], (normal(3, 4),)),
    Case("getitem", "pairs of indices", lambda x: x[ROWS, [0, 1, 1, 3, 1]], (normal(3, 4),)),
    Case("getitem", "mask", lambda x: x[MASK], (normal(3, 4),)),
    Case("getitem", "many rows", lambda x: x[np.arange(11_000) % 5], (normal(5, 2),), long_sums=True),
    Case("getitem", "grid of rows", lambda x: x[GRID], (normal(3, 2, 2),)),
    Case("getitem", "grid after a slice", lambda x: x[:, GRID, 1:], (normal(2, 3, 3),)),
    Case("getitem", "mask over two of three axes", lambda x: x[MASK], (normal(3, 4, 2),)),
    Case("getitem", "mask after a slice", lambda x: x[1:, MASK], (normal(2, 3, 4, 2),)),
    Case("take_along_axis", "rows", lambda x: ops.take_along_axis(x, ROWS[None, :] % 3, 1), (normal(3, 4),)),
    Case("take_along_axis", "labels", lambda x: ops.take_along_axis(x, LABELS[:, None], -1), (normal(3, 4),)),
    Case("take_along_axis", "first of three axes", lambda x: ops.take_along_axis(x, ROWS[:, None, None], 0),
         (normal(3, 2, 2),)),
    Case("matmul", "matrices", ops.matmul, (normal(3, 4), normal(4, 2))),
    Case("matmul", "vectors", ops.matmul, (normal(4), normal(4))),
    Case("matmul", "vector and batch", ops.matmul, (normal(4), normal(2, 4, 3))),
    Case("matmul", "batch and vector", ops.matmul, (normal(2, 3, 4), normal(4))),
    Case("matmul", "batch and matrix", ops.matmul, (normal(2, 3, 4), normal(4, 5))),
    Case("matmul", "matrix and batch", ops.matmul, (normal(3, 4), normal(2, 4, 5))),
    Case("matmul", "broadcast batches", ops.matmul, (normal(2, 1, 3, 4), normal(5, 4, 2))),
    Case("matmul", "wide", ops.matmul, (tiny(normal(2, 1, 66)), tiny(normal(66, 66)))),
    Case("matmul", "tall", ops.matmul, (normal(4099, 2), normal(2, 2)), long_sums=True),
    Case("matmul", "many", ops.matmul, (normal(1400, 3, 2), normal(2, 2)), long_sums=True),
    Case("linear", "with bias", ops.linear, (normal(2, 3, 4), normal(5, 4), normal(5))),
    Case("linear", "without bias", ops.linear, (normal(3, 4), normal(5, 4))),
    Case("linear", "wide", ops.linear, (tiny(normal(2, 1, 66)), tiny(normal(66, 66)), tiny(normal(66)))),
    Case("linear", "tall", ops.linear, (normal(4099, 2), normal(2, 2), normal(2)), long_sums=True),
    Case("attention", "two heads", partial(ops.attention, heads=2), (normal(2, 3, 4), *[normal(2, 5, 4)] * 2)),
    Case("attention", "one query", partial(ops.attention, heads=3), (normal(2, 1, 6), *[normal(2, 4, 6)] * 2)),
    Case("attention", "one head, 66 keys", partial(ops.attention, heads=1), (normal(1, 3, 4), *[normal(1, 66, 4)] * 2)),
    Case("attention", "four heads, 66 queries", partial(ops.attention, heads=4),
         (normal(1, 66, 8), *[normal(1, 3, 8)] * 2)),
    Case("attention", "wide", partial(ops.attention, heads=2), (tiny(normal(1, 2, 66)), *[tiny(normal(1, 3, 66))] * 2)),
    Case("attention", "tall", partial(ops.attention, heads=1), (normal(2100, 2, 2), *[normal(2100, 2, 2)] * 2)),
    Case("talking_heads_attention", "two heads", ops.talking_heads_attention,
         (normal(2, 3, 12), normal(2, 2), normal(2), normal(2, 2), normal(2))),
    Case("talking_heads_attention", "one head, 66 keys", ops.talking_heads_attention,
         (quiet(1, 66, 6), normal(1, 1), normal(1), normal(1, 1), normal(1)), long_sums=True),
    Case("talking_heads_attention", "four heads", ops.talking_heads_attention,
         (normal(2, 3, 24), normal(4, 4), normal(4), normal(4, 4), normal(4))),
    Case("talking_heads_attention", "tall", ops.talking_heads_attention,
         (normal(2100, 2, 12), normal(2, 2), normal(2), normal(2, 2), normal(2)), long_sums=True),
    Case("talking_heads_attention", "wide", ops.talking_heads_attention,
         (tiny(normal(2, 3, 198)), *[tiny(normal(2, 2)), tiny(normal(2))] * 2), long_sums=True),
    Case("talking_heads_attention", "maps in several chunks", ops.talking_heads_attention,
         (quiet(1, 202, 12), normal(2, 2), normal(2), normal(2, 2), normal(2)), long_sums=True),
    Case("softmax", "last axis", ops.softmax, (normal(3, 4),)),
    Case("softmax", "first axis", lambda x: ops.softmax(x, 0), (normal(3, 4),)),
    Case("log_softmax", "last axis", ops.log_softmax, (normal(3, 4),)),
    Case("layer_norm", "plain", ops.layer_norm, (normal(2, 3, 5), normal(5), normal(5))),
    Case("layer_norm", "wide", ops.layer_norm, (tiny(normal(2, 1, 66)), tiny(normal(66)), tiny(normal(66)))),
    Case("layer_norm", "rows longer than BLAS gets", ops.layer_norm, (normal(2, 4099), normal(4099), normal(4099)),
         long_sums=True),
    Case("layer_norm", "tall", ops.layer_norm, (normal(4099, 3), normal(3), normal(3)), long_sums=True),
    Case("linear_residual", "plain", ops.linear_residual,
         (normal(2, 3, 4), normal(2, 3, 5), normal(4, 5), normal(4), normal(4))),
    Case("linear_residual", "some rows", partial(ops.linear_residual, factor=1.25, rows=np.array([2, 0])),
         (normal(4, 3, 5), normal(2, 3, 2), normal(5, 2), normal(5), normal(5))),
    Case("linear_residual", "wide", ops.linear_residual,
         (tiny(normal(2, 1, 66)), tiny(normal(2, 1, 66)), tiny(normal(66, 66)), tiny(normal(66)), tiny(normal(66)))),
    Case("linear_residual", "tall", ops.linear_residual,
         (quiet(4099, 2), quiet(4099, 2), normal(2, 2), quiet(2), normal(2)), long_sums=True),
    Case("gelu", "plain", ops.gelu, (normal(3, 4),)),
    Case("dropout", "plain", lambda x: ops.dropout(x, 0.4, STREAM), (normal(3, 4),)),
    Case("drop_path", "plain", lambda x: ops.drop_path(x, 0.4, STREAM), (normal(6, 2, 2),)),
    Case("cross_entropy", "indices", lambda x: ops.cross_entropy(x, LABELS), (normal(3, 4),)),
    Case("cross_entropy", "smoothing", lambda x: ops.cross_entropy(x, LABELS, 0.1, "none"), (normal(3, 4),)),
    Case("cross_entropy", "soft", lambda x: ops.cross_entropy(x, probabilities(3, 4)), (normal(3, 4),)),
    Case("cross_entropy", "soft, smoothed", lambda x: ops.cross_entropy(x, probabilities(2, 3, 4) * 1.5, 0.2, "sum"),
         (normal(2, 3, 4),)),
    Case("cross_entropy", "tokens", lambda x: ops.cross_entropy(x, GRID, reduction="none"), (normal(2, 2, 3),)),
    Case("bce_with_logits", "plain", lambda x: ops.bce_with_logits(x, MASK), (normal(3, 4),)),
    Case("bce_with_logits", "soft", lambda x: ops.bce_with_logits(x, probabilities(3, 4), "none"), (normal(3, 4),)),
    Case("kl_div", "plain", lambda x: ops.kl_div(x, probabilities(3, 4)), (normal(3, 4),)),
    Case("kl_div", "tokens", lambda x: ops.kl_div(x, probabilities(2, 3, 4), "none"), (normal(2, 3, 4),)),
]  # fmt: skip


# Sizes that take other code paths: more columns than a block or register holds, more rows than BLAS gets at once.
# The wide ones have an axis of size 1, and some tiny values.
def _labels(x: Tensor) -> np.ndarray:
    return np.arange(x.size // x.shape[-1]).reshape(x.shape[:-1]) % x.shape[-1]


NORMAL = "negative exp tanh erf sigmoid gelu flip transpose softmax log_softmax squeeze mean sum"
ANY_SHAPE: list[tuple[str, Callable[..., Tensor], tuple[Callable[..., Maker], ...]]] = [
    *((op, getattr(ops, op), (normal,)) for op in NORMAL.split()),
    *((op, getattr(ops, op), (normal, normal)) for op in ("add", "subtract", "multiply")),
    *((op, getattr(ops, op), (positive, positive)) for op in ("divide", "pow")),
    *((op, getattr(ops, op), (positive,)) for op in ("log", "sqrt")),
    *((op, getattr(ops, op), (apart,)) for op in ("relu", "abs")),
    *((op, getattr(ops, op), (apart, between)) for op in ("maximum", "minimum")),
    *((op, partial(getattr(ops, op), axis=0), (normal,)) for op in ("var", "logsumexp")),
    *((op, partial(getattr(ops, op), axis=0), (apart,)) for op in ("max", "min")),
    ("where", lambda a, b: ops.where(a.numpy() > 0, a, b), (apart, apart)),
    ("clip", lambda x: ops.clip(x, -0.21, 0.31), (apart,)),
    ("astype", lambda x: ops.astype(x, x.dtype), (normal,)),
    ("to_device", lambda x: ops.to_device(x, x.device) * x, (normal,)),
    ("reshape", lambda x: ops.reshape(x, -1), (normal,)),
    ("swapaxes", lambda x: ops.swapaxes(x, 0, -1), (normal,)),
    ("broadcast_to", lambda x: ops.broadcast_to(x, (2, *x.shape)), (normal,)),
    ("expand_dims", lambda x: ops.expand_dims(x, 1), (normal,)),
    ("concat", lambda a, b: ops.concat([a, b], -1), (normal, normal)),
    ("stack", lambda a, b: ops.stack([a, b]), (normal, normal)),
    ("split", lambda x: operator.mul(*ops.split(x, 2, -1)), (normal,)),
    ("pad", lambda x: ops.pad(x, 1), (normal,)),
    ("getitem", lambda x: x[[1, 0, 1, -1]], (normal,)),
    ("take_along_axis", lambda x: ops.take_along_axis(x, _labels(x)[..., None], -1), (normal,)),
    ("dropout", lambda x: ops.dropout(x, 0.4, STREAM), (normal,)),
    ("drop_path", lambda x: ops.drop_path(x, 0.4, STREAM), (normal,)),
    ("cross_entropy", lambda x: ops.cross_entropy(x, _labels(x), reduction="sum"), (normal,)),
    ("bce_with_logits", lambda x: ops.bce_with_logits(x, probabilities(*x.shape), "sum"), (normal,)),
    ("kl_div", lambda x: ops.kl_div(x, probabilities(*x.shape), "sum"), (normal,)),
]
SUMS = ("sum", "mean", "var", "logsumexp", "cross_entropy", "bce_with_logits", "kl_div")
WIDE = [Case(op, "wide", fn, tuple(tiny(draw(2, 1, 66)) for draw in draws)) for op, fn, draws in ANY_SHAPE]
TALL = [Case(op, "tall", fn, tuple(draw(4099, 2) for draw in draws), op in SUMS) for op, fn, draws in ANY_SHAPE]
CASES = [*BY_HAND, *(Case(*row) for row in CONVOLUTION), *WIDE, *TALL]
