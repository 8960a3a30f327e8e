"""Attention with a mask, and self-attention on concatenated q, k and v, against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from tests import strategies as some


def attend(q, k, v, heads, mask):
    """Attention in NumPy, head by head. A query that may attend to nothing gets zeros."""
    y = np.zeros_like(q)
    size = q.shape[-1] // heads
    for b, h in np.ndindex(len(q), heads):
        part = (b, slice(None), slice(h * size, (h + 1) * size))
        e = np.exp(q[part] @ k[part].T / np.sqrt(size)) * mask[b, h]
        y[part] = e / np.maximum(e.sum(-1, keepdims=True), 1e-300) @ v[part]
    return y


@st.composite
def masks(draw, shape):
    """Boolean arrays that broadcast to `shape`."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    sizes = [draw(st.sampled_from([1, n])) for n in kept]
    return np.random.default_rng(draw(some.SEEDS)).random(sizes) < draw(st.sampled_from([0.2, 0.7, 1]))


@given(data=st.data(), masked=st.booleans())
def test_any_shape_and_mask(data, masked):
    batch, heads, size, queries, keys = data.draw(st.tuples(*[st.integers(1, 3)] * 5))
    q = data.draw(some.arrays((batch, queries, heads * size)))
    k, v = (data.draw(some.arrays((batch, keys, heads * size))) for _ in range(2))
    shape = (batch, heads, queries, keys)
    mask = data.draw(masks(shape)) if masked else None
    want = attend(q, k, v, heads, np.broadcast_to(True if mask is None else mask, shape))
    np.testing.assert_allclose(ops.attention(q, k, v, heads, mask).numpy(), want, rtol=1e-9, atol=1e-12)
    ag.check_grads(lambda *ts: ops.attention(*ts, heads, mask), [q, k, v], directions=1)


@given(data=st.data(), masked=st.booleans())
def test_self_attention_of_any_shape(data, masked):
    batch, heads, size, tokens = data.draw(st.tuples(*[st.integers(1, 3)] * 4))
    qkv = data.draw(some.arrays((batch, tokens, 3 * heads * size)))
    shape = (batch, heads, tokens, tokens)
    mask = data.draw(masks(shape)) if masked else None
    want = attend(*np.split(qkv, 3, -1), heads, np.broadcast_to(True if mask is None else mask, shape))
    np.testing.assert_allclose(ops.self_attention(qkv, heads, mask).numpy(), want, rtol=1e-9, atol=1e-12)
    ag.check_grads(lambda t: ops.self_attention(t, heads, mask), qkv, directions=1)


def test_self_attention_is_attention_on_one_array():
    arrays = [np.random.default_rng(i).standard_normal((2, 5, 12)).astype("float32") for i in range(4)]
    q, k, v = (Tensor(x, requires_grad=True) for x in arrays[:3])
    qkv = Tensor(np.concatenate(arrays[:3], -1), requires_grad=True)
    maps = []
    outputs = [
        ops.attention(q, k, v, 3, observe=lambda **seen: maps.append(seen["maps"])),
        ops.self_attention(qkv, 3, observe=lambda **seen: maps.append(seen["maps"])),
    ]
    np.testing.assert_allclose(*(y.numpy() for y in outputs), rtol=1e-5)
    np.testing.assert_allclose(*maps, rtol=1e-5)
    for output in outputs:
        output.backward(arrays[3])
    np.testing.assert_allclose(qkv.grad, np.concatenate([x.grad for x in (q, k, v)], -1), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_causal_mask_hides_what_comes_later(dtype):
    """Not even infinity in a later token's key reaches an earlier token."""
    qkv = np.random.default_rng(0).standard_normal((1, 6, 12)).astype(dtype)
    causal = np.tri(6, dtype=bool)
    y = ops.self_attention(qkv, 2, causal)
    changed = qkv.copy()
    changed[:, 4:] += 3
    changed[:, 5, 4:8] = np.inf
    with np.errstate(invalid="ignore"):
        later = ops.self_attention(changed, 2, causal)
    np.testing.assert_allclose(later[:, :4], y[:, :4], atol=2 * np.finfo(dtype).eps)
    assert not np.isclose(later[:, 4], y[:, 4], atol=0.01).any()
    qkv = Tensor(qkv, requires_grad=True)
    (g,) = ag.grad(ops.self_attention(qkv, 2, causal)[:, :4].sum(), [qkv])
    assert y.dtype == g.dtype == dtype and not g.numpy()[:, 4:].any() and g.numpy()[:, :4].any()


def test_a_mask_may_be_a_tensor_or_a_list():
    qkv = np.random.default_rng(0).standard_normal((1, 2, 6))
    mask = [[True, False], [True, True]]
    for form in (mask, np.array(mask), Tensor(np.array(mask))):
        np.testing.assert_array_equal(ops.self_attention(qkv, 1, form)[:, 0], qkv[:, 0, 4:])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.self_attention(x, 3), "self_attention: a width of 4 is not divisible by 3 heads"),
        (lambda x: ops.self_attention(x[0], 2), r"self_attention: qkv must have shape \(B, N, 3d\), got \(5, 12\)"),
        (lambda x: ops.self_attention(x[..., 1:], 1), r"qkv must have shape \(B, N, 3d\), got \(2, 5, 11\)"),
        (
            lambda x: ops.self_attention(x, 2, np.ones((5, 5))),
            "self_attention: mask must be boolean, True where a query may attend, got float32",
        ),
        (
            lambda x: ops.attention(x[:, :3], x, x, 2, np.tri(5, dtype=bool)),
            r"attention: mask must broadcast to \(B, heads, M, N\) = \(2, 2, 3, 5\), got shape \(5, 5\)",
        ),
        (lambda x: ops.attention(x, x, x, 2, "causal"), "attention: .*expected booleans, integers or floats"),
    ],
)
def test_errors(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(Tensor(np.ones((2, 5, 12), "float32")))
