"""Checks of chapters 7 and 8: blocks, stochastic depth, and the whole model with the project's weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from autograd.random import Stream

from ... import create_model
from ...models.cait import CaiT, ClassAttentionBlock, SelfAttentionBlock
from ..compare import cotangent, same
from ..composed import check_against, check_module, expected, random_weights, set_weights, without
from ..exercise import Wrong
from ..learner import Learner

STREAM = Stream(0, "learn")
SMALL = {"num_classes": 5, "img_size": 12, "patch_size": 4, "dim": 8, "depth": 2, "heads": 2, "layer_scale": 0.5}


def _tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(shape)


def _called(theirs: Any, heads: int, w: dict[str, Any]) -> Any:
    return theirs(w["x"], without(w, "x"), heads)


def self_attention_block(me: Learner) -> None:
    theirs = me.get("cait.self_attention_block")
    for tokens, d, heads in ((4, 8, 2), (1, 6, 1)):
        me.case = f"{tokens} tokens, {heads} heads"
        block = SelfAttentionBlock(d, heads, 4.0, 0.5, 0.0, STREAM)
        inputs = {"x": _tokens(2, tokens, d)}
        check_module(me, partial(_called, theirs, heads), block, inputs)
    me.case = "a drop that halves each branch"
    weights, calls = random_weights(block), []

    def half(branch: Any) -> Any:
        calls.append(branch)
        return branch * 0.5

    scales = {name: 0.5 * x if "gamma" in name else x for name, x in weights.items()}
    want, gradients = expected(block, scales, inputs)
    gradients = {name: 0.5 * g if "gamma" in name else g for name, g in gradients.items()}
    check_against(me, lambda w: theirs(w["x"], without(w, "x"), heads, half), inputs | weights, want, gradients)
    if len(calls) != 2:
        raise Wrong(f"drop was called {len(calls)} times, expected twice: for SA and for FFN")


def stochastic_depth(me: Learner) -> None:
    theirs, make = me.get("cait.drop_path"), me.get("tensor.Tensor")
    x = 1 + np.abs(_tokens(4000, 2, 3)).astype(np.float32)
    me.case = "in evaluation"
    same("the result", theirs(make(x.copy()), 0.5, None).data, x)
    for rate in (0.25, 0.6, 0.0):
        me.case = f"rate {rate:g}, 4,000 samples"
        branch = make(x.copy(), requires_grad=True)
        y = theirs(branch, rate, np.random.default_rng(2))
        if not isinstance(y, make):
            raise Wrong(f"the result is {'None' if y is None else f'a {type(y).__name__}'}, expected a Tensor")
        kept = y.data != 0
        whole = kept.all(axis=(1, 2))
        if (kept.any(axis=(1, 2)) & ~whole).any():
            raise Wrong("part of a sample was dropped: a branch is kept or dropped as a whole")
        same("the result", y.data, np.where(kept, x / np.float32(1 - rate), np.float32(0)))
        dropped = 1 - whole.mean()
        if abs(dropped - rate) > 0.03:
            raise Wrong(f"the share of dropped samples is wrong: yours {dropped:.3f}, expected {rate:.3f}")
        g = cotangent(x.shape, np.float32)
        y.backward(g)
        same("the gradient of the branch", branch.grad, np.where(kept, g / np.float32(1 - rate), np.float32(0)))
    me.case = "two draws from one generator"
    rng = np.random.default_rng(3)
    first, second = (theirs(make(x[:50]), 0.5, rng).data for _ in range(2))
    if np.array_equal(first, second):
        raise Wrong("both draws dropped the same samples: draw from the generator that is given")


def whole_model(me: Learner) -> None:
    theirs = me.get("cait.cait")
    me.case = "a class-attention block"
    block = ClassAttentionBlock(8, 2, 4.0, 0.5, STREAM)
    inputs = {"x_class": _tokens(2, 1, 8), "patches": _tokens(2, 4, 8) + 0.5}
    of_block = me.get("cait.class_attention_block")
    check_module(me, lambda w: of_block(w["x_class"], w["patches"], without(w, *inputs), 2), block, inputs)
    images = _tokens(3, 3, 12, 12)
    for blocks in (1, 2):
        me.case = f"CaiT with 2 + {blocks} blocks, 9 patches"
        model = CaiT(**SMALL, depth_token_only=blocks)  # type: ignore[arg-type]
        weights = random_weights(model)
        want, found = expected(model, weights, {}, images)
        check_against(me, lambda w: theirs(images, w, 2), weights, want, found)
    me.case = "cait_tiny_32, first weights"
    tiny: Any = create_model("cait_tiny_32", num_classes=10)
    weights = {name: p.numpy().astype(np.float64) for name, p in tiny.named_parameters()}
    set_weights(tiny, weights)
    images = _tokens(1, 3, 32, 32)
    w = {name: me.get("tensor.Tensor")(x) for name, x in weights.items()}
    same("the output", theirs(images, w, tiny.config.heads).data, tiny(images).numpy())
