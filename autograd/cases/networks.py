"""Cases by hand: products, attention, layers and losses, with wide and tall ones where those need several inputs."""

from __future__ import annotations

from functools import partial

import numpy as np

from .. import ops
from ..random import Stream
from .basic import GRID, LABELS, MASK
from .case import Case
from .samples import normal, probabilities, quiet, tiny

PADDING = np.arange(5) < np.array([5, 2]).reshape(2, 1, 1, 1)  # the first sample has five keys, the second two
BEFORE = np.tri(4, k=-1, dtype=bool)  # the first token may attend to nothing
STREAM = Stream(seed=3, purpose="cases")

NETWORKS = [
    Case("matmul", "matrices", ops.matmul, (normal(3, 4), normal(4, 2))),
    Case("matmul", "vectors", ops.matmul, (normal(4), normal(4))),
    Case("matmul", "vector and batch", ops.matmul, (normal(4), normal(2, 4, 3))),
    Case("matmul", "batch and vector", ops.matmul, (normal(2, 3, 4), normal(4))),
    Case("matmul", "batch and matrix", ops.matmul, (normal(2, 3, 4), normal(4, 5))),
    Case("matmul", "matrix and batch", ops.matmul, (normal(3, 4), normal(2, 4, 5))),
    Case("matmul", "broadcast batches", ops.matmul, (normal(2, 1, 3, 4), normal(5, 4, 2))),
    Case("matmul", "wide", ops.matmul, (tiny(normal(2, 1, 66)), tiny(normal(66, 66)))),
    Case("matmul", "tall", ops.matmul, (normal(4099, 2), normal(2, 2)), long_sums=True),
    Case("matmul", "many", ops.matmul, (normal(1400, 3, 2), normal(2, 2)), long_sums=True),
    Case("einsum", "matrices", partial(ops.einsum, "ij,jk->ik"), (normal(3, 4), normal(4, 2))),
    Case("einsum", "without the result's letters", partial(ops.einsum, "ki,jk"), (normal(4, 3), normal(2, 4))),
    Case("einsum", "three operands", partial(ops.einsum, "bi,ij,bj->b"), (normal(2, 3), normal(3, 4), normal(2, 4))),
    Case("einsum", "letters of one operand only", partial(ops.einsum, "ijk,jl->j"), (normal(2, 3, 2), normal(3, 4))),
    Case("einsum", "the same twice", lambda x: ops.einsum("ij,ij->i", x, x), (normal(3, 4),)),
    Case("einsum", "transposed", partial(ops.einsum, "ijk->kij"), (normal(2, 3, 4),)),
    Case("linear", "with bias", ops.linear, (normal(2, 3, 4), normal(5, 4), normal(5))),
    Case("linear", "without bias", ops.linear, (normal(3, 4), normal(5, 4))),
    Case("linear", "wide", ops.linear, (tiny(normal(2, 1, 66)), tiny(normal(66, 66)), tiny(normal(66)))),
    Case("linear", "tall", ops.linear, (normal(4099, 2), normal(2, 2), normal(2)), long_sums=True),
    Case("attention", "two heads", partial(ops.attention, heads=2), (normal(2, 3, 4), *[normal(2, 5, 4)] * 2)),
    Case("attention", "one query", partial(ops.attention, heads=3), (normal(2, 1, 6), *[normal(2, 4, 6)] * 2)),
    Case("attention", "one head, 66 keys", partial(ops.attention, heads=1), (normal(1, 3, 4), *[normal(1, 66, 4)] * 2)),
    Case("attention", "four heads, 66 queries", partial(ops.attention, heads=4),
         (normal(1, 66, 8), *[normal(1, 3, 8)] * 2)),
    Case("attention", "wide", partial(ops.attention, heads=2), (tiny(normal(1, 2, 66)), *[tiny(normal(1, 3, 66))] * 2)),
    Case("attention", "tall", partial(ops.attention, heads=1), (normal(2100, 2, 2), *[normal(2100, 2, 2)] * 2)),
    Case("attention", "some keys of each sample", partial(ops.attention, heads=2, mask=PADDING),
         (normal(2, 3, 4), *[normal(2, 5, 4)] * 2)),
    Case("self_attention", "two heads", partial(ops.self_attention, heads=2), (normal(2, 3, 12),)),
    Case("self_attention", "one head, 66 tokens", partial(ops.self_attention, heads=1), (normal(1, 66, 6),),
         long_sums=True),
    Case("self_attention", "four heads", partial(ops.self_attention, heads=4), (normal(2, 3, 24),)),
    Case("self_attention", "earlier tokens only", partial(ops.self_attention, heads=2, mask=BEFORE),
         (normal(2, 4, 12),)),
    Case("self_attention", "wide", partial(ops.self_attention, heads=2), (tiny(normal(1, 3, 198)),)),
    Case("self_attention", "tall", partial(ops.self_attention, heads=1), (normal(2100, 2, 6),)),
    Case("talking_heads_attention", "two heads", ops.talking_heads_attention,
         (normal(2, 3, 12), normal(2, 2), normal(2), normal(2, 2), normal(2))),
    Case("talking_heads_attention", "one head, 66 keys", ops.talking_heads_attention,
         (quiet(1, 66, 6), normal(1, 1), normal(1), normal(1, 1), normal(1)), long_sums=True),
    Case("talking_heads_attention", "four heads", ops.talking_heads_attention,
         (normal(2, 3, 24), normal(4, 4), normal(4), normal(4, 4), normal(4))),
    Case("talking_heads_attention", "tall", ops.talking_heads_attention,
         (normal(2100, 2, 12), normal(2, 2), normal(2), normal(2, 2), normal(2)), long_sums=True),
    Case("talking_heads_attention", "wide", ops.talking_heads_attention,
         (tiny(normal(2, 3, 198)), *[tiny(normal(2, 2)), tiny(normal(2))] * 2), long_sums=True),
    Case("talking_heads_attention", "maps in several chunks", ops.talking_heads_attention,
         (quiet(1, 202, 12), normal(2, 2), normal(2), normal(2, 2), normal(2)), long_sums=True),
    Case("softmax", "last axis", ops.softmax, (normal(3, 4),)),
    Case("softmax", "first axis", lambda x: ops.softmax(x, 0), (normal(3, 4),)),
    Case("log_softmax", "last axis", ops.log_softmax, (normal(3, 4),)),
    Case("layer_norm", "plain", ops.layer_norm, (normal(2, 3, 5), normal(5), normal(5))),
    Case("layer_norm", "wide", ops.layer_norm, (tiny(normal(2, 1, 66)), tiny(normal(66)), tiny(normal(66)))),
    Case("layer_norm", "rows longer than BLAS gets", ops.layer_norm, (normal(2, 4099), normal(4099), normal(4099)),
         long_sums=True),
    Case("layer_norm", "tall", ops.layer_norm, (normal(4099, 3), normal(3), normal(3)), long_sums=True),
    Case("linear_residual", "plain", ops.linear_residual,
         (normal(2, 3, 4), normal(2, 3, 5), normal(4, 5), normal(4), normal(4))),
    Case("linear_residual", "some rows", partial(ops.linear_residual, factor=1.25, rows=np.array([2, 0])),
         (normal(4, 3, 5), normal(2, 3, 2), normal(5, 2), normal(5), normal(5))),
    Case("linear_residual", "without scale", partial(ops.linear_residual, factor=0.5),
         (normal(2, 3, 4), normal(2, 3, 5), normal(4, 5), normal(4))),
    Case("linear_residual", "some rows without scale", partial(ops.linear_residual, rows=np.array([1])),
         (normal(2, 3, 4), normal(1, 3, 5), normal(4, 5), normal(4))),
    Case("linear_residual", "wide", ops.linear_residual,
         (tiny(normal(2, 1, 66)), tiny(normal(2, 1, 66)), tiny(normal(66, 66)), tiny(normal(66)), tiny(normal(66)))),
    Case("linear_residual", "tall", ops.linear_residual,
         (quiet(4099, 2), quiet(4099, 2), normal(2, 2), quiet(2), normal(2)), long_sums=True),
    Case("gelu", "plain", ops.gelu, (normal(3, 4),)),
    Case("silu", "plain", ops.silu, (normal(3, 4),)),
    Case("dropout", "plain", lambda x: ops.dropout(x, 0.4, STREAM), (normal(3, 4),)),
    Case("drop_path", "plain", lambda x: ops.drop_path(x, 0.4, STREAM), (normal(6, 2, 2),)),
    Case("cross_entropy", "indices", lambda x: ops.cross_entropy(x, LABELS), (normal(3, 4),)),
    Case("cross_entropy", "smoothing", lambda x: ops.cross_entropy(x, LABELS, 0.1, "none"), (normal(3, 4),)),
    Case("cross_entropy", "soft", lambda x: ops.cross_entropy(x, probabilities(3, 4)), (normal(3, 4),)),
    Case("cross_entropy", "soft, smoothed", lambda x: ops.cross_entropy(x, probabilities(2, 3, 4) * 1.5, 0.2, "sum"),
         (normal(2, 3, 4),)),
    Case("cross_entropy", "tokens", lambda x: ops.cross_entropy(x, GRID, reduction="none"), (normal(2, 2, 3),)),
    Case("bce_with_logits", "plain", lambda x: ops.bce_with_logits(x, MASK), (normal(3, 4),)),
    Case("bce_with_logits", "soft", lambda x: ops.bce_with_logits(x, probabilities(3, 4), "none"), (normal(3, 4),)),
    Case("kl_div", "plain", lambda x: ops.kl_div(x, probabilities(3, 4)), (normal(3, 4),)),
    Case("kl_div", "tokens", lambda x: ops.kl_div(x, probabilities(2, 3, 4), "none"), (normal(2, 3, 4),)),
]  # fmt: skip
