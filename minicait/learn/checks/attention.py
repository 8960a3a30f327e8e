"""Checks of chapters 6 and 8: attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from autograd import Tensor, ops

from ... import nn
from ..composed import check_composed, check_module, without
from ..functions import Tried, check_function, normal, overflow, table
from ..learner import Learner


def _cases() -> list[Tried]:
    return [
        normal("1 head, 4 tokens", (1, 4, 6), (1, 4, 6), (1, 4, 6), heads=1),
        normal("2 heads, 5 tokens", (2, 5, 8), (2, 5, 8), (2, 5, 8), heads=2),
        normal("1 head, 3 queries, 4 keys", (1, 3, 6), (1, 4, 6), (1, 4, 6), heads=1),
        normal("3 heads, 1 query, 7 keys", (2, 1, 12), (2, 7, 12), (2, 7, 12), heads=3),
        normal("4 heads of one channel, one token", (2, 1, 4), (2, 1, 4), (2, 1, 4), heads=4),
        normal("scores up to thousands", (1, 4, 8), (1, 4, 8), (1, 4, 8), size=60.0, heads=2),
    ]


def _simplest() -> list[Tried]:
    """Cases whose result is clear without computing it: one for each step of forward."""
    q, k, v = _cases()[2].arrays
    return [
        Tried("1 head, v = 1: the weights of a query sum to 1 over the keys", [q, k, 0 * v + 1], {"heads": 1}),
        Tried("1 head, q = 0: each result is the mean of v", [0 * q, k, v], {"heads": 1}),
        Tried("2 heads, q = 0: each result is the mean of v", [0 * q, k, v], {"heads": 2}),
    ]


def _mistaken(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Iterator[tuple[str, Tensor]]:
    """Typical mistakes, each with its result."""
    d = q.shape[-1]
    per_head = d // heads
    yield "the scale 1 / sqrt(d/h) is missing", ops.attention(q * per_head**0.5, k, v, heads)
    yield "the scores are divided by d/h, not by its root", ops.attention(q * per_head**-0.5, k, v, heads)
    if heads > 1:
        yield "the scores are divided by sqrt(d), not by sqrt(d/h)", ops.attention(q * heads**-0.5, k, v, heads)
    if 1 < heads < d:
        order = np.arange(d).reshape(per_head, heads).T.ravel()  # the channels of a head are h apart
        mixed = ops.attention(q[..., order], k[..., order], v[..., order], heads)
        yield "the last axis was split into (d/h, h), not into (h, d/h)", mixed[..., np.argsort(order)]


def _slips(tried: Tried, g: np.ndarray) -> Iterator[tuple[str, Any]]:
    yield from overflow(tried, g)
    q, k, v = map(Tensor, tried.arrays)
    for why, y in _mistaken(q, k, v, **tried.settings):
        yield why, y.numpy()


def forward(me: Learner) -> None:
    theirs, cases = me.get("attention.Attention"), [*_simplest(), *_cases()]
    check_function(me, theirs, ops.attention, ("q", "k", "v"), cases, backward=False, slips=_slips)


def backward(me: Learner) -> None:
    check_function(me, me.get("attention.Attention"), ops.attention, ("q", "k", "v"), _cases(), forward=False)


NAMES = ("qkv", "weight_l", "bias_l", "weight_w", "bias_w")


def talking_heads(me: Learner) -> None:
    theirs = me.get("attention.talking_heads")
    for tried in [
        normal("3 heads, 4 tokens", (2, 4, 36), (3, 3), (3,), (3, 3), (3,)),
        *table("talking_heads_attention", "two heads", "four heads", prefix="qkv, W_l, b_l, W_w, b_w of shapes "),
        normal("1 head, 1 token", (1, 1, 6), (1, 1), (1,), (1, 1), (1,)),
    ]:
        me.case = tried.name
        inputs = dict(zip(NAMES, tried.arrays, strict=True))
        check_composed(me, lambda w: theirs(*w.values()), _talking, inputs)


def _talking(w: dict[str, Any]) -> Any:
    return ops.talking_heads_attention(*w.values())


def _called(theirs: Any, heads: int, w: dict[str, Any]) -> Any:
    return theirs(w["z"], without(w, "z"), heads)


def class_attention(me: Learner) -> None:
    theirs = me.get("attention.class_attention")
    for batch, tokens, d, heads in ((2, 5, 8, 2), (1, 2, 6, 1), (3, 1, 4, 2)):
        me.case = f"{tokens - 1} patches, {heads} heads"
        check_module(
            me,
            partial(_called, theirs, heads),
            nn.ClassAttention(d, heads),
            {"z": np.random.default_rng(5).standard_normal((batch, tokens, d))},
        )
