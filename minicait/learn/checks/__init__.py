"""The checks, by the number of their exercise. Each takes a `Learner`, and raises `Wrong` or returns.

by_hand    chapter 1
graph      chapter 2: what is recorded, the order of backward, and backward
products   chapter 3: broadcasting and matmul
checking   chapter 4: the learner's own gradient check, against `mistakes`
mistakes   right gradients, and what people do to them
layers     chapters 4 and 10: softmax, layer norm, GELU, cross entropy
patches    chapter 5
attention  chapters 6 and 8
blocks     chapters 7 and 8: blocks, stochastic depth, CaiT
optim      chapter 9
mixing     chapters 10 and 22
training   chapters 11 and 12
"""

from __future__ import annotations

from collections.abc import Callable

from ..learner import Learner
from . import attention, blocks, by_hand, checking, graph, layers, mixing, optim, patches, products, training

CHECKS: dict[str, Callable[[Learner], str | None]] = {
    "1.1": by_hand.numerical_derivative, "1.2": by_hand.neuron_gradient,
    "2.1": graph.recording, "2.2": graph.order, "2.3": graph.backward,
    "3.1": products.unbroadcasting, "3.2": products.matmul,
    "4.1": checking.gradient_check, "4.2": layers.softmax, "4.3": layers.layer_norm, "4.4": layers.gelu,
    "5.1": patches.cut, "5.2": patches.embedding,
    "6.1": attention.forward, "6.2": attention.backward, "6.3": attention.talking_heads,
    "7.1": blocks.self_attention_block, "7.2": blocks.stochastic_depth,
    "8.1": attention.class_attention, "8.2": blocks.whole_model,
    "9.1": optim.adamw, "9.2": optim.schedule,
    "10.1": layers.cross_entropy, "10.2": mixing.mixup_and_cutmix,
    "11.1": training.step, "12.1": training.learns,
    "22.1": mixing.mix_token,
}  # fmt: skip
