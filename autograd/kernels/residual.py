"""The end of a residual branch: the last linear layer, LayerScale, and the sum with the main path.

    y = x + s (h W^T + b),    s = factor * scale, one value for each channel, or s = factor without a scale

With G = g^T h and sum(g) over the tokens (g of a sample times its own factor, if there is one for each):

    dh = g diag(s) W,  dW = diag(s) G,  db = s sum(g),  dscale = factor * (sum over each row of (G * W) + b sum(g))

On the CPU, s is folded into the weight and needs no pass over the tokens. float16 has no room for the product of a
weight and a scale that starts at 1e-5, so on a GPU a launch after the matrix product adds the bias, scales and adds x.

`factor` is a number, or an array of one for each sample, which must stay the same in backward. `rows` are the indices
of the samples that have a branch; the others stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .launch import index_type, launch_rows, on_gpu, sized
from .product import product
from .sums import as_rows, row_dots, sum_over_rows, widened

Factor = float | Array


def _split(factor: Factor) -> tuple[float, Array | None]:
    """A factor for all samples, and one for each if there are any."""
    return (factor, None) if isinstance(factor, float | int) else (1.0, factor)


def _linear_residual_numpy(
    x: Array, h: Array, weight: Array, bias: Array, scale: Array | None, factor: Factor, rows: Array | None
) -> Array:
    factor, each = _split(factor)
    h, weight, bias = map(widened, (h, weight, bias))
    weight, bias = _scaled(weight, scale, factor), _scaled(bias, scale, factor)
    y = product(as_rows(h), weight.T)
    y += bias
    y = y.reshape(*h.shape[:-1], x.shape[-1])
    if each is not None:
        y *= _beside(each, y)
    y = y.astype(x.dtype, copy=False)
    if rows is None:
        y += x
        return y
    z = x.copy()
    z[rows] += y
    return z


# A thread for each value of the branch: number i there, number j in x.
_INDEX = """
    const index_t u = i, channel = u % CHANNELS;
    const long long j = has_rows ? rows[u / SAMPLE] * SAMPLE + u % SAMPLE : u;
"""
_SCALE = """
    const wide_t own = has_each ? wide_t(each[u / SAMPLE]) : wide_t(1);
    const wide_t s = own * wide_t(factor) * (has_scale ? wide_t(scale[channel]) : wide_t(1));
"""
_FACTORS = "raw T scale, bool has_scale, T factor, raw E each, bool has_each, raw int64 rows, bool has_rows"
_ADD = """
    const wide_t branch = wide_t(y[i]) + wide_t(bias[channel]);
    z[j] = s == wide_t(0) ? wide_t(x[j]) : wide_t(x[j]) + s * branch;  // a branch that is dropped may overflow
"""


def linear_residual(
    x: Array, h: Array, weight: Array, bias: Array, scale: Array | None, factor: Factor, rows: Array | None
) -> Array:
    if not on_gpu(x) or not h.size:
        return _linear_residual_numpy(x, h, weight, bias, scale, factor, rows)
    y = product(as_rows(h), weight.T)
    z = array_module(x).empty(x.shape, x.dtype) if rows is None else x.copy()
    kernel = _kernel(f"raw T x, raw H y, raw T bias, {_FACTORS}", "raw T z", _ADD, "linear_residual", x)
    kernel(x, y, bias, *_factors(x, scale, factor, rows), z, size=y.size)
    return z


def _scaled(x: Array, scale: Array | None, factor: float) -> Array:
    """x (channels, ...) times s."""
    if scale is None:
        return x if factor == 1 else x * x.dtype.type(factor)
    s = widened(scale) * x.dtype.type(factor)
    return x * s.reshape(-1, *(1,) * (x.ndim - 1))


def _beside(each: Array, x: Array) -> Array:
    """One factor for each sample of x."""
    return each.astype(x.dtype, copy=False).reshape(-1, *(1,) * (x.ndim - 1))


def _factors(x: Array, scale: Array | None, factor: Factor, rows: Array | None) -> tuple[Any, ...]:
    """Arguments of a kernel. Another array takes the place of one that is not there."""
    one, each = _split(factor)
    has_scale, has_each, has_rows = (np.bool_(a is not None) for a in (scale, each, rows))
    rows = array_module(x).empty(0, np.int64) if rows is None else rows
    one = x.dtype.type(one)
    return x if scale is None else scale, has_scale, one, x if each is None else each, has_each, rows, has_rows


def _kernel(arguments: str, results: str, formula: str, name: str, x: Array) -> Any:
    """A kernel that knows the values of a token and of a sample of x."""
    sizes = {"CHANNELS": x.shape[-1], "SAMPLE": x.size // max(1, x.shape[0])}
    return sized(arguments, results, _INDEX + _SCALE + formula, name, x.dtype.name, index_type(x), **sizes)


# First half of the gradient: g of the samples that have a branch, as rows, and dh if it is needed.


def _branch_grad_numpy(
    g: Array, h: Array, weight: Array, scale: Array | None, factor: Factor, rows: Array | None, needed: bool
) -> tuple[Array, Array | None]:
    one, each = _split(factor)
    g = widened(g if rows is None else g[rows])
    g_rows = as_rows(g if each is None else g * _beside(each, g))
    if not needed:
        return g_rows, None
    dh = product(g_rows, _scaled(widened(weight), scale, one))
    return g_rows, dh.reshape(h.shape).astype(h.dtype, copy=False)


_ROUND = """
    const wide_t value = g[j];
    plain = value * own;
    scaled = value * s;
"""


def _branch_grad_cuda(
    g: Array, h: Array, weight: Array, scale: Array | None, factor: Factor, rows: Array | None, needed: bool
) -> tuple[Array, Array | None]:
    """Scale g before it is rounded to float16, the dtype of h."""
    xp = array_module(g)
    kernel = _kernel(f"raw T g, {_FACTORS}", "H plain, H scaled", _ROUND, "residual_gradients", g)
    plain, scaled = (xp.empty((h.size // h.shape[-1], g.shape[-1]), h.dtype) for _ in range(2))
    kernel(xp.ascontiguousarray(g), *_factors(g, scale, factor, rows), plain, scaled)
    return plain, product(scaled, weight).reshape(h.shape) if needed else None


# Second half: dW, db and dscale from G = g^T h and sum(g).


def _parameter_grads_numpy(
    product_gh: Array, sum_g: Array, weight: Array, bias: Array, scale: Array | None, factor: float
) -> list[Array | None]:
    dweight, dbias, factor = product_gh, sum_g, product_gh.dtype.type(factor)
    if scale is None:
        if factor != 1:
            dweight *= factor
            dbias *= factor
        return [dweight.astype(weight.dtype, copy=False), dbias.astype(bias.dtype, copy=False), None]
    s = widened(scale) * factor
    dscale = row_dots(dweight, widened(weight))[:, 0]
    dscale += widened(bias) * dbias
    dscale *= factor
    dweight *= s[:, None]
    dbias *= s
    gradients = zip((dweight, dbias, dscale), (weight, bias, scale), strict=True)
    return [gradient.astype(parameter.dtype, copy=False) for gradient, parameter in gradients]


# A warp or a block for each channel, whose row of the weight has n values.
_PARAMETERS = """
extern "C" __global__ void residual_parameters(
    const wide_t* product_gh, const wide_t* sum_g, const T* weight, const T* bias, const T* scale, bool has_scale,
    wide_t factor, T* dweight, T* dbias, T* dscale, long long rows, int n
) {
    if (ROW >= rows) return;
    const long long channel = ROW, row = channel * n;
    wide_t s = factor * (has_scale ? wide_t(scale[channel]) : wide_t(1)), dot = 0;
    EACH(i) {
        dot += product_gh[row + i] * wide_t(weight[row + i]);
        dweight[row + i] = s * product_gh[row + i];
    }
    dot = over_row(dot, Sum());
    if (threadIdx.x % TEAM == 0) {
        dbias[channel] = s * sum_g[channel];
        if (has_scale) dscale[channel] = factor * (dot + wide_t(bias[channel]) * sum_g[channel]);
    }
}
"""


def _parameter_grads_cuda(
    product_gh: Array, sum_g: Array, weight: Array, bias: Array, scale: Array | None, factor: float
) -> list[Array | None]:
    xp, wide = array_module(weight), np.promote_types(weight.dtype, np.float32)
    parameters = weight, bias, bias if scale is None else scale
    results = [xp.empty(a.shape, a.dtype) for a in parameters]
    sums = (xp.ascontiguousarray(a, wide) for a in (product_gh, sum_g))
    arrays = *sums, *map(xp.ascontiguousarray, parameters)
    factors = np.bool_(scale is not None), wide.type(factor)
    launch_rows(_PARAMETERS, "residual_parameters", weight, *arrays, *factors, *results)
    return results if scale is not None else [*results[:2], None]


def linear_residual_grad(
    g: Array, h: Array, cast_weight: Array, weight: Array, bias: Array, scale: Array | None, factor: Factor,
    rows: Array | None, needs: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients for h, weight, bias and scale; None for the first, or for all of the others, if not needed.

    `cast_weight` is the weight in the dtype of h, in which matrices are multiplied.
    """
    gpu = on_gpu(g) and h.size
    branch_grad = _branch_grad_cuda if gpu and h.dtype == np.float16 else _branch_grad_numpy
    g_rows, dh = branch_grad(g, h, cast_weight, scale, factor, rows, needs[0])
    if not any(needs[1:]):
        return dh, None, None, None
    wide = np.promote_types(h.dtype, np.float32)
    product_gh = product(g_rows.T, as_rows(h).astype(g_rows.dtype, copy=False), dtype=wide)
    parameter_grads = _parameter_grads_cuda if gpu else _parameter_grads_numpy
    return dh, *parameter_grads(product_gh, sum_over_rows(g_rows, wide), weight, bias, scale, _split(factor)[0])
