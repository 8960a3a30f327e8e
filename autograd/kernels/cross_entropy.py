"""Cross entropy of rows of logits x against targets t, and its derivative, in one go:

    loss = -sum_k t_k log softmax(x)_k,    d loss / dx = softmax(x) sum(t) - t

Targets are classes by number, or rows of weights. Smoothing takes a part s of every target and spreads it evenly:
(1 - s) t + s / K.
"""

from __future__ import annotations

import numpy as np

from ..backend import Array, array_module
from .rows import each_row, on_gpu
from .softmax import log_softmax
from .total import total, widened

# A block for each row. `classes` or `weights` is null. A class that cannot be (-inf) and is not asked for (0) costs
# nothing: 0 * inf would be NaN. The loss of a class that there is not is NaN.
_CUDA = """
__device__ wide_t target(const long long* classes, const T* weights, size_t row, int k, wide_t smoothing, int n) {
    if (classes && (classes[blockIdx.x] < 0 || classes[blockIdx.x] >= n)) return wide_t(0) / wide_t(0);
    wide_t plain = classes ? wide_t(classes[blockIdx.x] == k) : wide_t(weights[row + k]);
    return (1 - smoothing) * plain + smoothing / n;
}

extern "C" __global__ void cross_entropy(
    const T* x, const long long* classes, const T* weights, wide_t smoothing, wide_t* loss, T* slope, int n
) {
    size_t row = (size_t)blockIdx.x * n;
    wide_t top = x[row], sum = 0, dot = 0, all = 0;
    for (int k = threadIdx.x; k < n; k += blockDim.x) top = Largest()(top, x[row + k]);
    top = over_block(top, Largest());
    if (isinf(top)) top = 0;
    for (int k = threadIdx.x; k < n; k += blockDim.x) sum += exp(wide_t(x[row + k]) - top);
    sum = over_block(sum, Sum());
    wide_t log_sum = sum == 0 ? wide_t(0) : log(sum);
    for (int k = threadIdx.x; k < n; k += blockDim.x) {
        wide_t t = target(classes, weights, row, k, smoothing, n);
        if (t != 0) dot += t * (wide_t(x[row + k]) - top - log_sum);
        all += t;
    }
    dot = over_block(dot, Sum());
    all = over_block(all, Sum());
    if (threadIdx.x == 0) loss[blockIdx.x] = -dot;
    for (int k = threadIdx.x; slope && k < n; k += blockDim.x)
        slope[row + k] =
            exp(wide_t(x[row + k]) - top - log_sum) * all - target(classes, weights, row, k, smoothing, n);
}
"""


def cross_entropy(x: Array, targets: Array, smoothing: float, with_slope: bool) -> tuple[Array, Array | None]:
    """The loss of each row (float32 for float16), and on request its derivative."""
    xp = array_module(x)
    numbered = targets.dtype.kind in "iu"
    if on_gpu(x):
        losses = xp.empty(x.shape[:-1], np.promote_types(x.dtype, np.float32))
        slope = xp.empty(x.shape, x.dtype) if with_slope else None
        targets = xp.ascontiguousarray(targets, np.int64 if numbered else x.dtype)
        pair = (targets, np.intp(0)) if numbered else (np.intp(0), targets)  # a null pointer is a number to CuPy
        arguments = *pair, losses.dtype.type(smoothing), losses, np.intp(0) if slope is None else slope
        each_row(_CUDA, "cross_entropy", x, xp.ascontiguousarray(x), *arguments)
        return losses, slope
    log_p = log_softmax(widened(x), -1)
    soft = (targets[..., None] == xp.arange(x.shape[-1])).astype(log_p.dtype) if numbered else widened(targets)
    if smoothing:
        soft = soft * (1 - smoothing) + smoothing / x.shape[-1]
    # a class that cannot be (-inf) and is not asked for (0) costs nothing, but 0 * inf is NaN
    losses = -(soft * xp.where(soft == 0, 0, log_p)).sum(axis=-1)
    if not with_slope:
        return losses, None
    slope = xp.exp(log_p)
    slope *= total(soft, -1, keepdims=True)
    slope -= soft
    return losses, slope.astype(x.dtype, copy=False)
