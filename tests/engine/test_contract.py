"""check_grads on backwards that compute the right derivative once, and break the rules in another way."""

import numpy as np
import pytest

import autograd as ag
from autograd import Function


def square(backward):
    """x * x, with the given backward."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save(x, {"unused": np.ones(2)})
            return x * x

    Square.backward = staticmethod(backward)
    return Square.apply


def edits_upstream(ctx, g):
    result = 2 * g * ctx.saved[0]
    g *= 2
    return result


def edits_saved(ctx, g):
    result = 2 * g * ctx.saved[0]
    ctx.saved[0][...] += 1
    return result


def edits_saved_in_a_dict(ctx, g):
    """Not to be seen in the result."""
    ctx.saved[1]["unused"][...] += 1
    return 2 * g * ctx.saved[0]


CALLS = []


def counts_calls(ctx, g):
    CALLS.append(1)
    return g * 2 * ctx.saved[0] * (1 + 1e-9 * len(CALLS))


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (edits_upstream, "square: backward edited the upstream gradient in place"),
        (edits_saved, "square: backward edited an array that forward saved"),
        (edits_saved_in_a_dict, "square: backward edited an array that forward saved"),
        (counts_calls, "wrong the second time: it keeps a state"),
        (lambda ctx, g: 2 * g * ctx.saved[0] + 1e-9, "for a zero upstream gradient"),
        (lambda ctx, g: 2 * np.clip(g, -100, 100) * ctx.saved[0], "it is not linear"),
        (lambda ctx, g: 2 * np.where(np.abs(g) < 1e-4, 0, g) * ctx.saved[0], "it is not linear"),
        (lambda ctx, g: 2 * g.ravel("K").reshape(g.shape) * ctx.saved[0], "for a transposed upstream gradient"),
        (lambda ctx, g: 2 * g * ctx.saved[0] * (1 + (g.strides[0] < 0)), "for a reversed upstream gradient"),
        (lambda ctx, g: 2 * g * ctx.saved[0] * (1 + (g.strides[0] > 24)), "for a sliced upstream gradient"),
        (lambda ctx, g: 2 * g * ctx.saved[0] * (1 + (0 in g.strides)), "that is broadcast along axes"),
    ],
    ids=[
        "upstream",
        "saved",
        "saved in a dict",
        "state",
        "zero",
        "large",
        "small",
        "transposed",
        "reversed",
        "sliced",
        "broadcast",
    ],
)
def test_a_broken_contract_is_named(backward, message):
    with pytest.raises(ag.GradientError, match=message):
        ag.check_grads(square(backward), np.arange(1.0, 7).reshape(2, 3))


def test_a_broken_contract_is_found_inside_a_network():
    """An operation in the middle gets whatever its consumers return: here a contiguous gradient."""
    wrong = square(lambda ctx, g: 2 * g.ravel("K").reshape(g.shape) * ctx.saved[0])
    with pytest.raises(ag.GradientError, match="square: backward is wrong for a transposed"):
        ag.check_grads(lambda x: (wrong(x) * 2).tanh(), np.arange(1.0, 7).reshape(2, 3) / 7)


def test_an_edited_input_or_output_is_caught():
    class EditsInput(Function):
        @staticmethod
        def forward(ctx, x):
            x[x < 0] = 0.5  # a second time, it changes nothing
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class EditsOutput(Function):
        @staticmethod
        def forward(ctx, x):
            EditsOutput.output = y = x * 2
            return y

        @staticmethod
        def backward(ctx, g):
            EditsOutput.output *= 2
            return g * 2

    for cls, name in ((EditsInput, "input 0"), (EditsOutput, "the output of another call")):
        with pytest.raises(ag.GradientError, match=f"{name} was edited in place"):
            x = np.array([-1.0, 1.0, 2.0])
            ag.check_grads(cls.apply, x)
        assert x.tolist() == [-1, 1, 2]


def test_a_state_between_two_graphs_is_caught():
    class OnTheClass(Function):
        @staticmethod
        def forward(ctx, x):
            OnTheClass.x = x
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * OnTheClass.x

    class FirstCall(Function):
        @staticmethod
        def forward(ctx, x):
            if not hasattr(FirstCall, "mask"):
                FirstCall.mask = x > 0
            return np.maximum(x, 0)

        @staticmethod
        def backward(ctx, g):
            return g * FirstCall.mask

    with pytest.raises(ag.GradientError, match="two runs gave different gradients of input 0: fn keeps a state"):
        ag.check_grads(OnTheClass.apply, np.arange(1.0, 4))
    with pytest.raises(ag.GradientError, match="at the inputs given it is right: is something kept between calls"):
        ag.check_grads(FirstCall.apply, np.array([-1.0, 2, -3, -4]))


def test_other_inputs_are_tried_only_where_fn_accepts_them():
    def fn(x):
        if x.numpy()[0] > x.numpy()[1]:
            raise ValueError("expected sorted values")
        return x * x

    ag.check_grads(fn, np.array([1.0, 2.0]))
    ag.check_grads(lambda x: 1 / (x - [1.0, 1.5, 2.0]), np.array([2.0, 1.0, 1.5]))  # rolled: a division by zero


def test_an_output_that_depends_on_recording_is_caught():
    class Frozen(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if ctx.needs[0] else x * 2 + 1

        @staticmethod
        def backward(ctx, g):
            return g * 2

    with pytest.raises(ag.GradientError, match="the output differs when nothing requires grad"):
        ag.check_grads(Frozen.apply, np.ones(3))


def test_a_random_function_is_named():
    with pytest.raises(ag.GradientError, match="two calls gave different outputs: fn is random or keeps a state"):
        ag.check_grads(lambda x: ag.ops.dropout(x, 0.5, ag.random.unnamed()), np.ones(20))


def test_a_state_that_does_not_depend_on_the_order_is_caught():
    class Largest(Function):
        @staticmethod
        def forward(ctx, x):
            Largest.of_the_latest = np.abs(x).max()
            return x * np.abs(x).max()

        @staticmethod
        def backward(ctx, g):
            return g * Largest.of_the_latest  # right but for the largest value, which is not moved here

    with pytest.raises(ag.GradientError, match="keeps a state"):
        ag.check_grads(lambda x: Largest.apply(x), np.array([1.0, 2.0, -3.0]))


def test_no_gradient_for_zero_is_zero():
    def backward(ctx, g):
        return 2 * g * ctx.saved[0] if g.any() else (None,)

    ag.check_grads(square(backward), np.arange(1.0, 7).reshape(2, 3))
