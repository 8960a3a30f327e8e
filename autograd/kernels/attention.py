"""Attention over heads, forward and backward.

Heads are views into q, k and v, which BLAS and cuBLAS take as they are. The weights that mix heads may be float32
beside maps in float16.

Shapes: q (B, M, d), k and v (B, N, d), with d = heads * c; inside, (B, heads, M, c) and maps (B, heads, M, N).
Of the maps only the softmax is kept for backward; the scores before it cost one product to make again.
"""

from __future__ import annotations

import numpy as np

from .. import cuda
from ..backend import Array, array_module
from .product import product
from .rows import C_TYPES, on_gpu
from .softmax import softmax_of_rows, softmax_of_rows_grad
from .total import column_sums, total

PART = 80_000  # values of a map that BLAS mixes at a time; beyond it, products with so few rows get slow


def split_heads(x: Array, heads: int) -> Array:
    """(B, N, heads * c) seen as (B, heads, N, c)."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)


def scale_of(head: Array) -> float:
    return head.shape[-1] ** -0.5


def attention(q: Array, k: Array, v: Array, heads: int) -> tuple[Array, Array]:
    """softmax(q k^T / sqrt(c)) v, and the softmax."""
    q, k, v = (split_heads(x, heads) for x in (q, k, v))
    maps = softmax_of_rows(product(q, k.swapaxes(-1, -2), scale=scale_of(q)))
    (y,) = result = _empty_heads(q, 1)
    product(maps, v, out=y)
    return _side_by_side(result), maps


def attention_grad(g: Array, q: Array, k: Array, v: Array, maps: Array) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v."""
    g, q, k, v = (split_heads(x, maps.shape[1]) for x in (g, q, k, v))
    (dq,), (dk,), (dv,) = results = [_empty_heads(x, 1) for x in (q, k, v)]
    product(maps.swapaxes(-1, -2), g, out=dv)
    scores = softmax_of_rows_grad(product(g, v.swapaxes(-1, -2)), maps)
    scale = scale_of(q)
    product(scores, k, out=dq, scale=scale)
    product(scores.swapaxes(-1, -2), q, out=dk, scale=scale)
    dq, dk, dv = map(_side_by_side, results)
    return dq, dk, dv


# A thread for each position in an image. It reads the values of all heads there once, and keeps them in registers, for
# which their number must be known to the compiler.
_MIX = """
    long long first = i / positions * HEADS * positions + i % positions;
    wide_t of_head[HEADS];
    for (int head = 0; head < HEADS; head++) of_head[head] = maps[first + head * positions];
    for (int head = 0; head < HEADS; head++) {
        wide_t sum = 0;
        for (int other = 0; other < HEADS; other++) sum += wide_t(weight[head * HEADS + other]) * of_head[other];
        out[first + head * positions] = sum;
    }
"""


def mix_heads(maps: Array, weight: Array, out: Array | None = None) -> Array:
    """A linear layer over the head axis of (B, heads, M, N): a small matrix times maps seen as (heads, positions)."""
    xp = array_module(maps)
    out = xp.empty(maps.shape, maps.dtype) if out is None else out
    if on_gpu(maps):
        images, heads, queries, keys = maps.shape
        formula = _MIX.replace("wide_t", C_TYPES[maps.dtype.name][1]).replace("HEADS", str(heads))
        kernel = cuda.elementwise("raw T maps, raw W weight, int64 positions", "raw T out", formula, "mix_heads")
        kernel(maps, weight, np.int64(queries * keys), out, size=images * queries * keys)
        return out
    product(weight.astype(maps.dtype, copy=False), _positions(maps), out=_positions(out))
    return out


def mix_heads_grad(g: Array, maps: Array, weight: Array) -> Array:
    """The gradient for the weight."""
    own = array_module(g).empty((g.shape[0], _parts(g), *weight.shape), np.promote_types(g.dtype, np.float32))
    product(_positions(g), _positions(maps).swapaxes(-1, -2), out=own)
    return total(own, (0, 1)).astype(weight.dtype, copy=False)


def _positions(maps: Array) -> Array:
    """(B, heads, M, N) seen as (B, parts, heads, positions)."""
    batch, heads, queries, keys = maps.shape
    parts = _parts(maps)
    return maps.reshape(batch, heads, parts, queries // max(1, parts) * keys).swapaxes(1, 2)


def _parts(maps: Array) -> int:
    """In how many parts maps are mixed, so that on the CPU each is short enough for BLAS to stay fast."""
    _, heads, queries, keys = maps.shape
    if not isinstance(maps, np.ndarray):
        return 1
    whole = heads * queries * keys
    return next((n for n in range(1, queries) if queries % n == 0 and whole <= n * PART), queries)


def talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, Array, Array]:
    """The result, the softmax, and the softmax with its heads mixed but for bias_w; q, k, v side by side in (B, N, 3d).

    Three things need no pass over the maps. The scale of the scores is part of the matrix that mixes them; float16
    would overflow before that, so there it is part of the product. bias_l is the same for all keys, and the softmax
    takes it away again. bias_w adds a multiple of the sum of all values to the result.
    """
    q, k, v = _q_k_v(qkv, weight_l.shape[0])
    early, late = _scales(q)
    (y,) = result = _empty_heads(q, 1)
    scores = product(q, k.swapaxes(-1, -2), scale=early)
    maps = softmax_of_rows(mix_heads(scores, weight_l * late))
    mixed = mix_heads(maps, weight_w, out=scores)
    product(mixed, v, out=y)
    y += bias_w[:, None, None] * column_sums(v)
    return _side_by_side(result), maps, mixed


def talking_heads_grad(
    g: Array, qkv: Array, maps: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    """Gradients for qkv, weight_l, bias_l, weight_w and bias_w. That of bias_l is zero, see above."""
    heads = weight_l.shape[0]
    q, k, v = _q_k_v(qkv, heads)
    early, late = _scales(q)
    g = split_heads(g, heads)
    sum_g, sum_v = column_sums(g), column_sums(v)
    dq, dk, dv = dqkv = _empty_heads(q, 3)
    mixed = mix_heads(maps, weight_w)
    product(mixed.swapaxes(-1, -2), g, out=dv)
    dv += bias_w[:, None, None] * sum_g
    dmixed = product(g, v.swapaxes(-1, -2), out=mixed)
    dweight_w = mix_heads_grad(dmixed, maps, weight_w)
    dmaps = softmax_of_rows_grad(mix_heads(dmixed, weight_w.T), maps)
    scores = product(q, k.swapaxes(-1, -2), out=dmixed, scale=early)
    dweight_l = mix_heads_grad(dmaps, scores, weight_l) * late
    dscores = mix_heads(dmaps, weight_l.T * late, out=scores)
    product(dscores, k, out=dq, scale=early)
    product(dscores.swapaxes(-1, -2), q, out=dk, scale=early)
    dbias_w = (sum_g * sum_v).sum(axis=(0, 2, 3), dtype=bias_w.dtype)
    return _side_by_side(dqkv), dweight_l, array_module(g).zeros_like(bias_w), dweight_w, dbias_w


def _scales(q: Array) -> tuple[float, float]:
    """What the product of q and k is scaled by at once, and what its scores are still to be scaled by."""
    return (scale_of(q), 1.0) if q.dtype == np.float16 else (1.0, scale_of(q))


def _q_k_v(qkv: Array, heads: int) -> Array:
    """(B, N, 3 * heads * c) seen as (3, B, heads, N, c)."""
    batch, tokens, width = qkv.shape
    return qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)


def _empty_heads(like: Array, count: int) -> Array:
    """Room for `count` arrays (B, heads, N, c), which is then seen as (B, N, count * heads * c) without a copy."""
    batch, heads, tokens, size = like.shape
    return array_module(like).empty((batch, tokens, count, heads, size), like.dtype).transpose(2, 0, 3, 1, 4)


def _side_by_side(parts: Array) -> Array:
    """(count, B, heads, N, c) as (B, N, count * heads * c)."""
    count, batch, heads, tokens, size = parts.shape
    return parts.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, count * heads * size)
