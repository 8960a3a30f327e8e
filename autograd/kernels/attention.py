"""Attention over heads, forward and backward. Heads are views into q, k and v, not copies.

Shapes: q (B, M, d), k and v (B, N, d), with d = heads * c; inside, (B, heads, M, c) and maps (B, heads, M, N).
Of the maps only the softmax is kept for backward; the scores before it cost one product to make again.
"""

from __future__ import annotations

from typing import Any

from ..backend import Array, array_module
from .softmax import softmax, softmax_grad
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
    maps = softmax((q * scale_of(q)) @ k.swapaxes(-1, -2), -1)
    return join_heads(maps @ v), maps


def attention_grad(g: Array, q: Array, k: Array, v: Array, maps: Array) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v."""
    g, q, k, v = (split_heads(x, maps.shape[1]) for x in (g, q, k, v))
    dv = maps.swapaxes(-1, -2) @ g
    scores = softmax_grad(g @ v.swapaxes(-1, -2), maps, -1)
    scores *= scale_of(q)
    return join_heads(scores @ k), join_heads(scores.swapaxes(-1, -2) @ q), join_heads(dv)


def mix_heads(maps: Array, weight: Array, bias: Array) -> Array:
    """A linear layer over the head axis of (B, heads, M, N): one small matrix times heads seen as (heads, M * N)."""
    flat = weight @ _flat(maps)
    flat += bias[:, None]
    return flat.reshape(maps.shape)


def mix_heads_grad(g: Array, maps: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients for maps, weight and bias."""
    flat_g, flat = _flat(g), _flat(maps)
    dw = total(flat_g @ flat.swapaxes(-1, -2), 0)
    return (weight.T @ flat_g).reshape(maps.shape), dw, total(flat_g, (0, 2))


def _flat(maps: Array) -> Array:
    batch, heads, queries, keys = maps.shape
    return maps.reshape(batch, heads, queries * keys)


def talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, Array, Array]:
    """The result, the softmax, and the softmax with its heads mixed, for q, k and v side by side in (B, N, 3d)."""
    q, k, v = _q_k_v(qkv, weight_l.shape[0])
    scores = (q * scale_of(q)) @ k.swapaxes(-1, -2)
    maps = softmax(mix_heads(scores, weight_l, bias_l), -1)
    mixed = mix_heads(maps, weight_w, bias_w)
    return join_heads(mixed @ v), maps, mixed


def talking_heads_grad(
    g: Array, qkv: Array, maps: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    """Gradients for qkv, weight_l, bias_l, weight_w and bias_w."""
    xp = array_module(g)
    heads = weight_l.shape[0]
    q, k, v = _q_k_v(qkv, heads)
    g = split_heads(g, heads)
    dqkv = xp.empty(qkv.shape, qkv.dtype)
    dq, dk, dv = _q_k_v(dqkv, heads)  # views: what is written there is in dqkv

    dv[...] = mix_heads(maps, weight_w, bias_w).swapaxes(-1, -2) @ g
    dmaps, dweight_w, dbias_w = mix_heads_grad(g @ v.swapaxes(-1, -2), maps, weight_w)
    dmixed = softmax_grad(dmaps, maps, -1)
    scores = (q * scale_of(q)) @ k.swapaxes(-1, -2)
    dscores, dweight_l, dbias_l = mix_heads_grad(dmixed, scores, weight_l)
    dscores *= scale_of(q)
    dq[...] = dscores @ k
    dk[...] = dscores.swapaxes(-1, -2) @ q
    return dqkv, dweight_l, dbias_l, dweight_w, dbias_w


def _q_k_v(qkv: Array, heads: int) -> Any:
    """(B, N, 3 * heads * c) seen as three (B, heads, N, c)."""
    batch, tokens, width = qkv.shape
    return qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
