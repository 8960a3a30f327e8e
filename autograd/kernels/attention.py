"""Attention over heads, forward and backward. Heads are views into q, k and v, not copies.

Shapes: q (B, M, d), k and v (B, N, d), with d = heads * c; inside, (B, heads, M, c) and maps (B, heads, M, N).
Of the maps only the softmax is kept for backward; the scores before it cost one product to make again.
"""

from __future__ import annotations

from typing import Any

from ..backend import Array, array_module
from .softmax import softmax_of_rows, softmax_of_rows_grad
from .total import total


def split_heads(x: Array, heads: int) -> Array:
    """(B, N, heads * c) seen as (B, heads, N, c)."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """(B, heads, N, c) as (B, N, heads * c)."""
    batch, heads, tokens, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * size)


def scale_of(head: Array) -> float:
    return head.shape[-1] ** -0.5


def attention(q: Array, k: Array, v: Array, heads: int) -> tuple[Array, Array]:
    """softmax(q k^T / sqrt(c)) v, and the softmax."""
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    maps = softmax_of_rows((q * scale_of(q)) @ k.swapaxes(-1, -2))
    return join_heads(maps @ v), maps


def attention_grad(g: Array, q: Array, k: Array, v: Array, maps: Array) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v."""
    g, q, k, v = (split_heads(x, maps.shape[1]) for x in (g, q, k, v))
    dv = maps.swapaxes(-1, -2) @ g
    scores = softmax_of_rows_grad(g @ v.swapaxes(-1, -2), maps)
    scores *= scale_of(q)
    return join_heads(scores @ k), join_heads(scores.swapaxes(-1, -2) @ q), join_heads(dv)


def mix_heads(maps: Array, weight: Array, out: Array | None = None) -> Array:
    """A linear layer over the head axis of (B, heads, M, N): one small matrix times heads seen as (heads, M * N)."""
    flat = array_module(maps).matmul(weight, _flat(maps), out=None if out is None else _flat(out))
    return flat.reshape(maps.shape)


def mix_heads_grad(g: Array, maps: Array) -> Array:
    """The gradient for the weight."""
    return total(_flat(g) @ _flat(maps).swapaxes(-1, -2), 0)


def _flat(maps: Array) -> Array:
    batch, heads, queries, keys = maps.shape
    return maps.reshape(batch, heads, queries * keys)


def talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, Array, Array]:
    """The result, the softmax, and the softmax with its heads mixed but for bias_w; q, k, v side by side in (B, N, 3d).

    Neither bias needs a pass over the maps. bias_l is the same for all keys, and the softmax takes it away again.
    bias_w adds a multiple of the sum of all values to the result.
    """
    q, k, v = _q_k_v(qkv, weight_l.shape[0])
    scores = (q * scale_of(q)) @ k.swapaxes(-1, -2)
    maps = softmax_of_rows(mix_heads(scores, weight_l))
    mixed = mix_heads(maps, weight_w, out=scores)
    y = mixed @ v
    y += bias_w[:, None, None] * v.sum(axis=2, keepdims=True)
    return join_heads(y), maps, mixed


def talking_heads_grad(
    g: Array, qkv: Array, maps: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    """Gradients for qkv, weight_l, bias_l, weight_w and bias_w. That of bias_l is zero, see above."""
    xp = array_module(g)
    heads = weight_l.shape[0]
    q, k, v = _q_k_v(qkv, heads)
    q = q * scale_of(q)
    g = split_heads(g, heads)
    sum_g, sum_v = g.sum(axis=2, keepdims=True), v.sum(axis=2, keepdims=True)
    dqkv = xp.empty(qkv.shape, qkv.dtype)
    dq, dk, dv = _q_k_v(dqkv, heads)  # views: what is written there is in dqkv

    mixed = mix_heads(maps, weight_w)
    dv[...] = mixed.swapaxes(-1, -2) @ g
    dv += bias_w[:, None, None] * sum_g
    dmixed = g @ v.swapaxes(-1, -2)
    dweight_w = mix_heads_grad(dmixed, maps)
    dmaps = softmax_of_rows_grad(mix_heads(dmixed, weight_w.T, out=mixed), maps)
    scores = xp.matmul(q, k.swapaxes(-1, -2), out=dmixed)
    dweight_l = mix_heads_grad(dmaps, scores)
    dscores = mix_heads(dmaps, weight_l.T, out=scores)
    dq[...] = dscores @ k
    dq *= scale_of(q)
    dk[...] = dscores.swapaxes(-1, -2) @ q
    return dqkv, dweight_l, xp.zeros_like(bias_w), dweight_w, (sum_g * sum_v).sum(axis=(0, 2, 3))


def _q_k_v(qkv: Array, heads: int) -> Any:
    """(B, N, 3 * heads * c) seen as three (B, heads, N, c)."""
    batch, tokens, width = qkv.shape
    return qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
