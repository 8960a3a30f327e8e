"""backward() and grad(): order, accumulation, cost, errors."""

import sys

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor, ops


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, dtype=np.float32), requires_grad=True)


def test_backward_fills_leaves_only():
    x = leaf(1, 2)
    y = x * 3
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [3, 3])
    assert isinstance(x.grad, Tensor) and not x.grad.requires_grad
    assert y.grad is None


def test_backward_accumulates_and_never_writes_into_an_old_gradient():
    x = leaf(1, 2)
    (x * 3).sum().backward()
    first = x.grad
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [5, 7])
    np.testing.assert_array_equal(first.numpy(), [3, 3])


def test_a_node_runs_once_when_all_its_consumers_have():
    """A tower of 60 diamonds: running the shared node once per path would take 2^60 calls."""
    calls = []

    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            return g

    x = y = Tensor(1.0, requires_grad=True)
    for _ in range(60):
        y = Identity.apply(y)
        y = 0.5 * y + 0.5 * y
    y.backward()
    assert len(calls) == 60
    assert x.grad.item() == 1


@pytest.mark.parametrize("join", [ops.concat, ops.stack, lambda xs: sum(xs[1:], xs[0])])
def test_backward_is_linear_in_the_number_of_inputs(join):
    """Counted in bytecode instructions, because times vary."""

    def instructions(n):
        total = join([leaf(1, 2) for _ in range(n)]).sum()
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            total.backward()
        finally:
            sys.settrace(before)
        return count

    assert instructions(240) < 5 * instructions(60)


def test_grad_returns_the_requested_gradients_and_touches_no_grad():
    x, w, unused = leaf(1, 2), leaf(3, 4), leaf(5)
    hidden = x * w
    loss = (hidden * hidden).sum()
    gx, gh, none = ag.grad(loss, [x, hidden, unused])
    np.testing.assert_array_equal(gh.numpy(), 2 * hidden.numpy())
    np.testing.assert_array_equal(gx.numpy(), 2 * hidden.numpy() * w.numpy())
    assert none is None
    assert x.grad is None and w.grad is None


def test_grad_of_a_leaf_by_itself():
    x = Tensor(3.0, requires_grad=True)
    assert ag.grad(x, x)[0].item() == 1
    x.backward()
    assert x.grad.item() == 1


def test_grad_runs_only_what_its_inputs_need():
    class Explodes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise AssertionError("this gradient was not requested")

    x, y = leaf(1), leaf(2)
    assert ag.grad((x * 2 + Explodes.apply(y)).sum(), x)[0].item() == 2


def test_needs_says_which_arguments_need_a_gradient():
    seen = []

    class Spy(Function):
        @staticmethod
        def forward(ctx, a, number, b):
            seen.append(list(ctx.needs))
            return a * number * b

        @staticmethod
        def backward(ctx, g):
            return None, g * 6  # one per Tensor argument

    a, b = Tensor([1.0]), leaf(2)
    y = Spy.apply(a, 6.0, b)
    y.backward()
    with ag.no_grad():
        Spy.apply(a, 6.0, b)
    assert seen == [[False, False, True], [False, False, False]]
    assert b.grad.item() == 6


def test_a_freed_graph_says_so_and_retain_graph_keeps_it():
    x = leaf(1, 2)
    y = (x.exp() * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp([1, 2]) * (np.array([1, 2]) + 1), rtol=1e-6)
    with pytest.raises(RuntimeError, match=r"freed by an earlier backward.*retain_graph=True"):
        y.backward()


def test_first_derivatives_only():
    x = leaf(1, 2)
    (g,) = ag.grad((x * x).sum(), x)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        ag.grad(g.sum(), x)


def test_backward_needs_a_gradient_for_more_than_one_number():
    x = leaf(1, 2)
    with pytest.raises(RuntimeError, match=r"shape \(2,\) needs a gradient of that shape"):
        (x * 2).backward()
    with pytest.raises(ValueError, match=r"must have the output's shape \(2,\), got \(3,\)"):
        (x * 2).backward(np.ones(3))
    (x * 2).backward([1, 10])
    np.testing.assert_array_equal(x.grad.numpy(), [2, 20])


def test_backward_without_a_graph_says_so():
    with pytest.raises(RuntimeError, match="depends on nothing that requires grad"):
        Tensor(1.0).backward()
    with pytest.raises(RuntimeError, match="input 0 does not require grad"):
        ag.grad(leaf(1).sum(), Tensor(1.0))


def test_a_wrong_backward_is_named():
    def function(backward_result):
        class Wrong(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return backward_result(g)

        return Wrong

    x = leaf(1, 2)
    for result, message in [
        (lambda g: g[:1], r"wrong: gradient 0 must be \(2,\) float32 on cpu like its input, got \(1,\) float32"),
        (lambda g: g.astype(np.float64), r"wrong: .* got \(2,\) float64"),
        (lambda g: (g, g), "wrong: backward must return 1 gradients, one per Tensor, got 2"),
        (Tensor, "wrong: backward must return arrays, got a Tensor"),
        (lambda g: None, r"wrong: backward returned None \(a forgotten return\?\)"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            function(result).apply(x).backward([1, 1])
    with pytest.raises(ZeroDivisionError) as error:
        function(lambda g: 1 // 0).apply(x).backward([1, 1])
    assert "in the backward of wrong, whose output has shape (2,)" in error.value.__notes__[0]


def test_backward_may_stop_the_gradient():
    class Stop(Function):
        @staticmethod
        def forward(ctx, x, result):
            ctx.save(result)
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return ctx.saved[0]

    x = leaf(1, 2)
    for result in ((None,), (None, None)):  # per Tensor, or per argument
        (Stop.apply(x, result) + x).backward([1, 1])
        np.testing.assert_array_equal(x.grad.numpy(), [1, 1])
        x.grad = None


def test_gradients_accumulate_in_out():
    x, y, unused = (Tensor(np.arange(3.0), requires_grad=True) for _ in range(3))
    out = [np.full(3, 9.0) for _ in range(3)]
    dx, dy, none = ag.grad((x * y + x).sum(), [x, y, unused], out=out)
    assert dx.data is out[0] and dy.data is out[1] and none is None
    np.testing.assert_array_equal(out, [[1, 2, 3], [0, 1, 2], [9, 9, 9]])


def test_the_gradient_of_a_leaf_by_itself_goes_to_out():
    x, out = Tensor(np.arange(3.0), requires_grad=True), np.zeros(3)
    (g,) = ag.grad(x, x, np.array([5.0, 6.0, 7.0]), out=[out])
    assert g.data is out and out.tolist() == [5, 6, 7]


def test_out_that_does_not_fit_is_refused():
    x = Tensor(np.ones(3), requires_grad=True)
    y = x * 2
    with pytest.raises(ValueError, match="out works for leaves only, but input 0 is the result of an operation"):
        ag.grad(y.sum(), [y], out=[np.ones(3)])
    with pytest.raises(ValueError, match="each input may appear only once"):
        ag.grad(y.sum(), [x, x], out=[np.ones(3), np.ones(3)])
    with pytest.raises(ValueError, match=r"out\[0\] must be \(3,\) float64 like its input, got \(3,\) float32"):
        ag.grad(y.sum(), [x], out=[np.ones(3, np.float32)])
