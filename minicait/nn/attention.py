"""Three kinds of attention: plain multi-head, talking heads (CaiT's first stage) and class attention (its second)."""

from __future__ import annotations

from typing import Any

from autograd import Tensor, ops, random
from autograd.random import Stream

from .layers import Branch, Linear
from .record import observer


class Attention(Branch):
    """An attention branch: what the heads gather, then the projection `proj`."""

    heads: int
    proj: Linear

    @property
    def last(self) -> Linear:
        return self.proj

    def describe(self) -> str:
        return f"{self.heads} heads"


class MultiHeadAttention(Attention):
    """SA: every token attends to every token; softmax(q k^T / sqrt(d/h)) v for each head, then a projection."""

    def __init__(self, dim: int, heads: int, stream: Stream | None = None, qkv_bias: bool = True) -> None:
        stream = stream or random.unnamed()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim, qkv_bias, stream.named("qkv"))
        self.proj = Linear(dim, dim, stream=stream.named("proj"))

    def inner(self, x: Any) -> Tensor:
        return ops.self_attention(self.qkv(x), self.heads, observe=observer(self))


class TalkingHeadsAttention(Attention):
    """SA with talking heads: `proj_l` mixes the heads' scores before the softmax, `proj_w` their maps after it."""

    def __init__(self, dim: int, heads: int, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim, stream=stream.named("qkv"))
        self.proj = Linear(dim, dim, stream=stream.named("proj"))
        self.proj_l = Linear(heads, heads, stream=stream.named("proj_l"))
        self.proj_w = Linear(heads, heads, stream=stream.named("proj_w"))

    def inner(self, x: Any) -> Tensor:
        before, after = self.proj_l, self.proj_w
        mixing = before.weight, before.bias, after.weight, after.bias
        return ops.talking_heads_attention(self.qkv(x), *mixing, observe=observer(self, mixing=after))


class ClassAttention(Attention):
    """CA: only the class token attends, to itself and all patches, z = [x_class, x_patches]. Linear in their number.

    several  number of class tokens, if each class has its own: they attend to the patches alone

    Q = W_q x_class + b_q                  (5)
    K = W_k z + b_k                        (6)
    V = W_v z + b_v                        (7)
    A = softmax(Q K^T / sqrt(d/h))         (8)
    out = W_o A V + b_o                    (9)

    With one query, K and V need not be computed, which saves a small CaiT a twentieth of its multiply-adds: see
    `ops.query_attention`.
    """

    def __init__(self, dim: int, heads: int, stream: Stream | None = None, several: int | None = None) -> None:
        stream = stream or random.unnamed()
        self.heads, self.several = heads, several
        self.q = Linear(dim, dim, stream=stream.named("q"))
        self.k = Linear(dim, dim, stream=stream.named("k"))
        self.v = Linear(dim, dim, stream=stream.named("v"))
        self.proj = Linear(dim, dim, stream=stream.named("proj"))

    def inner(self, z: Tensor) -> Tensor:
        """z (B, 1 + N, d), the class token first; returns (B, 1, d). With several class tokens, as many."""
        observe = observer(self, of_class_token=True)
        if self.several is not None:
            patches = z[:, self.several :]
            q, k, v = self.q(z[:, : self.several]), self.k(patches), self.v(patches)
            return ops.attention(q, k, v, self.heads, observe=observe)
        parameters = self.k.weight, self.k.bias, self.v.weight, self.v.bias
        y = ops.query_attention(self.q(z[:, 0]), z, *parameters, self.heads, observe)
        return y.reshape(z.shape[0], 1, z.shape[2])
