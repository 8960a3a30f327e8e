"""The rows of linear_residual: indices of samples, each once."""

import numpy as np
import pytest

from autograd import Tensor, ops
from autograd.ops.residual import LinearResidual

RNG = np.random.default_rng(0)
X, H, WEIGHT, BIAS, SCALE = (RNG.standard_normal(shape) for shape in ((4, 2, 3), (2, 2, 5), (3, 5), 3, 3))


def run(rows, operation=ops.linear_residual, h=H):
    inputs = [Tensor(a, requires_grad=True) for a in (X, h, WEIGHT, BIAS, SCALE)]
    y = operation(*inputs, 1.5, rows)
    y.backward(X)
    return [y.numpy(), *(x.grad.numpy() for x in inputs)]


@pytest.mark.parametrize(
    "rows", [[3, 1], (3, 1), np.array([3, 1]), np.array([3, 1], np.uint8), np.array([3, 1], np.int32), Tensor([3, 1])]
)
def test_rows_in_any_form(rows):
    if isinstance(rows, Tensor):
        rows = rows.astype(np.int64)
    for own, want in zip(run(rows), run([3, 1], LinearResidual.reference), strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-12)


@pytest.mark.parametrize("rows", [[], (), np.array([], np.int64)])
def test_no_rows(rows):
    y, dx, dh, *parameters = run(rows, h=H[:0])
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(dx, X)
    assert dh.shape == (0, 2, 5) and not any(gradient.any() for gradient in parameters)


@pytest.mark.parametrize("rows", [[1, 1], (0, 0), np.array([3, 3])])
def test_repeated_rows(rows):
    with pytest.raises(ValueError, match=f"linear_residual: rows must be distinct, but {rows[0]} is repeated"):
        run(rows)


@pytest.mark.parametrize("rows", [[0, 4], [-1, 0], np.array([2**63, 0], np.uint64)])
def test_rows_out_of_range(rows):
    with pytest.raises(IndexError, match=r"linear_residual: rows must be in \[0, 3\], got "):
        run(rows)


@pytest.mark.parametrize("rows", [[0.0, 1.0], [True, False], np.array([[0, 1]]), 1, "01", np.ones(4, bool)])
def test_rows_that_are_no_indices(rows):
    with pytest.raises(ValueError, match="linear_residual: rows must be a list of integers, got "):
        run(rows)
