"""check_grads: accepted inputs, error messages, and kinks."""

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor, ops


class HalfWrong(Function):
    """sin with a backward that is wrong in one entry."""

    @staticmethod
    def forward(ctx, x):
        ctx.save(x)
        return np.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved
        slope = np.cos(x)
        slope[1, 2] = 1
        return g * slope


def test_the_message_names_entry_values_operation_and_seed():
    x = np.linspace(0.5, 2, 6).reshape(2, 3)
    with pytest.raises(ag.GradientError) as error:
        ag.check_grads(lambda t: HalfWrong.apply(t) * 2, x, seed=11)
    message = str(error.value)
    assert "the gradient of input 0, shape (2, 3), is wrong" in message
    assert "operations: multiply <- half_wrong; seed 11" in message
    assert "worst entry of the Jacobian: d output[1, 2] / d input[1, 2]" in message
    assert "analytic  2\n" in message and f"numerical {2 * np.cos(2):.9g}" in message
    assert "1 of 36 entries differ" in message


def test_an_error_is_an_assertion_error():
    assert issubclass(ag.GradientError, AssertionError) and issubclass(ag.KinkError, ag.GradientError)


def test_inputs_may_be_arrays_tensors_lists_and_integers():
    ag.check_grads(lambda a, b: a * b, [0.5, 1.0])
    ag.check_grads(ops.sqrt, [1e-4, 1.0])  # fn takes one argument
    ag.check_grads(lambda a, b: a * b, [Tensor([1.0, 2.0]), np.float32([3.0])])
    ag.check_grads(lambda x, i: x[i], [np.ones((3, 2)), np.array([0, 0, 2])])
    ag.check_grads(lambda x: x.sum(), np.zeros((0, 3)))


def test_an_ignored_input_has_gradient_zero():
    ag.check_grads(lambda a, b: a * 2, [np.ones(2), np.ones(3)])
    ag.check_grads(lambda a: Tensor(np.ones(2, a.dtype)), np.ones(2))


def test_a_detached_path_is_caught():
    with pytest.raises(ag.GradientError, match="is wrong"):
        ag.check_grads(lambda x: x * x.detach(), np.ones(3))
    with pytest.raises(ag.GradientError, match="the analytic gradient is zero"):
        ag.check_grads(lambda x: x.detach() * 2, np.ones(3))


@pytest.mark.parametrize(
    ("fn", "x"),
    [(lambda t: abs(t - 1), [1 + 1e-10, 1.0]), (ops.relu, [0.0, 1.0]), (lambda t: t.max(), [1.0, 1 + 1e-10])],
    ids=["abs", "relu", "max"],
)
def test_a_kink_is_reported_as_one(fn, x):
    with pytest.raises(ag.KinkError, match=r"not smooth within \S+ of input 0"):
        ag.check_grads(fn, np.array(x))


@pytest.mark.parametrize("fn", [ops.sqrt, ops.log, ops.relu, ops.abs, lambda t: 1 / t, lambda t: t**0.3])
@pytest.mark.parametrize("x", [[1e-4, 1.0], [1e-6, 1e-3, 3.0], [1e-7] * 40, [1e-12, 1e-9]])
def test_small_values_take_small_steps(fn, x):
    ag.check_grads(fn, np.array(x), float32_tolerance=None)


@pytest.mark.parametrize("size", [2, 100])
@pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("factor", [0, 1.01, 7])
def test_a_mistake_at_small_values_is_caught(size, small, factor):
    """Among many values, and where fn bends so strongly that only small steps tell."""
    x = np.linspace(0.5, 2, size)
    x[size // 2] = small
    for fn, derivative in (
        (np.sqrt, lambda t: 0.5 / np.sqrt(t)),
        (np.tanh, lambda t: 1 - np.tanh(t) ** 2),
        (np.square, lambda t: 2 * t),
        (lambda t: t + 1, np.ones_like),
    ):
        with pytest.raises(ag.GradientError, match="is wrong"):
            ag.check_grads(scaled_where(fn, derivative, factor, lambda t: t < 2 * small), x, float32_tolerance=None)


def test_a_kink_is_no_excuse_for_a_wrong_gradient():
    """Far from the kink, a wrong relu is wrong."""

    class WrongRelu(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save(x > 0)
            return np.maximum(x, 0)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved[0] * 1.01

    with pytest.raises(ag.GradientError) as error:
        ag.check_grads(WrongRelu.apply, np.array([1.0, 2.0, -1.0]))
    assert not isinstance(error.value, ag.KinkError)


def test_strong_curvature_is_not_a_kink():
    ag.check_grads(lambda x: ops.exp(x * 10), np.array([0.1, 0.5]))
    ag.check_grads(lambda x: 1 / x, np.array([0.05, 0.1]))
    ag.check_grads(lambda x: x * x, np.array([1e4, 1e-4]))


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (ops.log, [0.02, 0.001]), (ops.sqrt, [1e-3]), (ops.exp, [100.0]), (lambda t: 1 / t, [0.01]),
        (ops.relu, [-5e-4, 5e-4]), (ops.softmax, [1.0, -np.inf, 2.0]), (lambda t: (t * 1e3).tanh(), [1e-3]),
    ],
    ids=["log", "sqrt", "exp", "1/x", "relu", "softmax", "tanh"],
)  # fmt: skip
def test_right_gradients_pass_where_fn_curves_strongly(fn, x):
    ag.check_grads(fn, np.array(x), float32_tolerance=None)


def scaled_where(fn, derivative, factor, wrong):
    """fn with a backward that is off by a factor where `wrong` is true."""

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save(x)
            return fn(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved
            return g * derivative(x) * np.where(wrong(x), factor, 1).astype(x.dtype)

    return Scaled.apply


@pytest.mark.parametrize("factor", [7, 1.01])
@pytest.mark.parametrize("x", [0.05, 0.1])
def test_strong_curvature_is_no_excuse(factor, x):
    fn = scaled_where(lambda t: 1 / t, lambda t: -1 / t**2, factor, lambda t: t > 0)
    with pytest.raises(ag.GradientError) as error:
        ag.check_grads(fn, np.array([x]))
    assert not isinstance(error.value, ag.KinkError)


def test_large_derivatives_do_not_hide_small_ones():
    fn = scaled_where(lambda t: t * t, lambda t: 2 * t, 7, lambda t: t < 10)
    with pytest.raises(ag.GradientError, match="is wrong"):
        ag.check_grads(fn, np.array([1e4, 1.0]))


def test_float32_tolerance_is_relative_to_the_gradient():
    fn = scaled_where(lambda t: t * 5e-5, lambda t: 5e-5, 0, lambda t: t.dtype == np.float32)
    with pytest.raises(ag.GradientError, match="float32 gradient"):
        ag.check_grads(fn, np.ones(3))


def test_a_mistake_with_frozen_inputs_is_caught():
    class NeedsBoth(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved
            factor = 1 if all(ctx.needs) else 7
            return g * b * factor, g * a * factor

    with pytest.raises(ag.GradientError, match="input 0 gets a different gradient when it alone requires grad"):
        ag.check_grads(NeedsBoth.apply, [np.ones(2), np.ones(2)])


def test_a_function_that_is_not_finite_is_named():
    with pytest.raises(ag.GradientError, match="fn is not finite within 8e-09 of input 0"), np.errstate(all="ignore"):
        ag.check_grads(lambda x: ops.log(x - 1), np.array([1 + 1e-10]))


def test_nan_gradients_are_caught():
    class Nan(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * np.nan

    with pytest.raises(ag.GradientError, match="NaN or Inf"):
        ag.check_grads(Nan.apply, np.ones(2))


def test_large_inputs_are_explained_without_the_jacobian():
    with pytest.raises(ag.GradientError, match="too large for the whole Jacobian"):
        ag.check_grads(lambda x: x * x.detach(), np.ones(10_000))


def test_the_cotangent_is_not_the_input():
    """If one seed drew both, they would be equal, and the backward of layer norm maps x to zero."""

    class TimesSeven(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return 7 * g

    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 7))
        with pytest.raises(ag.GradientError, match="7 times"):
            ag.check_grads(lambda x: ops.layer_norm(TimesSeven.apply(x), np.ones(7), np.zeros(7), eps=0), x, seed=seed)


def test_a_whole_network():
    rng = np.random.default_rng(0)
    shapes = [(2, 5, 6), (12, 6), (12,), (3, 12), (6,), (6,)]

    def network(x, w1, b1, w2, scale, shift):
        hidden = ops.gelu(ops.linear(ops.layer_norm(x, scale, shift), w1, b1))
        scores = ops.softmax(hidden @ hidden.swapaxes(-1, -2) / 12**0.5)
        return ops.cross_entropy(ops.linear((scores @ hidden).mean(1), w2), [0, 2], 0.1)

    ag.check_grads(network, [rng.standard_normal(s) for s in shapes])
