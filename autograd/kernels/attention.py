"""Multi-head attention, and talking-heads attention, whose heads are mixed before and after the softmax:

    y = softmax(q k^T / sqrt(c)) v
    y = mix_w(softmax(mix_l(q k^T / sqrt(c)))) v,    mix(maps)_h = sum_i weight_hi maps_i + bias_h

Shapes: q (B, M, d), k and v (B, N, d), with d = heads * c; inside, (B, heads, M, c) and maps (B, heads, M, N). `heads`
has their layout; self-attention takes q, k and v side by side in one array (B, N, 3d). Of the maps, only the softmax is
kept for backward: the scores before it cost one product to recompute. On a GPU, talking heads keep no map at all.
A mask needs no backward, because its maps are zero. The weights that mix heads may be float32 beside float16 maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..backend import Array, array_module
from .fused_heads import empty_maps, fits, mix_softmax_mix, mix_softmax_mix_grad
from .heads import empty_heads, heads_apart, heads_together
from .launch import elementwise, on_gpu
from .product import product
from .softmax import softmax_of_rows, softmax_of_rows_grad, unit_of
from .sums import column_sums, total

CHUNK = 80_000  # values of the maps in one product that mixes heads: it has few rows, and BLAS slows down beyond this


# A linear layer over the head axis of maps: weight (heads, heads) times maps seen as (heads, positions).


def _mix_heads_numpy(maps: Array, weight: Array, out: Array) -> Array:
    product(weight.astype(maps.dtype, copy=False), _positions(maps), out=_positions(out))
    return out


# A thread for each position of a sample. It reads the values of all heads once, into registers: the compiler must know
# how many there are.
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
    out = array_module(maps).empty(maps.shape, maps.dtype) if out is None else out
    if not on_gpu(maps):
        return _mix_heads_numpy(maps, weight, out)
    batch, heads, queries, keys = maps.shape
    arguments = "raw T maps, raw W weight, int64 positions"
    formula = f"constexpr int HEADS = {heads};{_MIX}"
    kernel = elementwise(arguments, "raw T out", formula, "mix_heads", maps.dtype.name)
    weight = array_module(maps).ascontiguousarray(weight)  # other strides would be divided by, for every value
    kernel(maps, weight, np.int64(queries * keys), out, size=batch * queries * keys)
    return out


def mix_heads_grad(g: Array, maps: Array, weight: Array) -> Array:
    """The gradient for the weight."""
    each = array_module(g).empty((g.shape[0], _chunks(g), *weight.shape), np.promote_types(g.dtype, np.float32))
    product(_positions(g), _positions(maps).swapaxes(-1, -2), out=each)
    return total(each, (0, 1)).astype(weight.dtype, copy=False)


def _positions(maps: Array) -> Array:
    """(B, heads, M, N) viewed as (B, chunks, heads, positions)."""
    batch, heads, queries, keys = maps.shape
    chunks = _chunks(maps)
    return maps.reshape(batch, heads, chunks, queries // max(1, chunks) * keys).swapaxes(1, 2)


def _chunks(maps: Array) -> int:
    """The number of products that mix the maps of a sample: on the CPU, each is small enough for BLAS to be fast."""
    return _chunks_of(*maps.shape[1:]) if isinstance(maps, np.ndarray) else 1


@lru_cache(64)
def _chunks_of(heads: int, queries: int, keys: int) -> int:
    size = heads * queries * keys
    return next((n for n in range(1, queries) if queries % n == 0 and size <= n * CHUNK), queries)


# Attention is made of products and softmax, and so needs no CUDA of its own.


def attention(q: Array, k: Array, v: Array, heads: int, mask: Array | None = None) -> tuple[Array, Array]:
    """The result, and the softmax. Where the boolean `mask` is False, the score is -inf."""
    (q,), (k,), (v,) = (heads_apart(x, heads) for x in (q, k, v))
    return _attend(q, k, v, mask)


def attention_grad(g: Array, q: Array, k: Array, v: Array, maps: Array) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v."""
    (q,), (k,), (v,) = (heads_apart(x, maps.shape[1]) for x in (q, k, v))
    (dq,), (dk,), (dv,) = results = [empty_heads(x, 1) for x in (q, k, v)]
    _attend_grad(g, (q, k, v), maps, out=(dq, dk, dv))
    dq, dk, dv = map(heads_together, results)
    return dq, dk, dv


def self_attention(qkv: Array, heads: int, mask: Array | None = None) -> tuple[Array, Array, Array]:
    """Like `attention`, with q, k and v side by side in (B, N, 3d). Also q, k and v apart, for the gradient."""
    q, k, v = apart = heads_apart(qkv, heads, 3)
    return *_attend(q, k, v, mask), apart


def self_attention_grad(g: Array, apart: Array, maps: Array) -> Array:
    """The gradient for qkv."""
    q, k, v = apart
    dqkv = empty_heads(q, 3)
    _attend_grad(g, (q, k, v), maps, out=dqkv)
    return heads_together(dqkv)


def _attend(q: Array, k: Array, v: Array, mask: Array | None) -> tuple[Array, Array]:
    scores = product(q, k.swapaxes(-1, -2), out=_empty_maps(q, k), scale=_scale(q))
    if mask is not None:
        array_module(scores).copyto(scores, -np.inf, where=~mask)
    maps = softmax_of_rows(scores, overwrite=True)
    (y,) = result = empty_heads(q, 1)
    product(maps, v, out=y)
    return heads_together(result), maps


def _attend_grad(g: Array, qkv: tuple[Array, ...], maps: Array, out: Sequence[Array]) -> None:
    (g,) = heads_apart(g, maps.shape[1])
    (q, k, v), (dq, dk, dv) = qkv, out
    product(maps.swapaxes(-1, -2), g, out=dv)
    dscores = softmax_of_rows_grad(product(g, v.swapaxes(-1, -2), out=_empty_maps(g, v)), maps)
    scale = _scale(q)
    product(dscores, k, out=dq, scale=scale)
    product(dscores.swapaxes(-1, -2), q, out=dk, scale=scale)


def talking_heads(
    qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array, observed: bool = False
) -> tuple[Array, tuple[Array, ...], Array | None, Array | None]:
    """The result, what the gradient needs, the softmax, and the softmax with its heads mixed but for bias_w.

    q, k and v are side by side in qkv (B, N, 3d). The last two are None on a GPU unless `observed`: `fused_heads` does
    without them.

    Three things need no pass over the maps. weight_l absorbs the scale of the scores and the unit of the exponential,
    except in float16, which would overflow before: there the product absorbs it. bias_l is the same for all keys, so
    the softmax cancels it. bias_w adds a multiple of the sum of all values to the result.
    """
    heads, tokens = weight_l.shape[0], qkv.shape[1]
    if on_gpu(qkv) and not observed and fits(heads, tokens):
        return _talking_heads_fused(qkv, weight_l, weight_w, bias_w)
    q, k, v = heads_apart(qkv, heads, 3)
    product_scale, weight_scale = _scales(q)
    (y,) = result = empty_heads(q, 1)
    scores = product(q, k.swapaxes(-1, -2), scale=product_scale)
    unit = unit_of(q)
    maps = softmax_of_rows(mix_heads(scores, weight_l * (weight_scale * unit)), unit)
    mixed = mix_heads(maps, weight_w, out=scores)
    product(mixed, v, out=y)
    y += bias_w[:, None, None] * column_sums(v)
    return heads_together(result), (qkv, maps), maps, mixed


def _talking_heads_fused(
    qkv: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, tuple[Array, ...], None, None]:
    q, k, v = apart = heads_apart(qkv, weight_l.shape[0], 3)
    product_scale, weight_scale = _scales(q)
    scores = product(q, k.swapaxes(-1, -2), out=_empty_maps(q, k), scale=product_scale)
    y = product(mix_softmax_mix(scores, weight_l, weight_w, weight_scale), v)
    sum_v = column_sums(v)
    return heads_together(y[None], 0, bias_w, sum_v), (apart, sum_v), None, None


def talking_heads_grad(
    g: Array, kept: Sequence[Array], weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    """Gradients for qkv, weight_l, bias_l (zero, see above), weight_w and bias_w."""
    heads = weight_l.shape[0]
    if kept[0].ndim == 5:  # q, k and v, with their heads apart
        apart, sum_v = kept
        return _talking_heads_grad_fused(g, apart, sum_v, weight_l, weight_w, bias_w)
    qkv, maps = kept
    q, k, v = heads_apart(qkv, heads, 3)
    product_scale, weight_scale = _scales(q)
    (g,) = heads_apart(g, heads)
    sum_g, sum_v = column_sums(g), column_sums(v)
    dq, dk, dv = dqkv = empty_heads(q, 3)
    mixed = mix_heads(maps, weight_w)
    product(mixed.swapaxes(-1, -2), g, out=dv)
    dv += bias_w[:, None, None] * sum_g
    dmixed = product(g, v.swapaxes(-1, -2), out=mixed)
    dweight_w = mix_heads_grad(dmixed, maps, weight_w)
    dmaps = softmax_of_rows_grad(mix_heads(dmixed, weight_w.T), maps)
    scores = product(q, k.swapaxes(-1, -2), out=dmixed, scale=product_scale)
    dweight_l = mix_heads_grad(dmaps, scores, weight_l) * weight_scale
    dscores = mix_heads(dmaps, weight_l.T * weight_scale, out=scores)
    product(dscores, k, out=dq, scale=product_scale)
    product(dscores.swapaxes(-1, -2), q, out=dk, scale=product_scale)
    return heads_together(dqkv), dweight_l, _zero_like(bias_w), dweight_w, _dbias(sum_g, sum_v, bias_w)


def _talking_heads_grad_fused(
    g: Array, apart: Array, sum_v: Array, weight_l: Array, weight_w: Array, bias_w: Array
) -> tuple[Array, ...]:
    q, k, v = apart
    product_scale, weight_scale = _scales(q)
    (g,) = heads_apart(g, weight_l.shape[0])
    scores = product(q, k.swapaxes(-1, -2), out=_empty_maps(q, k), scale=product_scale)
    d = product(g, v.swapaxes(-1, -2), out=_empty_maps(g, v))
    dweight_l, dweight_w = mix_softmax_mix_grad(scores, d, weight_l, weight_w, weight_scale)
    dscores, mixed = scores, d
    dq, dk, dv = dqkv = empty_heads(q, 3)
    product(mixed.swapaxes(-1, -2), g, out=dv)
    product(dscores, k, out=dq, scale=product_scale)
    product(dscores.swapaxes(-1, -2), q, out=dk, scale=product_scale)
    sum_g = column_sums(g)
    dqkv = heads_together(dqkv, 2, bias_w, sum_g)
    return dqkv, dweight_l, _zero_like(bias_w), dweight_w, _dbias(sum_g, sum_v, bias_w)


def _dbias(sum_g: Array, sum_v: Array, bias: Array) -> Array:
    return total(sum_g * sum_v, (0, 2, 3)).astype(bias.dtype, copy=False)


def _zero_like(x: Array) -> Array:
    return array_module(x).zeros_like(x)


def _empty_maps(q: Array, k: Array) -> Array | None:
    """Room for maps on a GPU, whose rows cuBLAS is faster with if they are padded."""
    return empty_maps(q, (*q.shape[:-1], k.shape[-2])) if on_gpu(q) else None


def _scale(head: Array) -> float:
    return head.shape[-1] ** -0.5


def _scales(q: Array) -> tuple[float, float]:
    """The parts of the scale of the scores that the product of q and k, and weight_l, absorb."""
    return (_scale(q), 1.0) if q.dtype == np.float16 else (1.0, _scale(q))
