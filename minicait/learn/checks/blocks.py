"""Checks of chapters 7 and 8: blocks, stochastic depth, and the whole model with the project's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from autograd.random import Stream

from ... import create_model
from ...models.cait import CaiT, ClassAttentionBlock, SelfAttentionBlock
from ..compare import cotangent, same
from ..composed import (
    a_tensor,
    check_against,
    check_module,
    expected,
    like,
    not_cut,
    random_weights,
    set_weights,
    without,
)
from ..exercise import Wrong
from ..learner import Learner

STREAM = Stream(0, "learn")
SMALL = {"num_classes": 5, "img_size": 12, "patch_size": 4, "dim": 8, "layer_scale": 0.5}


def _tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(shape)


def _called(theirs: Any, heads: int, w: dict[str, Any]) -> Any:
    return theirs(w["x"], without(w, "x"), heads)


def _called_with_class(theirs: Any, heads: int, w: dict[str, Any]) -> Any:
    return theirs(w["x_class"], w["patches"], without(w, "x_class", "patches"), heads)


def _logits(theirs: Any, images: np.ndarray, heads: int, w: dict[str, Any]) -> Any:
    return theirs(like(images, w), w, heads)


def self_attention_block(me: Learner) -> None:
    theirs = me.get("cait.self_attention_block")
    for tokens, d, heads in ((4, 8, 2), (1, 6, 1)):
        me.case = f"{tokens} tokens, {heads} heads"
        block = SelfAttentionBlock(d, heads, 4.0, 0.5, 0.0, STREAM)
        inputs = {"x": _tokens(2, tokens, d)}
        check_module(me, partial(_called, theirs, heads), block, inputs)
    me.case = "a drop that halves each branch"
    weights = random_weights(block)

    def halved(w: dict[str, Any]) -> Any:
        calls = []

        def half(branch: Any) -> Any:
            calls.append(branch)
            return branch * 0.5

        y = theirs(w["x"], without(w, "x"), heads, half)
        if len(calls) != 2:
            raise Wrong(
                f"drop was called {len(calls)} time{'s' * (len(calls) != 1)}, expected twice: for SA and for FFN"
            )
        return y

    scales = {name: 0.5 * x if "gamma" in name else x for name, x in weights.items()}
    want, gradients = expected(block, scales, inputs)
    gradients = {name: 0.5 * g if "gamma" in name else g for name, g in gradients.items()}
    check_against(me, halved, inputs | weights, want, gradients)


def stochastic_depth(me: Learner) -> None:
    theirs, make = me.get("cait.drop_path"), me.get("tensor.Tensor")
    x = 1 + np.abs(_tokens(4000, 2, 3)).astype(np.float32)
    me.case = "in evaluation"
    same("the result", a_tensor(me, theirs(make(x.copy()), 0.5, None)).data, x)
    for rate in (0.25, 0.6, 0.9, 0.0):
        me.case = f"rate {rate:g}, 4,000 samples"
        branch = make(x.copy(), requires_grad=True)
        y = a_tensor(me, theirs(branch, rate, np.random.default_rng(2)))
        if y.data.shape != x.shape:
            same("the result", y.data, x)
        kept = y.data != 0
        if (kept.any(axis=(1, 2)) & ~kept.all(axis=(1, 2))).any():
            raise Wrong("part of a sample was dropped: a branch is kept or dropped as a whole")
        _share("the samples were dropped", np.array([1 - kept.mean()]), rate, len(x))
        slips = [
            ("kept branches are not divided by 1 - rate", np.where(kept, x, 0)),
            ("kept branches are divided by rate, not by 1 - rate", np.where(kept, x / (rate or 1), 0)),
        ]
        same("the result", y.data, np.where(kept, x / np.float32(1 - rate), np.float32(0)), slips=slips)
        g = cotangent(x.shape, np.float32)
        y.backward(g)
        not_cut({"the branch": branch})
        same("the gradient of the branch", branch.grad, np.where(kept, g / np.float32(1 - rate), np.float32(0)))
    _draws(me, lambda rng: theirs(make(x[:10]), 0.5, rng).data[:, 0, 0] == 0)


def _draws(me: Learner, dropped: Callable[[np.random.Generator], np.ndarray]) -> None:
    """Raise Wrong unless draws with rate 0.5 depend on the generator alone, and samples do not on each other."""
    me.case = "400 draws from one generator, rate 0.5, 10 samples"
    rng = np.random.default_rng(3)
    draws = np.array([dropped(rng) for _ in range(400)])
    if (draws == draws[0]).all():
        raise Wrong("every draw dropped the same samples: draw from the generator that is given")
    counts = draws.sum(axis=1)
    if (counts == counts[0]).all():
        raise Wrong(f"every draw dropped exactly {counts[0]} of 10 samples: draw for each sample on its own")
    _share("the draws dropped a sample", draws.mean(axis=0), 0.5, len(draws))
    for other in range(1, 10):  # of two independent samples, half the draws treat both alike
        alike = (draws == np.roll(draws, other, axis=1)).mean(axis=0)
        _share("the draws treated two samples alike", alike, 0.5, len(draws))
    me.case = "two generators with the same seed"
    first, again, another = (
        np.array([dropped(rng) for _ in range(9)]) for rng in map(np.random.default_rng, (4, 4, 5))
    )
    if not np.array_equal(first, again):
        raise Wrong("they dropped different samples: draw from the generator that is given, and from no other")
    me.case = "two generators with different seeds"
    if np.array_equal(first, another):
        raise Wrong("they dropped the same samples: draw from the generator that is given")


def _share(what: str, found: np.ndarray, rate: float, count: int) -> None:
    """Raise Wrong if a share of `count` independent draws is more than five standard deviations from its rate."""
    for share in found[np.abs(found - rate) > 5 * (rate * (1 - rate) / count) ** 0.5 + 1e-9]:
        raise Wrong(f"{share:.1%} of {what}, expected about {rate:.1%}")


def whole_model(me: Learner) -> None:
    theirs = me.get("cait.cait")
    of_block = me.get("cait.class_attention_block")
    for heads in (2, 4):
        me.case = f"a class-attention block, {heads} heads"
        block = ClassAttentionBlock(8, heads, 4.0, 0.5, STREAM)
        inputs = {"x_class": _tokens(2, 1, 8), "patches": _tokens(2, 4, 8) + 0.5}
        check_module(me, partial(_called_with_class, of_block, heads), block, inputs)
    images = _tokens(3, 3, 12, 12)
    for depth, last, heads in ((2, 1, 2), (1, 2, 4), (3, 1, 1)):
        me.case = f"CaiT with {depth} + {last} blocks, {heads} head{'s' * (heads > 1)}, 9 patches"
        model = CaiT(**SMALL, depth=depth, depth_token_only=last, heads=heads)  # type: ignore[arg-type]
        weights = random_weights(model)
        want, found = expected(model, weights, {}, images)
        check_against(me, partial(_logits, theirs, images, heads), weights, want, found)
    me.case = "cait_tiny_32, first weights"
    tiny: Any = create_model("cait_tiny_32", num_classes=10)
    weights = {name: p.numpy().astype(np.float64) for name, p in tiny.named_parameters()}
    set_weights(tiny, weights)
    images = _tokens(1, 3, 32, 32)
    w = {name: me.get("tensor.Tensor")(x) for name, x in weights.items()}
    same("the output", a_tensor(me, theirs(images, w, tiny.config.heads)).data, tiny(images).numpy())
