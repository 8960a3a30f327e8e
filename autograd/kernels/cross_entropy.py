"""Cross entropy of rows of logits x against targets t, and its gradient:

    loss = -sum_k t_k log softmax(x)_k,    dx = softmax(x) sum(t) - t

Targets are class indices or soft targets. A class with logit -inf and target 0 adds nothing to the loss, where 0 * inf
would be NaN.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .launch import launch_rows, on_gpu
from .softmax import log_softmax
from .sums import total, widened


def _cross_entropy_numpy(x: Array, targets: Array, with_grad: bool) -> tuple[Array, Array | None]:
    xp = array_module(x)
    log_p = log_softmax(widened(x), -1)
    if targets.dtype.kind in "iu":
        soft = (targets[..., None] == xp.arange(x.shape[-1])).astype(log_p.dtype)
    else:
        soft = widened(targets)
    losses = -total(soft * xp.where(soft == 0, 0, log_p), -1)
    if not with_grad:
        return losses, None
    dx = xp.exp(log_p)
    dx *= total(soft, -1, keepdims=True)
    dx -= soft
    return losses, dx.astype(x.dtype, copy=False)


# One of `labels` and `soft` is null. A label that is no class makes the loss NaN.
_CUDA = """
__device__ wide_t target(const long long* labels, const T* soft, int k, int n) {
    if (labels && (labels[ROW] < 0 || labels[ROW] >= n)) return wide_t(0) / wide_t(0);
    return labels ? wide_t(labels[ROW] == k) : wide_t(soft[ROW * n + k]);
}

extern "C" __global__ void cross_entropy(
    const T* x, const long long* labels, const T* soft, wide_t* loss, T* dx, long long rows, int n
) {
    if (ROW >= rows) return;
    const long long row = ROW * n;
    wide_t top = x[row], sum = 0, dot = 0, all = 0;
    EACH(k) top = Max()(top, wide_t(x[row + k]));
    top = over_row(top, Max());
    if (isinf(top)) top = 0;
    EACH(k) sum += exp(wide_t(x[row + k]) - top);
    sum = over_row(sum, Sum());
    wide_t log_sum = sum == 0 ? wide_t(0) : log(sum);
    EACH(k) {
        wide_t t = target(labels, soft, k, n);
        if (t != 0) dot += t * (wide_t(x[row + k]) - top - log_sum);
        all += t;
    }
    dot = over_row(dot, Sum());
    all = over_row(all, Sum());
    if (threadIdx.x % TEAM == 0) loss[ROW] = -dot;
    if (dx) EACH(k)
        dx[row + k] = exp(wide_t(x[row + k]) - top - log_sum) * all - target(labels, soft, k, n);
}
"""


def cross_entropy(x: Array, targets: Array, with_grad: bool) -> tuple[Array, Array | None]:
    """The loss of each row (in float32 for float16) and, if asked for, its gradient."""
    if not on_gpu(x):
        return _cross_entropy_numpy(x, targets, with_grad)
    xp = array_module(x)
    null = np.intp(0)  # CuPy passes a null pointer as a number
    losses = xp.empty(x.shape[:-1], np.promote_types(x.dtype, np.float32))
    dx = xp.empty(x.shape, x.dtype) if with_grad else None
    if targets.dtype.kind in "iu":
        pair = xp.ascontiguousarray(targets, np.int64), null
    else:
        pair = null, xp.ascontiguousarray(targets, x.dtype)
    launch_rows(_CUDA, "cross_entropy", x, xp.ascontiguousarray(x), *pair, losses, null if dx is None else dx)
    return losses, dx
