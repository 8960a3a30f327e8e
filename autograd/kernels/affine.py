"""A scale and a shift of each channel, the last axis:

    y = weight * x + shift,    dx = weight * g,    dweight = sum(g * x),    dshift = sum(g)

The sums are over all rows (n, C). `shift` has a value for each channel, or one for each of x; then its gradient is g.
x may be float16 beside float32.
"""

from __future__ import annotations

from typing import Any

from ..backend import Array, array_module
from .launch import C_TYPES, index_type, on_gpu, sized
from .parts import division, launch_parts, merge
from .sums import total, wide_dtype


def _affine_numpy(x: Array, weight: Array, shift: Array) -> Array:
    y = weight * x
    y += shift
    return y


_CUDA = """
    const index_t u = i, channel = u % CHANNELS;
    y = wide_t(weight[channel]) * wide_t(x) + wide_t(shift[WHOLE ? u : channel]);
"""


def affine(x: Array, weight: Array, shift: Array) -> Array:
    """The result has the dtype of weight and shift."""
    if not on_gpu(x):
        return _affine_numpy(x, weight, shift)
    xp = array_module(x)
    y, sizes = xp.empty(x.shape, weight.dtype), {"CHANNELS": x.shape[-1], "WHOLE": int(shift.ndim > 1)}
    arguments = "T x, raw P weight, raw P shift"
    kernel = sized(arguments, "P y", _CUDA, "affine", x.dtype.name, index_type(x), **sizes)
    kernel(x, *map(xp.ascontiguousarray, (weight, shift)), y)
    return y


def _affine_grad_numpy(
    g: Array, x: Array, weight: Array, whole: bool, needs: list[bool]
) -> tuple[Array | None, Array | None, Array | None]:
    rows = tuple(range(g.ndim - 1))
    dx = (g * weight).astype(x.dtype, copy=False) if needs[0] else None
    dweight = total(g * x, rows) if needs[1] else None
    dshift = (g if whole else total(g, rows)) if needs[2] else None
    return dx, dweight, dshift


# P is the type of the parameters, and of g.
_CUDA_GRAD = """
extern "C" __global__ void affine_grad(
    const P* g, const T* x, const P* weight, T* dx, wide_t* dots, wide_t* sums, long long rows, long long size,
    int channels
) {
    PART
    const wide_t factor = inside ? wide_t(weight[channel]) : wide_t(0);
    wide_t dot = 0, sum = 0;
    EACH_ROW {
        const long long i = row * channels + channel;
        const wide_t upstream = g[i];
        dot += upstream * wide_t(x[i]);
        sum += upstream;
        dx[i] = upstream * factor;
    }
    dot = over_warps(dot);
    sum = over_warps(sum);
    if (inside && threadIdx.x < 32) {
        dots[(long long)channel * gridDim.x + blockIdx.x] = dot;
        sums[(long long)channel * gridDim.x + blockIdx.x] = sum;
    }
}
"""


def _affine_grad_cuda(g: Array, x: Array, weight: Array, whole: bool) -> tuple[Array, Array, Array]:
    xp = array_module(g)
    dx, parts = xp.empty(x.shape, x.dtype), xp.empty((2, x.shape[-1], division(x)[2]), wide_dtype(g))
    source = f"typedef {C_TYPES[g.dtype.name][0]} P;{_CUDA_GRAD}"
    launch_parts(source, "affine_grad", x, *map(xp.ascontiguousarray, (g, x, weight)), dx, *parts)
    dweight, dshift = merge(parts, weight.dtype)
    return dx, dweight, g if whole else dshift


def affine_grad(g: Array, x: Array, weight: Array, whole: bool, needs: list[bool]) -> tuple[Any, ...]:
    """Gradients for x, weight and shift, if needed. The shift was `whole` if it had a value for each of x."""
    if not on_gpu(g):
        return _affine_grad_numpy(g, x, weight, whole, needs)
    return _affine_grad_cuda(g, x, weight, whole)
