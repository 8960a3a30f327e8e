"""Property tests: for any shape, axis and layout, values equal NumPy's and gradients equal numerical ones."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from tests import strategies as some


def check(fn, inputs, seed=0):
    """Run check_grads; at a kink, hypothesis draws again."""
    try:
        ag.check_grads(fn, inputs, seed=seed, directions=1)
    except ag.KinkError:
        assume(False)


UNARY = {
    ops.negative: np.negative,
    ops.exp: np.exp,
    ops.expm1: np.expm1,
    ops.sin: np.sin,
    ops.cos: np.cos,
    ops.tanh: np.tanh,
    ops.sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    ops.relu: lambda x: np.maximum(x, 0),
    ops.abs: np.abs,
    ops.log: np.log,
    ops.log1p: np.log1p,
    ops.sqrt: np.sqrt,
    ops.erf: np.vectorize(math.erf, otypes=[float]),
    ops.silu: lambda x: x / (1 + np.exp(-x)),
    ops.gelu: lambda x: x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
}
BINARY = {
    ops.add: np.add,
    ops.subtract: np.subtract,
    ops.multiply: np.multiply,
    ops.divide: np.divide,
    ops.pow: np.power,
    ops.maximum: np.maximum,
    ops.minimum: np.minimum,
}
REDUCTIONS = {
    ops.sum: np.sum,
    ops.mean: np.mean,
    ops.var: np.var,
    ops.std: np.std,
    ops.norm: lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    ops.max: np.max,
    ops.min: np.min,
    ops.logsumexp: lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
}


def name(op):
    return op.__name__


@pytest.mark.parametrize("op", UNARY, ids=name)
@given(data=st.data())
def test_unary(op, data):
    x = data.draw(some.arrays(data.draw(some.shapes()), low=0.3))
    np.testing.assert_allclose(op(x).numpy(), UNARY[op](x), rtol=1e-12)
    check(op, x)


@pytest.mark.parametrize("op", BINARY, ids=name)
@given(data=st.data())
def test_binary_broadcasts(op, data):
    a, b = (data.draw(some.arrays(shape, low=0.5)) for shape in data.draw(some.broadcastable()))
    np.testing.assert_allclose(op(a, b).numpy(), BINARY[op](a, b), rtol=1e-12)
    check(op, [a, b])


@pytest.mark.parametrize("op", REDUCTIONS, ids=name)
@given(data=st.data(), keepdims=st.booleans())
def test_reductions(op, data, keepdims):
    empty = op is ops.sum
    shape = data.draw(some.shapes(min_size=0 if empty else 1))
    x, axis = data.draw(some.arrays(shape)), data.draw(some.axes(len(shape)))
    got = op(x, axis, keepdims)
    np.testing.assert_allclose(got.numpy(), REDUCTIONS[op](x, axis=axis, keepdims=keepdims), rtol=1e-9, atol=1e-12)
    check(lambda t: op(t, axis, keepdims), x)


@given(data=st.data(), ddof=st.integers(0, 2))
def test_degrees_of_freedom(data, ddof):
    shape = data.draw(some.shapes(min_size=ddof + 1, min_dims=1, max_dims=3))
    x, axis = data.draw(some.arrays(shape)), data.draw(st.integers(-len(shape), len(shape) - 1))
    for ours, numpys in ((ops.var, np.var), (ops.std, np.std)):
        want = numpys(x, axis=axis, ddof=ddof)
        np.testing.assert_allclose(ours(x, axis, ddof=ddof).numpy(), want, rtol=1e-9, atol=1e-12)
        check(lambda t, ours=ours: ours(t, axis, ddof=ddof), x)


@given(data=st.data())
def test_where_and_clip(data):
    shapes = data.draw(some.broadcastable(3))
    condition = data.draw(some.arrays(shapes[0])) > 0
    a, b = (data.draw(some.arrays(shape)) for shape in shapes[1:])
    np.testing.assert_array_equal(ops.where(condition, a, b).numpy(), np.where(condition, a, b))
    check(lambda p, q: ops.where(condition, p, q), [a, b])
    np.testing.assert_array_equal(ops.clip(a, -0.5, 1).numpy(), np.clip(a, -0.5, 1))
    check(lambda p: ops.clip(p, -0.5, 1), a)


@given(data=st.data())
def test_shape_operations(data):
    shape = data.draw(some.shapes(min_dims=1))
    x = data.draw(some.arrays(shape))
    order = data.draw(st.permutations(range(len(shape))))
    first, second = data.draw(st.tuples(*[st.integers(-len(shape), len(shape) - 1)] * 2))
    target = (*data.draw(some.shapes(max_dims=2)), *shape)
    widths = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=x.ndim, max_size=x.ndim))
    axis = data.draw(some.axes(len(shape)))
    new = data.draw(st.integers(-len(shape) - 1, len(shape)))
    for ours, numpys in [
        (lambda t: ops.transpose(t, order), lambda t: np.transpose(t, order)),
        (lambda t: ops.swapaxes(t, first, second), lambda t: np.swapaxes(t, first, second)),
        (lambda t: ops.broadcast_to(t, target), lambda t: np.broadcast_to(t, target)),
        (lambda t: ops.pad(t, widths, 3), lambda t: np.pad(t, widths, constant_values=3)),
        (lambda t: ops.flip(t, axis), lambda t: np.flip(t, axis)),
        (lambda t: ops.reshape(t, shape[::-1]), lambda t: np.reshape(t, shape[::-1])),
        (lambda t: ops.expand_dims(t, new), lambda t: np.expand_dims(t, new)),
        (lambda t: ops.squeeze(t.reshape(np.expand_dims(x, new).shape), new), lambda t: t),
        (lambda t: ops.stack([t, t], new), lambda t: np.stack([t, t], new)),
        (lambda t: ops.squeeze(t), lambda t: np.squeeze(t)),
    ]:
        np.testing.assert_array_equal(ours(x).numpy(), numpys(x))
        check(ours, x)


@given(data=st.data(), k=st.integers(-4, 4))
def test_triangles_and_running_sums(data, k):
    shape = data.draw(some.shapes(min_dims=2))
    x = data.draw(some.arrays(shape))
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    np.testing.assert_array_equal(ops.tril(x, k).numpy(), np.tril(x, k))
    check(lambda t: ops.tril(t, k), x)
    np.testing.assert_allclose(ops.cumsum(x, axis).numpy(), np.cumsum(x, axis), rtol=1e-9, atol=1e-12)
    check(lambda t: ops.cumsum(t, axis), x)


@given(data=st.data(), tied=st.booleans())
def test_topk(data, tied):
    shape = data.draw(some.shapes(min_dims=1, max_dims=3, min_size=1))
    x = data.draw(some.arrays(shape))
    x = x.round() if tied else x
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    values, indices = ops.topk(x, k, axis)
    order = np.argsort(-x, axis=axis, kind="stable").take(range(k), axis)
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, axis))
    if not tied:
        check(lambda t: ops.topk(t, k, axis)[0], x)


@given(data=st.data())
def test_concat_stack_and_split(data):
    shape = data.draw(some.shapes(min_dims=1, max_dims=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(some.SIZES, min_size=1, max_size=3))
    xs = []
    for size in sizes:
        longer = list(shape)
        longer[axis] = size
        xs.append(data.draw(some.arrays(tuple(longer))))
    np.testing.assert_array_equal(ops.concat(xs, axis).numpy(), np.concatenate(xs, axis))
    check(lambda *ts: ops.concat(ts, axis), xs)
    np.testing.assert_array_equal(ops.split(xs[0], 1, axis)[0].numpy(), xs[0])
    cuts = np.cumsum(sizes)[:-1].tolist()
    for piece, want in zip(ops.split(ops.concat(xs, axis), cuts, axis), xs, strict=True):
        np.testing.assert_array_equal(piece.numpy(), want)


@given(data=st.data())
def test_indexing(data):
    x = data.draw(some.arrays(data.draw(some.shapes(min_dims=1))))
    index = data.draw(some.indices(x.shape))
    try:
        want = x[index]
    except IndexError:  # masks whose lengths do not broadcast with the other index arrays
        assume(False)
    np.testing.assert_array_equal(Tensor(x)[index].numpy(), want)
    check(lambda t: t[index], x)


@given(data=st.data())
def test_take_along_axis(data):
    shape = data.draw(some.shapes(min_dims=1, max_dims=3, min_size=1))
    x = data.draw(some.arrays(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[axis]
    taken = [data.draw(st.sampled_from([1, size])) for size in shape]
    taken[axis] = data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(some.SEEDS))
    indices = rng.integers(-n, n, taken)
    np.testing.assert_array_equal(ops.take_along_axis(x, indices, axis).numpy(), np.take_along_axis(x, indices, axis))
    check(lambda t: ops.take_along_axis(t, indices, axis), x)


@given(data=st.data())
def test_matmul(data):
    inner, rows, columns = data.draw(st.tuples(*[some.SIZES] * 3))
    batch_a, batch_b = data.draw(some.broadcastable())
    a_shape = data.draw(st.sampled_from([(inner,), (*batch_a[:2], rows, inner)]))
    b_shape = data.draw(st.sampled_from([(inner,), (*batch_b[:2], inner, columns)]))
    try:
        np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    except ValueError:
        assume(False)
    a, b = data.draw(some.arrays(a_shape)), data.draw(some.arrays(b_shape))
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b, rtol=1e-12, atol=1e-12)
    check(ops.matmul, [a, b])


@given(data=st.data(), biased=st.booleans())
def test_linear(data, biased):
    inner, outer = data.draw(st.tuples(some.SIZES, some.SIZES))
    x = data.draw(some.arrays((*data.draw(some.shapes(max_dims=3)), inner)))
    w, b = data.draw(some.arrays((outer, inner))), data.draw(some.arrays((outer,)))
    parameters = [w, b] if biased else [w]
    want = x @ w.T + (b if biased else 0)
    np.testing.assert_allclose(ops.linear(x, *parameters).numpy(), want, rtol=1e-12, atol=1e-12)
    check(ops.linear, [x, *parameters])


@given(data=st.data())
def test_softmax_and_its_logarithm(data):
    shape = data.draw(some.shapes(min_dims=1))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = data.draw(some.arrays(shape))
    e = np.exp(x)
    want = e / e.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(ops.softmax(x, axis).numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(np.exp(ops.log_softmax(x, axis).numpy()), want, rtol=1e-12)
    check(lambda t: ops.softmax(t, axis), x)
    check(lambda t: ops.log_softmax(t, axis), x)


@given(data=st.data())
def test_layer_norm(data):
    size = data.draw(st.integers(2, 6))
    x = data.draw(some.arrays((*data.draw(some.shapes(max_dims=3)), size)))
    weight, bias = data.draw(some.arrays((size,))), data.draw(some.arrays((size,)))
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * weight + bias
    np.testing.assert_allclose(ops.layer_norm(x, weight, bias, 1e-3).numpy(), want, rtol=1e-9, atol=1e-9)
    check(lambda *ts: ops.layer_norm(*ts, 1e-3), [x, weight, bias])


@given(data=st.data(), reduction=st.sampled_from(["mean", "sum", "none"]), smoothing=st.sampled_from([0.0, 0.1]))
def test_losses(data, reduction, smoothing):
    samples, classes = data.draw(some.shapes(max_dims=2, min_size=1)), data.draw(st.integers(1, 5))
    logits = data.draw(some.arrays((*samples, classes)))
    soft = data.draw(some.arrays((*samples, classes), low=0.1, high=1.0))
    soft = soft / soft.sum(-1, keepdims=True)
    rng = np.random.default_rng(data.draw(some.SEEDS))
    labels = rng.integers(0, classes, samples)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    reduce = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}[reduction]
    for targets, dense in [(labels, np.eye(classes)[labels]), (soft, soft)]:
        want = reduce(-((dense * (1 - smoothing) + smoothing / classes) * log_p).sum(-1))
        got = ops.cross_entropy(logits, targets, smoothing, reduction)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-12)
        check(lambda t, targets=targets: ops.cross_entropy(t, targets, smoothing, reduction), logits)
    p = 1 / (1 + np.exp(-logits))
    want = reduce(-(soft * np.log(p) + (1 - soft) * np.log(1 - p)))
    np.testing.assert_allclose(ops.bce_with_logits(logits, soft, reduction).numpy(), want, rtol=1e-9)
    check(lambda t: ops.bce_with_logits(t, soft, reduction), logits)
    want = reduce((soft * (np.log(soft) - log_p)).sum(-1))
    np.testing.assert_allclose(ops.kl_div(log_p, soft, reduction).numpy(), want, rtol=1e-9, atol=1e-12)
    check(lambda t: ops.kl_div(t, soft, reduction), log_p)


@given(data=st.data(), dtype=st.sampled_from([np.float16, np.float32, np.float64]))
def test_dtypes_are_kept(data, dtype):
    a, b = (data.draw(some.arrays(shape, low=0.5)).astype(dtype) for shape in data.draw(some.broadcastable(min_size=1)))
    a, b = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
    y = ops.exp(-(a * b + 2) / (a + np.float64(1))) ** 2
    assert y.dtype == dtype
    assert all(g.dtype == dtype for g in ag.grad(y.mean(), [a, b]))
