"""Attention over heads, forward and backward. Heads are views into q, k and v, not copies.

Shapes: q (B, M, d), k and v (B, N, d), with d = heads * c; inside, (B, heads, M, c) and maps (B, heads, M, N).
Of the maps only the softmax is kept for backward; the scores before it cost one product to make again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .softmax import softmax_of_rows, softmax_of_rows_grad
from .total import column_sums, total

PART = 80_000  # values of a map that BLAS mixes at a time; beyond it, products with so few rows get slow


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
    """A linear layer over the head axis of (B, heads, M, N): a small matrix times maps seen as (heads, positions)."""
    xp = array_module(maps)
    out = xp.empty(maps.shape, maps.dtype) if out is None else out
    xp.matmul(weight, _positions(maps), out=_positions(out))
    return out


def mix_heads_grad(g: Array, maps: Array) -> Array:
    """The gradient for the weight."""
    return total(_positions(g) @ _positions(maps).swapaxes(-1, -2), (0, 1))


def _positions(maps: Array) -> Array:
    """(B, heads, M, N) seen as (B, parts, heads, positions), in parts that are short enough for BLAS to stay fast."""
    batch, heads, queries, keys = maps.shape
    parts = next((n for n in range(1, queries) if queries % n == 0 and heads * queries * keys <= n * PART), queries)
    return maps.reshape(batch, heads, parts, queries // max(1, parts) * keys).swapaxes(1, 2)


def talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, Array, Array]:
    """The result, the softmax, and the softmax with its heads mixed but for bias_w; q, k, v side by side in (B, N, 3d).

    Three things need no pass over the maps. The scale of the scores is part of the matrix that mixes them; in float16
    they would overflow before that, so q is scaled there. bias_l is the same for all keys, and the softmax takes it
    away again. bias_w adds a multiple of the sum of all values to the result.
    """
    xp = array_module(qkv)
    q, k, v = _q_k_v(qkv, weight_l.shape[0])
    q, scale, _ = _scaled_in_time(q)
    y = xp.empty((*qkv.shape[:2], qkv.shape[2] // 3), qkv.dtype)
    y_heads = split_heads(y, weight_l.shape[0])  # a view: what is written there is in y

    scores = q @ k.swapaxes(-1, -2)
    maps = softmax_of_rows(mix_heads(scores, weight_l * scale))
    mixed = mix_heads(maps, weight_w, out=scores)
    xp.matmul(mixed, v, out=y_heads)
    y_heads += bias_w[:, None, None] * column_sums(v)
    return y, maps, mixed


def talking_heads_grad(
    g: Array, qkv: Array, maps: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    """Gradients for qkv, weight_l, bias_l, weight_w and bias_w. That of bias_l is zero, see above."""
    xp = array_module(g)
    heads = weight_l.shape[0]
    q, k, v = _q_k_v(qkv, heads)
    q, scale, scale_of_q = _scaled_in_time(q)
    g = split_heads(g, heads)
    sum_g, sum_v = column_sums(g), column_sums(v)
    dqkv = xp.empty(qkv.shape, qkv.dtype)
    dq, dk, dv = _q_k_v(dqkv, heads)  # views again

    mixed = mix_heads(maps, weight_w)
    xp.matmul(mixed.swapaxes(-1, -2), g, out=dv)
    dv += bias_w[:, None, None] * sum_g
    dmixed = xp.matmul(g, v.swapaxes(-1, -2), out=mixed)
    dweight_w = mix_heads_grad(dmixed, maps)
    dmaps = softmax_of_rows_grad(mix_heads(dmixed, weight_w.T), maps)
    scores = xp.matmul(q, k.swapaxes(-1, -2), out=dmixed)
    dweight_l = mix_heads_grad(dmaps, scores) * scale
    dscores = mix_heads(dmaps, weight_l.T * scale, out=scores)
    xp.matmul(dscores, k, out=dq)
    if scale_of_q != 1:
        dq *= scale_of_q
    xp.matmul(dscores.swapaxes(-1, -2), q, out=dk)
    return dqkv, dweight_l, xp.zeros_like(bias_w), dweight_w, (sum_g * sum_v).sum(axis=(0, 2, 3))


def _scaled_in_time(q: Array) -> tuple[Array, float, float]:
    """q, what its scores are still to be scaled by, and what q was scaled by: in float16 they overflow otherwise."""
    scale = scale_of(q)
    return (q * scale, 1.0, scale) if q.dtype == np.float16 else (q, scale, 1.0)


def _q_k_v(qkv: Array, heads: int) -> Any:
    """(B, N, 3 * heads * c) seen as three (B, heads, N, c)."""
    batch, tokens, width = qkv.shape
    return qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
