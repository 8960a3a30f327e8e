"""checkpoint: the same gradients, less memory."""

import tracemalloc

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from autograd.modes import replayed
from autograd.random import Stream
from minicait import nn


def gradients(fn, *tensors):
    return [g.numpy() for g in ag.grad(fn(*tensors).sum(), tensors)]


def test_same_bits_with_dropout_and_closures():
    """The layer closes over a parameter and draws random masks."""
    rng = np.random.default_rng(0)
    x, w = (Tensor(rng.standard_normal(s).astype(np.float32), requires_grad=True) for s in ((6, 5), (5, 5)))

    def layer(t, step):
        return ops.dropout(ops.gelu(t @ w), 0.3, Stream(1, "mask", step))

    def plain(x, w):
        return layer(layer(x, 0), 1)

    def checkpointed(x, w):
        return ag.checkpoint(layer, ag.checkpoint(layer, x, 0), 1)

    def nested(x, w):
        return ag.checkpoint(lambda t: ag.checkpoint(layer, layer(t, 0), 1), x)

    want = gradients(plain, x, w)
    for fn in (checkpointed, nested):
        for a, b in zip(gradients(fn, x, w), want, strict=True):
            np.testing.assert_array_equal(a, b)


class Layer(nn.Module):
    def __init__(self, dropout):
        self.linear, self.dropout = nn.Linear(5, 5, stream=Stream(3)), dropout

    def forward(self, x):
        return ops.tanh(self.dropout(self.linear(x)))


def checkpointed(first, second, dropout, x):
    return ag.checkpoint(lambda t: dropout(second(first(t))), x)


def one_by_one(first, second, dropout, x):
    for layer in (first, second, dropout):
        x = ag.checkpoint(layer, x)
    return x


def nested(first, second, dropout, x):
    def inner(t):
        return second(first(t)).tanh()

    def middle(t):
        return dropout(ag.checkpoint(inner, t).exp()) * 0.5

    return ag.checkpoint(lambda t: ag.checkpoint(middle, t).tanh(), x)


def without(run):
    """The same function without checkpoints."""

    def plain(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ag, "checkpoint", lambda fn, *args: fn(*args))
            return run(*args)

    return plain


@pytest.mark.parametrize("run", [checkpointed, one_by_one, nested])
def test_layers_draw_the_same_masks_again(run):
    """Outside `random.using` a layer draws a new mask at every call. Two layers share one here."""

    def steps(run):
        dropout = nn.Dropout(0.5, "mask")
        layers = Layer(dropout), Layer(dropout), dropout
        x = Tensor(np.linspace(-1, 1, 30, dtype=np.float32).reshape(6, 5), requires_grad=True)
        for _ in range(3):
            y = run(*layers, x)
            (y * y).sum().backward(retain_graph=True)
            (y * y).sum().backward()
        return [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for layer in layers for p in layer.parameters())]

    for a, b in zip(steps(run), steps(without(run)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_replay_that_draws_more_is_refused():
    numbers = []

    def fickle(t):
        for _ in range(1 + bool(numbers)):
            numbers.append(replayed(lambda: 2.0))
        return t.exp() * numbers[-1]

    with pytest.raises(RuntimeError, match="must do the same both times; it drew more random streams"):
        ag.checkpoint(fickle, Tensor([1.0], requires_grad=True)).backward()


def test_input_that_needs_no_gradient():
    w = Tensor([2.0], requires_grad=True)
    ag.checkpoint(lambda t: (t * w).exp(), Tensor([3.0])).backward()
    np.testing.assert_allclose(w.grad.numpy(), 3 * np.exp(6), rtol=1e-6)


def test_memory_is_saved():
    def peak(run):
        tracemalloc.start()
        try:
            x = Tensor(np.full(500_000, 0.5, np.float32), requires_grad=True)
            y = x
            for _ in range(6):
                y = run(tanh_10_times, y)
            y.sum().backward()
            return tracemalloc.get_traced_memory()[1] / x.data.nbytes
        finally:
            tracemalloc.stop()

    def tanh_10_times(t):
        for _ in range(10):
            t = t.tanh()
        return t

    assert peak(lambda fn, t: fn(t)) > 60
    assert peak(ag.checkpoint) < 24  # six inputs, one recomputed block of ten, and a few temporaries


def test_retain_graph():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = ag.checkpoint(lambda t: (t.exp() * t).sum(), x)
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([1, 2]) * np.array([2, 3]), rtol=1e-6)


def test_replay_uses_the_modes_of_the_first_run():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = ag.checkpoint(lambda t: t.exp().sum(), x)
    with ag.no_grad():  # backward may be called anywhere
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1, 2]), rtol=1e-6)


def test_no_grad_just_calls():
    with ag.no_grad():
        assert not ag.checkpoint(lambda t: t * 2, Tensor([1.0], requires_grad=True)).requires_grad


def test_a_function_that_differs_on_the_second_run_is_refused():
    calls = []

    def fickle(t):
        calls.append(1)
        return t.exp() if len(calls) == 1 else t.tanh()

    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"must do the same both times; it ran exp \(1,\), then tanh \(1,\)"):
        ag.checkpoint(fickle, x).backward()


def test_a_loop_variable_that_has_changed_is_detected():
    weights = [Tensor([float(i)], requires_grad=True) for i in (2, 3, 5)]
    y = Tensor([1.0], requires_grad=True)
    for i in range(3):
        y = ag.checkpoint(lambda t: t * weights[i], y)  # noqa: B023  (the mistake)
    with pytest.raises(RuntimeError, match=r"multiply \(1,\) used other Tensors the second time"):
        y.backward()


def test_unnamed_streams_are_drawn_once():
    x = Tensor(np.ones(100), requires_grad=True)
    y = ag.checkpoint(lambda t: ops.dropout(t.tanh(), 0.5, ag.random.unnamed()) * 2.0, x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy() != 0, y.numpy() != 0)


def test_fewer_streams_in_the_second_run_are_refused():
    runs = []

    def fn(t):
        runs.append(1)
        if len(runs) == 1:
            ag.random.unnamed()
        return t.tanh()

    y = ag.checkpoint(fn, Tensor([1.0], requires_grad=True))
    with pytest.raises(RuntimeError, match="it drew fewer random streams the second time"):
        y.backward()
