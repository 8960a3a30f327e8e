"""clip with numbers, arrays and lists as bounds."""

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def bounds(shape):
    return -np.abs(X).mean() * np.ones(shape), np.linspace(0.2, 0.9, int(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize("shape", [(), (4,), (1,), (3, 1), (1, 1), (3, 4)])
@pytest.mark.parametrize("convert", [np.asarray, lambda a: a.astype(np.float32), np.ndarray.tolist, Tensor])
def test_array_bounds(shape, convert):
    low, high = bounds(shape)
    for ends in ((low, high), (low, None), (None, high), (-0.5, high)):
        low_32, high_32 = (end if end is None else np.float32(end) for end in ends)
        x = Tensor(X, requires_grad=True)
        y = ops.clip(x, *(convert(end) if isinstance(end, np.ndarray) else end for end in ends))
        np.testing.assert_array_equal(y.numpy(), np.clip(X, low_32, high_32))
        y.backward(X)
        inside = (low_32 is None or low_32 <= X) & (high_32 is None or high_32 >= X)
        assert inside.any() and not inside.all() and y.dtype == x.grad.dtype == np.float32
        np.testing.assert_array_equal(x.grad.numpy(), np.where(inside, X, 0))


def test_integer_bounds():
    for low in ([0, 0, 0, 1], np.array([0, 0, 0, 1]), Tensor(np.array([0, 0, 0, 1]))):
        y = ops.clip(X, low)
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.numpy(), np.maximum(X, np.float32([0, 0, 0, 1])))
    integers = ops.clip(np.array([1, 5, 9]), [2, 2, 2], 7)
    assert integers.numpy().tolist() == [2, 5, 7] and integers.dtype == np.int64


def test_gradients_of_array_bounds():
    ag.check_grads(lambda x: ops.clip(x, [-0.5, 0, 0.1, -1], np.full((3, 1), 0.6)), X.astype(np.float64))


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4), (5,), (2, 4), (3,)])
def test_bounds_that_do_not_fit(shape):
    x = Tensor(X, requires_grad=True)
    for arguments, name in (((np.zeros(shape),), "min"), ((None, np.zeros(shape)), "max")):
        with pytest.raises(ValueError, match=rf"clip: {name} must broadcast to the shape of x \(3, 4\), got shape"):
            ops.clip(x, *arguments)
    with pytest.raises(ValueError, match=r"min must broadcast to the shape of x \(\), got shape \(1,\)"):
        ops.clip(1.0, [0.0])


def test_bounds_get_no_gradient():
    bound = Tensor(np.zeros(4), requires_grad=True)
    for arguments in ((bound,), (None, bound)):
        with pytest.raises(ValueError, match=r"clip: bounds get no gradient: use ops\.maximum and ops\.minimum"):
            ops.clip(X, *arguments)
    np.testing.assert_array_equal(ops.clip(X, bound.detach()).numpy(), np.maximum(X, 0))
