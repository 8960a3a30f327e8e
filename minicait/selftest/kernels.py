"""The kernels that have code of our own for a GPU.

A block of threads adds up a row together, through memory that it shares. Lengths around those of a warp and of a block
are where mistakes in that would show, and rows that are much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from autograd import kernels
from autograd.backend import Array, device_of, to_device
from autograd.kernels.attention import mix_heads
from autograd.kernels.softmax import softmax_of_rows, softmax_of_rows_grad

from .compare import compared
from .report import Finding

LENGTHS = (1, 31, 32, 127, 129, 300, 1000)
ROWS = 6


def values(device: str) -> Finding:
    runs = {}
    for n in LENGTHS:
        runs[f"softmax, rows of {n}"] = partial(_run, _softmax, [(ROWS, n)] * 2)
        runs[f"layer norm, rows of {n}"] = partial(_run, _layer_norm, [(ROWS, n), (ROWS, n), (n,), (n,)])
    runs["mixing heads"] = partial(_run, lambda *arrays: [mix_heads(*arrays)], [(2, 3, 5, 7), (3, 3)])
    runs["GELU"] = partial(_run, _gelu, [(ROWS, 300)])
    runs["AdamW and the average"] = partial(_run, _adamw, [(300,)] * 5)
    return compared(runs, device)


def _run(
    work: Callable[..., Sequence[Array]], shapes: Sequence[tuple[int, ...]], device: str, dtype: str, rounded_to: str
) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(shape).astype(rounded_to).astype(dtype) for shape in shapes]
    return [to_device(x, "cpu") for x in work(*(to_device(x, device) for x in drawn))]


def _softmax(x: Array, g: Array) -> Sequence[Array]:
    y = softmax_of_rows(x * 4)  # so that some values are large also in long rows
    return y, softmax_of_rows_grad(g, y)


def _layer_norm(x: Array, g: Array, weight: Array, bias: Array) -> Sequence[Array]:
    y, x_hat, rstd = kernels.layer_norm(x, weight, bias, 1e-3)
    return y, *kernels.layer_norm_grad(g, x_hat, rstd, weight)


def _gelu(x: Array) -> Sequence[Array]:
    value, derivative = kernels.gelu(x * 3, with_derivative=True)
    return value, derivative, kernels.gelu(x * 3, with_derivative=False)[0]


def _adamw(p: Array, g: Array, m: Array, v: Array, average: Array) -> Sequence[Array]:
    v, other = v * v, average.copy()
    betas = 0.9, 0.999
    pace = to_device(np.array(kernels.pace_of(7, betas, 0.75, by=0.5), p.dtype), device_of(p))
    kernels.adamw(p, g, m, v, pace, 1e-2, betas, 1e-8, 0.01, p.size // 2, average)
    kernels.move_average(other, p, pace)
    return p, m, v, average, other
