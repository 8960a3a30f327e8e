"""float16: sums accumulate in float32, and products do not overflow."""

import numpy as np

import autograd as ag
from autograd import Tensor, ops
from tests.engine.test_extremes import value_and_grad


def test_half_precision_sums_accumulate_in_float32():
    ones = np.ones(5000, np.float16)  # adding ones in float16 stops at 2048
    y, g = value_and_grad(ops.sum, ones, dtype=np.float16)
    assert y == 5000 and y.dtype == g.dtype == np.float16
    y, _ = value_and_grad(ops.mean, np.full(5000, 100), dtype=np.float16)  # the sum overflows float16
    assert y == 100
    y, g = value_and_grad(ops.cumsum, ones, dtype=np.float16)
    assert y[-1] == g[0] == 5000 and y.dtype == g.dtype == np.float16
    y, _ = value_and_grad(lambda t: ops.einsum("i->", t), ones, dtype=np.float16)
    assert y == 5000 and y.dtype == np.float16
    y, _ = value_and_grad(ops.var, [200, -200], dtype=np.float16)  # the squares sum to 80,000, which overflows
    assert y == 40_000
    y, _ = value_and_grad(lambda t: ops.layer_norm(t, [1.0, 1.0], [0.0, 0.0]).sum(), [[1000, -1000]], dtype=np.float16)
    assert y == 0
    bias = Tensor(np.zeros(1, np.float16), requires_grad=True)
    (np.zeros((5000, 1), np.float16) + bias).backward(np.ones((5000, 1)))
    assert bias.grad.item() == 5000  # the gradient of a broadcast is also a sum
    y, g = value_and_grad(ops.softmax, np.full(5000, 10), dtype=np.float16)
    assert y.dtype == np.float16 and abs(float(y.astype(np.float64).sum()) - 1) < 1e-2


def test_half_precision_attention_does_not_overflow():
    """A score is 64 * 40 * 40 before the division by sqrt(64), and the largest float16 is 65504."""
    v = np.random.default_rng(0).standard_normal((1, 4, 64))
    qkv = np.concatenate([np.full((1, 4, 128), 40), v], -1)
    one, zero = np.ones((1, 1)), np.zeros(1)
    for fn in (lambda t: ops.talking_heads_attention(t, one, zero, one, zero), lambda t: ops.self_attention(t, 1)):
        y, g = value_and_grad(fn, qkv, dtype=np.float16)
        np.testing.assert_allclose(y, np.broadcast_to(v.mean(1, keepdims=True), v.shape), atol=2e-3)
        np.testing.assert_allclose(g[..., 128:], 1, atol=2e-3)
        assert np.isfinite(g).all()


def test_half_precision_means_over_many_values():
    for fn in (ops.mean, lambda t: ops.bce_with_logits(t, np.ones(100_000))):
        _, g = value_and_grad(fn, np.zeros(100_000), dtype=np.float16)
        assert (g != 0).all()
    _, g = value_and_grad(ops.max, np.ones(100_000), dtype=np.float16)
    assert (g == np.float16(1e-5)).all()


def test_a_small_layer_scale_in_float16():
    """1e-5 times a weight underflows in float16; the branch must not vanish."""
    rng = np.random.default_rng(0)
    x, h, w = np.zeros((2, 3, 4)), rng.standard_normal((2, 3, 8)) * 40, rng.standard_normal((4, 8)) * 0.02
    operands = [x, h, w, np.zeros(4), np.full(4, 1e-5)]
    tensors = [Tensor(a.astype(np.float16), requires_grad=True) for a in operands]
    y = ops.linear_residual(*tensors)
    np.testing.assert_allclose(y.numpy(), 1e-5 * h @ w.T, rtol=0.02, atol=1e-7)
    dh = ag.grad(y, tensors[1], np.full(y.shape, 1000))[0].numpy()
    np.testing.assert_allclose(dh, np.broadcast_to(1e-2 * w.sum(0), h.shape), rtol=0.02, atol=1e-6)
