"""Fast paths of the kernels equal the plain versions, and are not taken where they would differ."""

import math
from importlib import import_module

import numpy as np
import pytest

from autograd import ops
from autograd.kernels import sum_over_rows
from autograd.kernels.layer_norm import layer_norm
from autograd.kernels.softmax import LARGE, softmax, softmax_grad, softmax_of_rows, softmax_of_rows_grad
from autograd.kernels.sums import BLAS_LIMIT, column_sums, row_dots, row_sums

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, np.log(LARGE) / 4, 10 * np.log(LARGE)])
def test_softmax_of_rows(dtype, size):
    """Small scores take the path without a shift, large ones the path with it."""
    x = (RNG.standard_normal((3, 4, 7)) * size).astype(dtype)
    want = softmax(x, -1)
    np.testing.assert_allclose(softmax_of_rows(x), want, rtol=20 * np.finfo(dtype).eps, atol=1e-30)
    g = RNG.standard_normal(x.shape).astype(dtype)
    tolerance = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(softmax_of_rows_grad(g.copy(), want), softmax_grad(g, want, -1), atol=tolerance)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 200.0, -200.0])
def test_softmax_of_rows_with_one_outlier(value):
    x = np.zeros((2, 3), np.float32)
    x[0, 1] = value
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(softmax_of_rows(x), softmax(x, -1))


@pytest.mark.parametrize("shift", [-1000, -100, -80, 80, 100, 1000])
def test_softmax_of_rows_far_from_zero(shift):
    """All scores of a row are so low that their exponentials underflow, or so high that they overflow."""
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    x[1] += shift
    np.testing.assert_allclose(softmax_of_rows(x), softmax(x, -1), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, BLAS_LIMIT, BLAS_LIMIT + 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums(rows, dtype):
    x, y = (RNG.standard_normal((rows, 3)).astype(dtype) for _ in range(2))
    wide = x.astype(np.float64)
    tolerance = {"rtol": 0, "atol": 4 * np.finfo(dtype).eps * rows**0.5 * 4}
    np.testing.assert_allclose(sum_over_rows(x), wide.sum(0), **tolerance)
    np.testing.assert_allclose(row_sums(x), wide.sum(1, keepdims=True), **tolerance)
    np.testing.assert_allclose(column_sums(x), wide.sum(0, keepdims=True), **tolerance)
    np.testing.assert_allclose(row_dots(x, y), (wide * y).sum(1, keepdims=True), **tolerance)
    assert sum_over_rows(x).dtype == row_sums(x).dtype == row_dots(x, y).dtype == dtype


@pytest.mark.parametrize("offset", [0, 5, 1e3, 1e5])
def test_layer_norm_near_and_far_from_zero(offset):
    """Far from zero, a second pass removes the rounding error of the mean."""
    x = RNG.standard_normal((4, 192)).astype(np.float32) + np.float32(offset)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-6)
    y, _, _ = layer_norm(x, np.ones(192, np.float32), np.zeros(192, np.float32), 1e-6)
    np.testing.assert_allclose(y, want, atol=2e-6 if offset < 1e5 else 1e-5)


@pytest.mark.parametrize(("exp", "unit"), [("exp", 1.0), ("exp2", 1 / math.log(2))])
def test_either_exponential_will_do(exp, unit, monkeypatch):
    """Which one a machine takes depends on its NumPy and CPU."""
    gelu = import_module("autograd.kernels.gelu")  # the package has a function of that name
    monkeypatch.setattr(gelu, "EXP", exp)
    monkeypatch.setattr(gelu, "UNIT", unit)
    x = np.linspace(-7, 7, 20_001).astype(np.float32)
    got, want = (gelu.gelu(v, True) for v in (x, x.astype(np.float64)))
    assert (np.abs(got[0] - want[0]) / np.maximum(1, np.abs(x))).max() < 1.6e-7
    assert np.abs(got[1] - want[1]).max() < 4e-7

    for size in (1, 10 * np.log(LARGE)):  # without the shift by the maximum, and with it
        x = (RNG.standard_normal((3, 4, 7)) * size).astype(np.float32)
        want = softmax(x.astype(np.float64), -1)
        np.testing.assert_allclose(softmax_of_rows(x * np.float32(unit), unit), want, rtol=2e-6 * size, atol=1e-12)


def test_gelu_has_no_jumps_where_its_sign_changes():
    x = np.float32([-1e-3, -1e-30, -0.0, 0.0, 1e-30, 1e-3])
    y = ops.gelu(x).numpy()
    np.testing.assert_allclose(y, x * (0.5 + x * 0.3989423), atol=1e-9)
