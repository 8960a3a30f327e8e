"""Extreme inputs: huge logits, -inf, constant rows, empty axes."""

import math

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from autograd.random import Stream

INF = float("inf")


def value_and_grad(fn, x, cotangent=None, dtype=np.float32):
    x = Tensor(np.array(x, dtype), requires_grad=True)
    y = fn(x)
    y.backward(np.ones(y.shape) if cotangent is None else cotangent)
    return y.numpy(), x.grad.numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_logits(dtype, size):
    x = [[size, -size, 0]]
    y, g = value_and_grad(ops.softmax, x, [[1, 2, 3]], dtype)
    np.testing.assert_array_equal(y, [[1, 0, 0]])
    np.testing.assert_array_equal(g, [[0, 0, 0]])
    y, g = value_and_grad(ops.log_softmax, x, [[1, 2, 3]], dtype)
    np.testing.assert_allclose(y, [[0, -2 * size, -size]], rtol=1e-6)
    np.testing.assert_array_equal(g, [[-5, 2, 3]])
    y, g = value_and_grad(lambda t: ops.logsumexp(t, -1), x, None, dtype)
    np.testing.assert_allclose(y, [size], rtol=1e-6)
    np.testing.assert_array_equal(g, [[1, 0, 0]])
    y, g = value_and_grad(lambda t: ops.cross_entropy(t, [1]), x, None, dtype)
    np.testing.assert_allclose(y, 2 * size, rtol=1e-6)
    np.testing.assert_array_equal(g, [[1, -1, 0]])
    y, g = value_and_grad(lambda t: ops.bce_with_logits(t, [[0, 0, 1]], "none"), x, None, dtype)
    np.testing.assert_allclose(y, [[size, 0, math.log(2)]], rtol=1e-6)
    np.testing.assert_allclose(g, [[1, 0, -0.5]])
    y, g = value_and_grad(ops.sigmoid, x, None, dtype)
    np.testing.assert_array_equal(y, [[1, 0, 0.5]])
    np.testing.assert_array_equal(g, [[0, 0, 0.25]])
    y, g = value_and_grad(ops.gelu, [[100.0, -100.0, 0]], None, dtype)
    np.testing.assert_array_equal(y, [[100, 0, 0]])
    np.testing.assert_array_equal(g, [[1, 0, 0.5]])


@pytest.mark.parametrize("size", [1e4, -1e4, 1e6, 1e8])
def test_equal_huge_logits(size):
    """log(2) is not lost to rounding next to a large maximum."""
    x = [[size, size]]
    y, g = value_and_grad(ops.log_softmax, x, [[1, 0]])
    np.testing.assert_allclose(y, -math.log(2), rtol=1e-6)
    np.testing.assert_allclose(g, [[0.5, -0.5]], rtol=1e-6)
    y, g = value_and_grad(lambda t: ops.cross_entropy(t, [0]), x)
    np.testing.assert_allclose(y, math.log(2), rtol=1e-6)
    np.testing.assert_allclose(g, [[-0.5, 0.5]], rtol=1e-6)


def test_small_probabilities_keep_their_digits():
    x = np.array([-80.0, -40, -20, -17, 0, 17])
    for dtype, rtol in ((np.float32, 1e-6), (np.float64, 1e-14)):
        y, g = value_and_grad(ops.sigmoid, x, None, dtype)
        np.testing.assert_allclose(y, np.exp(-np.logaddexp(0, -x)), rtol=rtol)
        _, g = value_and_grad(lambda t: ops.bce_with_logits(t, np.zeros(6), "sum"), x, None, dtype)
        np.testing.assert_allclose(g, np.exp(-np.logaddexp(0, -x)), rtol=rtol)


def test_masked_logits():
    """-inf gets weight zero and no gradient; a row of only -inf gives zeros, not NaN."""
    x = [[1, -INF, 2], [-INF, -INF, -INF]]
    y, g = value_and_grad(ops.softmax, x, [[1, 2, 3], [4, 5, 6]])
    p = 1 / (1 + math.e)
    np.testing.assert_allclose(y, [[p, 0, 1 - p], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(g, [[-2 * p * (1 - p), 0, 2 * p * (1 - p)], [0, 0, 0]], rtol=1e-5)
    y, g = value_and_grad(lambda t: ops.logsumexp(t, -1), x)
    np.testing.assert_allclose(y, [2 + math.log1p(math.exp(-1)), -INF], rtol=1e-6)
    np.testing.assert_allclose(g, [[p, 0, 1 - p], [0, 0, 0]], rtol=1e-6)
    y, g = value_and_grad(ops.log_softmax, x, [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(y[0], [math.log(p), -INF, math.log(1 - p)], rtol=1e-6)
    assert np.isneginf(y[1]).all() and np.isfinite(g).all()


def test_cross_entropy_with_impossible_classes():
    x = [[1, -INF, 2]]
    want = -math.log(1 / (1 + math.e))
    for targets in ([0], [[1.0, 0.0, 0.0]]):
        y, g = value_and_grad(lambda t, targets=targets: ops.cross_entropy(t, targets), x)
        np.testing.assert_allclose(y, want, rtol=1e-6)
        assert np.isfinite(g).all() and g[0, 1] == 0
    y, _ = value_and_grad(lambda t: ops.cross_entropy(t, [1]), x)
    assert y == INF


def test_kl_div_with_zero_probabilities():
    y, g = value_and_grad(lambda t: ops.kl_div(t, [[0.0, 1.0]]), [[-INF, -1.0]])
    np.testing.assert_allclose(y, 1)
    np.testing.assert_array_equal(g, [[0, -1]])


def test_layer_norm_of_constant_rows():
    y, g = value_and_grad(
        lambda t: ops.layer_norm(t, [1.0, 2, 3], [4.0, 5, 6]), [[7, 7, 7], [0, 0, 0]], [[1, 2, 3]] * 2
    )
    np.testing.assert_array_equal(y, [[4, 5, 6], [4, 5, 6]])
    assert np.isfinite(g).all()
    for constant in (3.3, 3000.1, 12345.678, -1e6 / 3):
        y, _ = value_and_grad(lambda t: ops.layer_norm(t, np.ones(192), np.zeros(192)), np.full((1, 192), constant))
        assert np.abs(y).max() < 1e-6
        y, _ = value_and_grad(ops.var, np.full(192, constant))
        assert y < 1e-12
    y, _ = value_and_grad(lambda t: ops.layer_norm(t, [1.0], [2.0]), [[5], [6]])
    np.testing.assert_array_equal(y, [[2], [2]])


def test_layer_norm_far_from_zero():
    """A two-pass variance: the offset cancels before it is squared."""
    x = np.array([[1.0, 2.0, 3.0, 4.0]]) + 3000
    y, _ = value_and_grad(lambda t: ops.layer_norm(t, np.ones(4), np.zeros(4)), x)
    want = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    np.testing.assert_allclose(y, want, rtol=1e-4)


def test_empty_axes():
    y, g = value_and_grad(lambda t: t.sum(0), np.zeros((0, 3)))
    assert y.tolist() == [0, 0, 0] and g.shape == (0, 3)
    y, g = value_and_grad(lambda t: t.logsumexp(1), np.zeros((2, 0)))
    assert y.tolist() == [-INF, -INF] and g.shape == (2, 0)
    for fn in (ops.softmax, ops.log_softmax, ops.exp, ops.gelu, ops.flip, lambda t: t[:, ::-1], lambda t: t.T):
        y, g = value_and_grad(fn, np.zeros((2, 0)))
        assert y.size == 0 and g.shape == (2, 0)
    y, g = value_and_grad(lambda t: t @ np.zeros((0, 3), np.float32), np.zeros((2, 0)))
    assert y.tolist() == [[0, 0, 0]] * 2 and g.shape == (2, 0)
    y, g = value_and_grad(lambda t: ops.linear(t, np.ones((3, 2), np.float32)), np.zeros((0, 2)))
    assert y.shape == (0, 3) and g.shape == (0, 2)
    y, g = value_and_grad(lambda t: t.max(0), np.zeros((3, 0)))
    assert y.shape == (0,) and g.shape == (3, 0)
    y, g = value_and_grad(lambda t: ops.layer_norm(t, np.ones(3), np.zeros(3)), np.zeros((0, 3)))
    assert y.shape == (0, 3)
    y, g = value_and_grad(lambda t: t[[]], np.ones((2, 3)))
    assert y.shape == (0, 3) and not g.any()


def test_norms_where_all_values_are_equal():
    """Neither has a derivative there. Backward gives 0, and not NaN."""
    for fn in (lambda t: ops.norm(t, -1), lambda t: ops.std(t, -1)):
        y, g = value_and_grad(fn, [[0, 0, 0], [0, 3, -3]])
        assert y[0] == 0 and not g[0].any() and g[1].any()
    y, g = value_and_grad(ops.std, np.full(7, 0.1))
    np.testing.assert_allclose(g, 0, atol=1e-6)
    y, g = value_and_grad(ops.norm, [3e4, 4e4], dtype=np.float16)  # the squares overflow float16
    np.testing.assert_allclose(y, 5e4, rtol=1e-3)
    np.testing.assert_allclose(g, [0.6, 0.8], rtol=1e-3)


def test_small_differences_to_one():
    for fn in (ops.log1p, ops.expm1):
        y, g = value_and_grad(fn, [1e-10, -1e-10])
        np.testing.assert_allclose(y, [1e-10, -1e-10], rtol=1e-6)
        np.testing.assert_allclose(g, 1)
    _, g = value_and_grad(ops.expm1, [-20.0])  # y + 1 is 0 here, in float32
    np.testing.assert_allclose(g, np.exp(-20.0), rtol=1e-6)


def test_silu_of_large_values():
    y, g = value_and_grad(ops.silu, [1e4, -1e4, 0])
    np.testing.assert_array_equal(y, [1e4, 0, 0])
    np.testing.assert_array_equal(g, [1, 0, 0.5])


def test_topk_of_nan_and_infinity():
    x = [-INF, np.nan, 1, -INF, INF, np.nan]
    values, indices = ops.topk(x, 6)
    assert indices.numpy().tolist() == [1, 5, 4, 2, 0, 3]
    np.testing.assert_array_equal(values, [np.nan, np.nan, INF, 1, -INF, -INF])
    _, g = value_and_grad(lambda t: ops.topk(t, 3)[0], x)
    np.testing.assert_array_equal(g, [0, 1, 0, 0, 1, 1])


def test_infinite_gradients_do_not_become_nan_where_nothing_flows():
    for fn in (
        ops.relu, lambda t: t.clip(0), lambda t: ops.maximum(t, 0), lambda t: -ops.minimum(-t, 0),
        lambda t: ops.maximum(0, t), lambda t: ops.maximum(np.zeros(2), t),
        lambda t: ops.where([False, True], t, 0),
    ):  # fmt: skip
        _, g = value_and_grad(fn, [-1, 1], [INF, 1])
        np.testing.assert_array_equal(g, [0, 1])
    for fn in (ops.max, lambda t: -ops.min(-t)):
        _, g = value_and_grad(fn, [1, 3, 2], INF)
        np.testing.assert_array_equal(g, [0, INF, 0])
        _, g = value_and_grad(lambda t, fn=fn: fn(t), [[1, 3, 3]], -INF, np.float16)
        np.testing.assert_array_equal(g, [[0, -INF, -INF]])
    _, g = value_and_grad(ops.abs, [-2, 0, 2], [INF] * 3)
    np.testing.assert_array_equal(g, [-INF, 0, INF])
    assert np.isnan(value_and_grad(ops.abs, [np.nan])[1]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("drop", [ops.dropout, ops.drop_path])
def test_dropped_infinities_are_zero(drop, dtype):
    stream = ag.random.Stream()
    kept = drop(np.ones((64, 3)), 0.5, stream).numpy() != 0
    y, g = value_and_grad(lambda t: drop(t, 0.5, stream), np.full((64, 3), INF), np.full((64, 3), -INF), dtype)
    assert y.dtype == g.dtype == dtype and kept.any() and not kept.all()
    np.testing.assert_array_equal(y, np.where(kept, INF, 0))
    np.testing.assert_array_equal(g, np.where(kept, -INF, 0))


def test_ties_share_the_gradient():
    _, g = value_and_grad(ops.max, [1, 3, 3])
    np.testing.assert_array_equal(g, [0, 0.5, 0.5])
    _, g = value_and_grad(lambda t: ops.maximum(t, 2), [1, 2, 3])
    np.testing.assert_array_equal(g, [0, 0.5, 1])
    for fn in (ops.max, ops.min):
        y, g = value_and_grad(lambda t, fn=fn: fn(t, -1), [[1, np.nan, np.nan], [1, 1, 1]])
        np.testing.assert_array_equal(y, [np.nan, 1])
        np.testing.assert_allclose(g, [[0, 0.5, 0.5], [1 / 3] * 3])
    _, g = value_and_grad(ops.abs, [0, -1])
    np.testing.assert_array_equal(g, [0, -1])
    _, g = value_and_grad(lambda t: ops.clip(t, -1, 1), [-2, -1, 0, 1, 2])
    np.testing.assert_array_equal(g, [0, 1, 1, 1, 0])


def test_powers_of_zero():
    _, g = value_and_grad(lambda t: t**2, [0.0, 1.0])
    np.testing.assert_array_equal(g, [0, 2])
    _, g = value_and_grad(lambda t: t**0, [0.0, 1.0])
    np.testing.assert_array_equal(g, [0, 0])
    a, b = (Tensor(np.zeros(2), requires_grad=True) for _ in range(2))
    b.data[:] = [0, 2]
    (a**b).backward([1, 1])
    np.testing.assert_array_equal(a.grad.numpy(), [0, 0])
    np.testing.assert_array_equal(b.grad.numpy(), [0, 0])
    _, g = value_and_grad(lambda t: 0**t, [1.0, 2.0])
    np.testing.assert_array_equal(g, [0, 0])


@pytest.mark.parametrize("base", [0, 0.0, -0.0, np.float64(0), "Tensor"])
@pytest.mark.parametrize("cotangent", [1, INF])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_zero_to_any_power_gives_its_exponent_no_gradient(base, cotangent):
    base = Tensor(np.zeros(5)) if base == "Tensor" else base
    y, g = value_and_grad(lambda t: base**t, [-2, -0.5, 0, 0.5, 2], [cotangent] * 5, np.float64)
    np.testing.assert_array_equal(y, [INF, INF, 1, 0, 0])
    np.testing.assert_array_equal(g, [0, 0, 0, 0, 0])


@pytest.mark.parametrize("exponent", [0, 0.0, "Tensor"])
def test_any_base_to_the_power_zero_gets_no_gradient(exponent):
    exponent = Tensor(np.zeros(5)) if exponent == "Tensor" else exponent
    y, g = value_and_grad(lambda t: t**exponent, [-INF, -1, 0, 1, INF], [INF] * 5, np.float64)
    np.testing.assert_array_equal(y, [1] * 5)
    np.testing.assert_array_equal(g, [0] * 5)


def test_gradients_of_powers_elsewhere():
    a, b = (Tensor(np.array(v), requires_grad=True) for v in ([2.0, 0.0, -2.0, INF], [3.0, 1.0, 3.0, -1.0]))
    with np.errstate(invalid="ignore"):
        (a**b).backward([1, 1, 1, 1])
    np.testing.assert_array_equal(a.grad.numpy(), [12, 1, 12, 0])
    np.testing.assert_allclose(b.grad.numpy(), [8 * math.log(2), 0, np.nan, np.nan])


def test_erf_and_gelu_are_accurate():
    x = np.linspace(-7, 7, 200_001)
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_array_equal(ops.erf(x).numpy(), exact)
    x32 = x.astype(np.float32)
    exact32 = np.array([math.erf(v) for v in x32.astype(np.float64)])
    assert np.abs(ops.erf(x32).numpy() - exact32).max() < 1.5e-7
    for fn in (ops.erf, ops.gelu):
        y, g = value_and_grad(fn, [1e30, -1e30])
        assert np.isfinite(y).all() and np.isfinite(g).all()
    small = np.float32([1e-30, -1e-8, 1e-3])
    np.testing.assert_allclose(ops.erf(small).numpy(), 2 / math.sqrt(math.pi) * small, rtol=1e-5)

    t64, t32 = (Tensor(v, requires_grad=True) for v in (x32.astype(np.float64), x32))
    y64, y32 = ops.gelu(t64), ops.gelu(t32)
    assert (np.abs(y32.numpy() - y64.numpy()) / np.maximum(1, np.abs(x))).max() < 1.6e-7
    (g64,), (g32,) = ag.grad(y64.sum(), t64), ag.grad(y32.sum(), t32)
    assert np.abs(g32.numpy() - g64.numpy()).max() < 4e-7


def test_the_derivative_of_erf_in_its_tails():
    x = np.array([-5.0, 3.5, 6.0])
    _, g = value_and_grad(ops.erf, x, None, np.float64)
    np.testing.assert_allclose(g, 2 / math.sqrt(math.pi) * np.exp(-x * x), rtol=1e-12)


def test_a_rate_of_zero_drops_nothing():
    x = Tensor([1.0, 2.0])
    assert ops.dropout(x, 0, Stream()) is x and ops.drop_path(x, 0.0, Stream()) is x
