"""Sums of float32 over many values: a few roundings away from float64, along any axes and for any strides."""

import math

import numpy as np
import pytest

from autograd import Tensor, kernels, ops
from autograd.kernels.sums import BLAS_LIMIT, column_sums, row_dots, row_products, row_sums, sum_over_rows, total

RNG = np.random.default_rng(0)
EPS = 2.0**-23
SHAPES = [
    ((300_001, 2), 0), ((2, 300_001), 1), ((4, 100_000, 8), 1), ((4, 100_000, 8), (0, 1)), ((4, 100_000, 8), (1, 2)),
    ((4, 100_000, 8), (2, 0)), ((100, 70, 90), (0, 1)), ((100, 70, 90), (0, -1)), ((100, 70, 90), None),
    ((257, 3, 5), 0), ((9, 1, 2, 20_003), (-1, 0)),
]  # fmt: skip
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose().copy().transpose(),
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "sliced": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])[..., :-1],
    "reversed": lambda x: x[..., ::-1],
    "swapped": lambda x: x.swapaxes(0, -1).copy().swapaxes(0, -1),
}


def close(y, exact, roundings=4, scale=None):
    """Errors of at most so many roundings, relative to `scale` or to the exact values."""
    y = y.numpy() if isinstance(y, Tensor) else y
    assert y.dtype == np.float32 and y.shape == np.shape(exact)
    error = np.abs(y - exact) / (np.abs(exact) if scale is None else scale)
    assert error.max() <= roundings * EPS, f"{error.max() / EPS:.1f} roundings"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_reductions(shape, axis, layout):
    x = LAYOUTS[layout](RNG.random(shape, dtype=np.float32))
    wide = x.astype(np.float64)
    close(ops.sum(x, axis), wide.sum(axis))
    close(ops.mean(x, axis, keepdims=True), wide.mean(axis, keepdims=True))
    close(ops.var(x, axis), wide.var(axis))
    close(ops.logsumexp(x, axis), np.log(np.exp(wide).sum(axis)))
    np.testing.assert_allclose(total(wide, axis), wide.sum(axis), rtol=1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(100_000, 2, 3), (3, 100_000, 2), (2, 3, 100_000)])
def test_softmax(shape, axis):
    x = RNG.random(shape, dtype=np.float32)
    wide = x.astype(np.float64)
    exact = np.exp(wide) / np.exp(wide).sum(axis, keepdims=True)
    close(ops.softmax(x, axis), exact, 6)  # the exponential is rounded, too
    close(ops.log_softmax(x, axis), np.log(exact))
    t, g = Tensor(x, requires_grad=True), RNG.random(shape, dtype=np.float32)
    ops.softmax(t, axis).backward(g)
    dot = (g * exact).sum(axis, keepdims=True)
    close(t.grad, exact * (g - dot), 8, scale=exact)


def test_ones_beyond_the_integers_of_float32():
    """Adding ones one by one stops at 2^24."""
    rows = 2**24 + 2**22
    for shape, axis in (((rows, 2), 0), ((2, rows), 1), ((rows,), None)):
        ones = np.broadcast_to(np.float32(1), shape)
        np.testing.assert_array_equal(ops.sum(ones, axis).numpy(), rows)
        np.testing.assert_array_equal(ops.mean(ones, axis).numpy(), 1)


def test_views_that_repeat_values():
    """NumPy would sum the long axis of these value by value, although its stride is that of a row."""
    column = RNG.random((300_000, 1), dtype=np.float32)
    exact = np.broadcast_to(column.astype(np.float64).sum(), 3)
    close(ops.sum(np.broadcast_to(column, (300_000, 3)), 0), exact)
    windows = np.lib.stride_tricks.sliding_window_view(column[:, 0], 3)
    close(ops.sum(windows, 0), windows.astype(np.float64).sum(0))


@pytest.mark.parametrize(
    "shape, axes", [((4,), (0, 1)), ((100_000, 1), (0, 2)), ((1, 4), (0, 1)), ((3, 1, 1), (1, 2)), ((3, 1, 4), 1)]
)
def test_gradients_of_broadcast_operands(shape, axes):
    g = RNG.random((3, 100_000, 4), dtype=np.float32)
    bias = Tensor(np.zeros(shape, np.float32), requires_grad=True)
    (np.zeros(g.shape, np.float32) + bias).backward(g)
    close(bias.grad, g.astype(np.float64).sum(axes).reshape(shape))


@pytest.mark.parametrize("reduction, over", [("sum", 1), ("mean", 300_000)])
def test_losses(reduction, over):
    logits = RNG.random((300_000, 2), dtype=np.float32)
    wide = logits.astype(np.float64)
    softplus = np.log1p(np.exp(wide)).sum()
    close(ops.bce_with_logits(logits, np.zeros_like(logits), reduction), softplus / (over if over == 1 else 2 * over))
    exact = (np.log(np.exp(wide).sum(1)) - wide[:, 0]).sum() / over
    close(ops.cross_entropy(logits, np.zeros(300_000, int), reduction=reduction), exact)
    p = np.float32([[0.25, 0.75]] * 300_000)
    exact = (0.25 * math.log(0.25) + 0.75 * math.log(0.75)) * 300_000 + (p * wide).sum()
    close(ops.kl_div(-logits, p, reduction), exact / over, scale=300_000 / over)


def test_losses_of_many_classes():
    wide = RNG.random((300_000, 2)).astype(np.float32).astype(np.float64)
    for logits in (wide.T.astype(np.float32), np.ascontiguousarray(wide.T, np.float32)):
        exact = np.log(np.exp(wide).sum(0)) - wide.mean(0)
        soft = np.full((2, 300_000), 1 / 300_000)
        close(ops.cross_entropy(logits, soft, reduction="none"), exact)
        exact = -np.log(300_000) - wide.mean(0)
        close(ops.kl_div(logits, soft, reduction="none"), exact)


@pytest.mark.parametrize("n", [200, BLAS_LIMIT, BLAS_LIMIT + 1, 1_000_000])
def test_sums_of_rows_and_columns(n):
    x, y = RNG.random((2, 3, n), dtype=np.float32)
    wide = x.astype(np.float64)
    within = 8 if n <= BLAS_LIMIT else 4
    close(row_sums(x), wide.sum(1, keepdims=True), within)
    close(row_dots(x, y), (wide * y).sum(1, keepdims=True), within)
    close(row_products(x, y[0]), (wide * y[0]).sum(1, keepdims=True), within)
    close(sum_over_rows(x.T), wide.sum(1), within)
    close(sum_over_rows(x.T.copy()), wide.sum(1), within)
    close(column_sums(x.T[None]), wide.T[None].sum(1, keepdims=True), within)
    half = x.astype(np.float16)
    close(sum_over_rows(half.T, np.float32), half.astype(np.float64).sum(1))
    close(column_sums(half.T), half.T.astype(np.float64).sum(0, keepdims=True))


def test_layer_norm_of_a_long_row():
    n = 1_000_000
    x, g, weight = (RNG.random(shape, dtype=np.float32) for shape in ((2, n), (2, n), n))
    arrays = [x, weight, np.zeros(n, np.float32)]
    (y, x_hat, rstd), exact = (kernels.layer_norm(*(a.astype(d) for a in arrays), 0) for d in ("float32", "float64"))
    close(y, exact[0], scale=1)
    close(rstd, exact[2])
    dx, _, _ = kernels.layer_norm_grad(g, x_hat, rstd, weight)
    close(dx, kernels.layer_norm_grad(g.astype(np.float64), *exact[1:], weight.astype(np.float64))[0], 8, scale=1)


def test_mixing_heads_of_many_samples():
    qkv = RNG.random((50_000, 2, 6), dtype=np.float32)
    g = RNG.random((50_000, 2, 2), dtype=np.float32)
    parameters = [np.full((2, 2), 0.5), np.zeros(2)] * 2

    def gradients(dtype):
        inputs = [Tensor(a.astype(dtype), requires_grad=True) for a in (qkv, *parameters)]
        ops.talking_heads_attention(*inputs).backward(g.astype(dtype))
        return [x.grad.numpy() for x in inputs]

    narrow, wide = gradients(np.float32), gradients(np.float64)
    close(narrow[4], wide[4])
