"""Wide and tall cases of operations that take any shape.

These sizes take other code paths: more columns than a block or register holds, more rows than BLAS gets at once. The
wide ones have an axis of size 1, and some tiny values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

import numpy as np

from .. import ops
from ..tensor import Tensor
from .case import Case
from .networks import STREAM
from .samples import Maker, apart, between, normal, positive, probabilities, tiny


def _labels(x: Tensor) -> np.ndarray:
    return np.arange(x.size // x.shape[-1]).reshape(x.shape[:-1]) % x.shape[-1]


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """The sum over the first axis."""
    letters = "ijk"[: a.ndim]
    return ops.einsum(f"{letters},{letters}->{letters[1:]}", a, b)


NORMAL = "negative exp expm1 sin cos tanh erf sigmoid gelu silu softmax log_softmax flip transpose tril squeeze"
ANY_SHAPE: list[tuple[str, Callable[..., Tensor], tuple[Callable[..., Maker], ...]]] = [
    *((op, getattr(ops, op), (normal,)) for op in (*NORMAL.split(), "mean", "sum")),
    *((op, getattr(ops, op), (normal, normal)) for op in ("add", "subtract", "multiply")),
    *((op, getattr(ops, op), (positive, positive)) for op in ("divide", "pow")),
    *((op, getattr(ops, op), (positive,)) for op in ("log", "log1p", "sqrt")),
    *((op, getattr(ops, op), (apart,)) for op in ("relu", "abs")),
    *((op, getattr(ops, op), (apart, between)) for op in ("maximum", "minimum")),
    *((op, partial(getattr(ops, op), axis=0), (normal,)) for op in ("var", "std", "norm", "cumsum", "logsumexp")),
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
    ("topk", lambda x: ops.topk(x, 2, 0)[0], (apart,)),
    ("einsum", _sum_of_products, (normal, normal)),
    ("dropout", lambda x: ops.dropout(x, 0.4, STREAM), (normal,)),
    ("drop_path", lambda x: ops.drop_path(x, 0.4, STREAM), (normal,)),
    ("cross_entropy", lambda x: ops.cross_entropy(x, _labels(x), reduction="sum"), (normal,)),
    ("bce_with_logits", lambda x: ops.bce_with_logits(x, probabilities(*x.shape), "sum"), (normal,)),
    ("kl_div", lambda x: ops.kl_div(x, probabilities(*x.shape), "sum"), (normal,)),
]
SUMS = ("sum", "mean", "var", "std", "norm", "cumsum", "logsumexp", "einsum")
LOSSES = ("cross_entropy", "bce_with_logits", "kl_div")
WIDE = [Case(op, "wide", fn, tuple(tiny(draw(2, 1, 66)) for draw in draws)) for op, fn, draws in ANY_SHAPE]
TALL = [
    Case(op, "tall", fn, tuple(draw(4099, 2) for draw in draws), op in SUMS + LOSSES) for op, fn, draws in ANY_SHAPE
]
