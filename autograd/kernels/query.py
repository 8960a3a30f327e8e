"""Attention of one query per sample over tokens z (B, N, d), without computing their keys and values. For each head:

    a = softmax(q^T (W_k z + b_k) / sqrt(c)) = softmax((W_k^T q)^T z / sqrt(c))
    y = a (W_v z + b_v) = W_v (a z) + b_v

The softmax cancels q^T b_k, and a sums to one. So every product with the tokens has a (heads, d) matrix on its other
side, where keys and values would take two of (d, d). Shapes: q and y (B, d), with d = heads * c; W_k and W_v (d, d);
maps (B, heads, N). The weights may be float32 beside float16 tokens.
"""

from __future__ import annotations

from typing import Any

from ..backend import Array, array_module
from .product import product
from .softmax import softmax_of_rows, softmax_of_rows_grad
from .sums import sum_over_rows, wide_dtype


def query_attention(
    q: Array, z: Array, weight_k: Array, weight_v: Array, bias_v: Array, heads: int
) -> tuple[Array, Array, Array, Array]:
    """The result, the maps a, and for the gradient (W_k^T q) / sqrt(c) and a z, both (B, heads, d)."""
    w_k, w_v = (_split_weight(w, heads, q.dtype) for w in (weight_k, weight_v))
    queries = product(_split_heads(q, heads), w_k, scale=_scale(q, heads)).swapaxes(0, 1)
    maps = softmax_of_rows(product(queries, z.swapaxes(1, 2)))
    means = product(maps, z)
    y = product(means.swapaxes(0, 1), w_v.swapaxes(1, 2)).swapaxes(0, 1).reshape(q.shape)
    y += bias_v
    return y, maps, queries, means


def query_attention_grad(
    g: Array, q: Array, z: Array, weight_k: Array, weight_v: Array, maps: Array, queries: Array, means: Array
) -> tuple[Array, ...]:
    """Gradients for q, z, weight_k, bias_k (zero, see above), weight_v and bias_v."""
    xp, heads, scale, wide = array_module(g), maps.shape[1], _scale(q, maps.shape[1]), wide_dtype(g)
    w_k, w_v = (_split_weight(w, heads, q.dtype) for w in (weight_k, weight_v))
    g_heads, q_heads = _split_heads(g, heads), _split_heads(q, heads)
    dmeans = product(g_heads, w_v).swapaxes(0, 1)
    dscores = softmax_of_rows_grad(product(dmeans, z.swapaxes(1, 2)), maps)
    dz = product(xp.concatenate([maps, dscores], 1).swapaxes(1, 2), xp.concatenate([dmeans, queries], 1))
    dqueries = product(dscores, z).swapaxes(0, 1)
    dq = product(dqueries, w_k.swapaxes(1, 2), scale=scale).swapaxes(0, 1).reshape(q.shape)
    dweight_k = product(q_heads.swapaxes(1, 2), dqueries, scale=scale, dtype=wide).reshape(weight_k.shape)
    dweight_v = product(g_heads.swapaxes(1, 2), means.swapaxes(0, 1), dtype=wide).reshape(weight_v.shape)
    dbias_v = sum_over_rows(g, wide)
    of_parameters = (dweight_k, xp.zeros_like(dbias_v), dweight_v, dbias_v)
    return dq, dz, *(a.astype(weight_k.dtype, copy=False) for a in of_parameters)


def _split_heads(x: Array, heads: int) -> Array:
    """(B, d) viewed as (heads, B, c)."""
    return x.reshape(len(x), heads, x.shape[1] // heads).swapaxes(0, 1)


def _split_weight(weight: Array, heads: int, dtype: Any) -> Array:
    """(d, d) viewed as (heads, c, d), cast if it is wider than the tokens."""
    return weight.astype(dtype, copy=False).reshape(heads, -1, weight.shape[1])


def _scale(q: Array, heads: int) -> float:
    return (q.shape[1] // heads) ** -0.5
