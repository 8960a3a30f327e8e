"""The end of a residual branch, x + s (h W^T + b): forward and backward, with one value of s for each channel.

On the CPU, the scale is taken into the weight, S = diag(s) W, so that it needs no pass over the tokens. On a GPU, one
launch after the product adds the bias, scales, and adds the sum to x. There the weight stays as it is, because float16
has no room for the product of a weight and a scale that starts at 1e-5.

`rows` are the samples that have a branch, by number; the others stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import cuda
from ..backend import Array, array_module
from .product import product
from .rows import C_TYPES, each_row, on_gpu
from .total import as_rows, row_dots, sum_over_rows, widened

# A thread for each value of the branch. `at` is where that is in x, whose samples are `inner` values long.
_WHERE = "long long channel = i % channels, at = has_rows ? rows[i / inner] * inner + i % inner : i;"
_ADD = """
    z[at] = wide_t(x[at]) + wide_t(factor) * wide_t(scale[channel]) * (wide_t(y[i]) + wide_t(bias[channel]));
"""
_ROUND = """
    wide_t whole = g[at];
    plain = whole;
    scaled = whole * wide_t(factor) * wide_t(scale[channel]);
"""
_PLACES = "raw int64 rows, bool has_rows, int64 channels, int64 inner"

# A block for each channel, whose row of the weight has n values. `product` is g^T h and `sum` is that of g.
_PARAMETERS = """
extern "C" __global__ void residual_parameters(
    const wide_t* product, const wide_t* sum, const T* weight, const T* bias, const T* scale, wide_t factor,
    T* dweight, T* dbias, T* dscale, int n
) {
    size_t row = (size_t)blockIdx.x * n;
    wide_t own = factor * wide_t(scale[blockIdx.x]), dot = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        dot += product[row + i] * wide_t(weight[row + i]);
        dweight[row + i] = own * product[row + i];
    }
    dot = over_block(dot, Sum());
    if (threadIdx.x == 0) {
        dbias[blockIdx.x] = own * sum[blockIdx.x];
        dscale[blockIdx.x] = factor * (dot + wide_t(bias[blockIdx.x]) * sum[blockIdx.x]);
    }
}
"""


def linear_residual(
    x: Array, h: Array, weight: Array, bias: Array, scale: Array, factor: float, rows: Array | None
) -> Array:
    """x + factor * scale * (h W^T + bias)."""
    if on_gpu(x) and h.size:
        y = product(as_rows(h), weight.T)
        z = array_module(x).empty(x.shape, x.dtype) if rows is None else x.copy()
        arguments = f"raw T x, raw H y, raw T bias, raw T scale, T factor, {_PLACES}"
        kernel = _kernel(arguments, "raw T z", _ADD, "linear_residual", x.dtype)
        kernel(x, y, bias, scale, x.dtype.type(factor), *_places(x, rows), z, size=y.size)
        return z
    h, weight, bias, scale = map(widened, (h, weight, bias, scale))
    own = scale * scale.dtype.type(factor)
    y = product(as_rows(h), (weight * own[:, None]).T)
    y += bias * own
    y = y.reshape(*h.shape[:-1], x.shape[-1]).astype(x.dtype, copy=False)
    if rows is None:
        y += x
        return y
    whole = x.copy()
    whole[rows] += y
    return whole


def linear_residual_grad(
    g: Array,
    h: Array,
    narrow: Array,
    weight: Array,
    bias: Array,
    scale: Array,
    factor: float,
    rows: Array | None,
    needs: list[bool],
) -> tuple[Any, ...]:
    """The gradients for h, weight, bias and scale; None for the first, or for the others, if nobody needs them.

    With G = g^T h and the sum of g over the tokens,
    dh = g S,  dW = diag(s) G,  db = s sum(g),  ds = sum over each row of (G W) + b sum(g).

    `narrow` is the weight in the dtype of h, in which products are done.
    """
    wide = np.promote_types(h.dtype, np.float32)
    plain, dh = _grad_of_branch(g, h, narrow, scale, factor, rows, needs[0])
    if not any(needs[1:]):
        return dh, None, None, None
    dweight = product(plain.T, as_rows(h).astype(plain.dtype, copy=False), dtype=wide)
    dbias = sum_over_rows(plain, wide)
    number = wide.type(factor)
    if on_gpu(g) and h.size:
        xp = array_module(g)
        results = [xp.empty(a.shape, a.dtype) for a in (weight, bias, scale)]
        arrays = map(xp.ascontiguousarray, (dweight, dbias, weight, bias, scale))
        each_row(_PARAMETERS, "residual_parameters", weight, *arrays, number, *results)
        return dh, *results
    parameters = weight, bias, scale
    weight, bias, scale = map(widened, parameters)
    own = scale * number
    dscale = row_dots(dweight, weight)[:, 0]
    dscale += bias * dbias
    dscale *= number
    dweight *= own[:, None]
    dbias *= own
    gradients = zip((dweight, dbias, dscale), parameters, strict=True)
    return dh, *(d.astype(own.dtype, copy=False) for d, own in gradients)


def _grad_of_branch(
    g: Array, h: Array, narrow: Array, scale: Array, factor: float, rows: Array | None, needed: bool
) -> tuple[Array, Array | None]:
    """g of the samples that have a branch, as rows, and the gradient for h."""
    if on_gpu(g) and h.size and h.dtype == np.float16:
        xp = array_module(g)
        arguments = f"raw T g, raw T scale, T factor, {_PLACES}"
        kernel = _kernel(arguments, "H plain, H scaled", _ROUND, "residual_gradients", g.dtype)
        plain, scaled = (xp.empty((h.size // h.shape[-1], g.shape[-1]), h.dtype) for _ in range(2))
        kernel(xp.ascontiguousarray(g), scale, g.dtype.type(factor), *_places(g, rows), plain, scaled)
        return plain, product(scaled, narrow).reshape(h.shape) if needed else None
    plain = widened(as_rows(g if rows is None else g[rows]))
    if not needed:
        return plain, None
    own = widened(scale) * plain.dtype.type(factor)
    dh = product(plain, widened(narrow) * own[:, None])
    return plain, dh.reshape(h.shape).astype(h.dtype, copy=False)


def _kernel(arguments: str, results: str, formula: str, name: str, dtype: Any) -> Any:
    return cuda.elementwise(arguments, results, (_WHERE + formula).replace("wide_t", C_TYPES[dtype.name][1]), name)


def _places(x: Array, rows: Array | None) -> tuple[Any, ...]:
    some = array_module(x).empty(0, np.int64) if rows is None else rows
    return some, np.bool_(rows is not None), np.int64(x.shape[-1]), np.int64(x.size // max(1, x.shape[0]))
