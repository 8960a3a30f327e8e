"""Checks of chapters 6 and 8: attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from autograd import ops

from ... import nn
from ..composed import check_composed, check_module, without
from ..functions import Tried, check_function, normal, table
from ..learner import Learner


def _cases() -> list[Tried]:
    return [
        normal("2 heads, 5 tokens", (2, 5, 8), (2, 5, 8), (2, 5, 8), heads=2),
        normal("1 head, 3 queries, 4 keys", (1, 3, 6), (1, 4, 6), (1, 4, 6), heads=1),
        normal("3 heads, 1 query, 7 keys", (2, 1, 12), (2, 7, 12), (2, 7, 12), heads=3),
        normal("4 heads of one channel, one token", (2, 1, 4), (2, 1, 4), (2, 1, 4), heads=4),
        normal("scores up to thousands", (1, 4, 8), (1, 4, 8), (1, 4, 8), size=60.0, heads=2),
    ]


def forward(me: Learner) -> None:
    check_function(me, me.get("attention.Attention"), ops.attention, ("q", "k", "v"), _cases(), backward=False)


def backward(me: Learner) -> None:
    check_function(me, me.get("attention.Attention"), ops.attention, ("q", "k", "v"), _cases(), forward=False)


NAMES = ("qkv", "weight_l", "bias_l", "weight_w", "bias_w")


def talking_heads(me: Learner) -> None:
    theirs = me.get("attention.talking_heads")
    for tried in [
        normal("3 heads, 4 tokens", (2, 4, 36), (3, 3), (3,), (3, 3), (3,)),
        *table("talking_heads_attention", "two heads", "four heads"),
        normal("1 head, 1 token", (1, 1, 6), (1, 1), (1,), (1, 1), (1,)),
    ]:
        me.case = tried.name
        inputs = dict(zip(NAMES, tried.arrays, strict=True))
        check_composed(
            me,
            lambda w: theirs(*w.values()),
            _talking,
            inputs,
        )


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
