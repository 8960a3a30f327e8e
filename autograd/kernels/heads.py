"""The layout of attention heads: side by side in a token, (B, N, count * d) with d = heads * c, or apart, (count, B,
heads, N, c).

On the CPU one is a view of the other, which BLAS takes as it is. cuBLAS would take a call for each head, so on a GPU
they are copied, in one launch: then all heads of all images are one call.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .launch import index_type, on_gpu, sized

# Number i of the result. All sizes but the batch are constants.
_APART = """
    const index_t u = i, c = u % C, n = u / C % N, h = u / (C * N) % HEADS, image = u / (C * N * HEADS);
    const index_t b = image % index_t(batch), part = image / index_t(batch);
    y = x[(((b * N + n) * COUNT + part) * HEADS + h) * C + c];
"""
_TOGETHER = """
    const index_t u = i, c = u % C, h = u / C % HEADS, part = u / (C * HEADS) % COUNT, token = u / (C * HEADS * COUNT);
    const index_t n = token % N, b = token / N;
    wide_t value = x[(((part * index_t(batch) + b) * HEADS + h) * N + n) * C + c];
    if (part == SHIFTED) value += wide_t(factor[h]) * wide_t(shift[(b * HEADS + h) * C + c]);
    y = value;
"""


def heads_apart(x: Array, heads: int, count: int = 1) -> Array:
    """(B, N, count * heads * c) to (count, B, heads, N, c)."""
    batch, tokens, width = x.shape
    size = width // (count * heads)
    if not on_gpu(x):
        return x.reshape(batch, tokens, count, heads, size).transpose(2, 0, 3, 1, 4)
    xp = array_module(x)
    y = xp.empty((count, batch, heads, tokens, size), x.dtype)
    kernel = sized("raw T x, int64 batch", "T y", _APART, "heads_apart", x.dtype.name, index_type(x),
                   COUNT=count, HEADS=heads, N=tokens, C=size)  # fmt: skip
    kernel(xp.ascontiguousarray(x), np.int64(batch), y)
    return y


def empty_heads(like: Array, count: int) -> Array:
    """An empty (count, B, heads, N, c), which `heads_together` takes, for heads such as (B, heads, N, c)."""
    batch, heads, tokens, size = like.shape
    if on_gpu(like):
        return array_module(like).empty((count, *like.shape), like.dtype)
    return array_module(like).empty((batch, tokens, count, heads, size), like.dtype).transpose(2, 0, 3, 1, 4)


def heads_together(
    x: Array, shifted: int | None = None, factor: Array | None = None, shift: Array | None = None
) -> Array:
    """(count, B, heads, N, c) to (B, N, count * heads * c).

    factor (heads,) times shift (B, heads, 1, c) is added to number `shifted` of the arrays, if there is one.
    """
    count, batch, heads, tokens, size = x.shape
    if not on_gpu(x):
        if factor is not None:
            x[shifted] += factor[:, None, None] * shift
        return x.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, count * heads * size)
    xp = array_module(x)
    y = xp.empty((batch, tokens, count * heads * size), x.dtype)
    arguments = "raw T x, raw F factor, raw S shift, int64 batch"
    kernel = sized(arguments, "T y", _TOGETHER, "heads_together", x.dtype.name, index_type(x), COUNT=count,
                   HEADS=heads, N=tokens, C=size, SHIFTED=count if shifted is None else shifted)  # fmt: skip
    kernel(x, *(x if a is None else xp.ascontiguousarray(a) for a in (factor, shift)), np.int64(batch), y)
    return y
