"""The engine adds to a gradient in place only where nobody else can see the array."""

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, dtype=np.float32), requires_grad=True)


def test_many_consumers_add_up_without_touching_shared_gradients():
    """add returns one array for both inputs; accumulating into it in place would corrupt the other."""
    x, y = leaf(1, 2, 3), leaf(4, 5, 6)
    z = x + y
    total = z * 2 + z * 3 + z * 4 + x + x + x
    total.backward(np.ones(3))
    np.testing.assert_array_equal(x.grad.numpy(), [12, 12, 12])
    np.testing.assert_array_equal(y.grad.numpy(), [9, 9, 9])


def test_gradients_share_no_memory():
    x, y = leaf(1, 2, 3), leaf(4, 5, 6)
    cotangent = np.ones(3, np.float32)
    (x + y).backward(cotangent)
    x.grad.data[0] = 100
    assert y.grad.numpy()[0] == 1 and cotangent[0] == 1

    a, b, again = ag.grad(x + y, [x, y, x], cotangent)
    assert not any(np.may_share_memory(p.data, q) for p, q in [(a, b.data), (a, again.data), (a, cotangent)])


def twos():
    return np.full(3, 2, np.float32)


CACHE, VIEW = twos(), twos()[::1]


def keeping(keep, find):
    """An operation that saves keep(), and whose gradient is the array that `find` gets out of it."""

    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save(keep())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return find(ctx.saved[0])

    return Keeps.apply


@pytest.mark.parametrize(
    "function",
    [
        keeping(twos, lambda saved: saved),
        keeping(lambda: [twos()], lambda saved: saved[0]),
        keeping(lambda: {"a": ([twos()], 1)}, lambda saved: saved["a"][0][0]),
        keeping(lambda: twos()[::1], lambda saved: saved.base),
        keeping(lambda: [twos()[::1]], lambda saved: saved[0].base),
        keeping(lambda: None, lambda _: CACHE),
        keeping(lambda: None, lambda _: VIEW.base),
        keeping(lambda: None, lambda _: VIEW),
    ],
)
def test_an_array_that_somebody_keeps_is_not_accumulated_into(function):
    """Backward returns it as the gradient, to which the engine adds another, and the caller writes to the sum."""
    x = Tensor(CACHE, requires_grad=True)
    for expression in (lambda h, y: y + h * 5, lambda h, y: h * 5 + y):
        h = x * 1.0
        loss = expression(h, function(h)).sum()
        for _ in range(2):
            loss.backward(retain_graph=True)
            np.testing.assert_array_equal(x.grad.numpy(), [7, 7, 7])
            x.grad.data[:] = 0
            x.grad = None
        y = function(x).sum()
        for _ in range(2):
            y.backward(retain_graph=True)
            np.testing.assert_array_equal(x.grad.numpy(), [2, 2, 2])
            x.grad.data[:] = 0
            x.grad = None
    assert x.numpy().tolist() == [2, 2, 2]


def test_an_array_that_nobody_keeps_is_not_copied():
    returned = []

    class Fresh(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            gradient = g * 2
            returned.append(gradient.ctypes.data)
            return gradient

    x = leaf(*range(100_000))
    Fresh.apply(x).sum().backward()
    assert x.grad.data.ctypes.data == returned[0]


@pytest.mark.parametrize("twice", [lambda d: (d, d), lambda d: (d, d[::1]), lambda d: (d[::1], d)])
def test_one_array_for_two_inputs_is_not_accumulated_into(twice):
    class Twice(Function):
        @staticmethod
        def forward(ctx, a, b):
            return (a + b) * 3

        @staticmethod
        def backward(ctx, g):
            return twice(g * 3)

    a, b = leaf(1, 1), leaf(1, 1)
    output = Twice.apply(a, b)
    for order in ((a * 1.0 * 5).sum() + output.sum(), output.sum() + (a * 1.0 * 5).sum()):
        ga, gb = ag.grad(order, [a, b], retain_graph=True)
        np.testing.assert_array_equal(ga.numpy(), [8, 8])
        np.testing.assert_array_equal(gb.numpy(), [3, 3])
