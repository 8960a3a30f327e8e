"""Mutation tests of the gradient check: wrong backwards are injected into every operation, and all must be caught.

The usual check (an all-ones cotangent) misses a factor of 7 or 0 on the softmax; a test below shows that.
"""

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor, ops
from autograd.cases import CASES
from autograd.function import Context
from autograd.ops.nn import Softmax
from tests.engine.test_op_cases import functions_used


def scaled(factor):
    return lambda gradients: [None if g is None else g * g.dtype.type(factor) for g in gradients]


def transposed(gradients):
    return [None if g is None else np.ascontiguousarray(g.T).reshape(g.shape) for g in gradients]


def rolled(gradients):
    return [None if g is None else np.roll(g, 1) for g in gradients]


def last_entry_lost(gradients):
    kept = [None if g is None else g.copy() for g in gradients]
    for g in kept:
        if g is not None:
            g[(-1,) * g.ndim] = 0
    return kept


def swapped(gradients):
    return gradients[::-1]


MUTATIONS = {
    "times 7": scaled(7),
    "times 1.001": scaled(1.001),
    "zero": scaled(0),
    "sign": scaled(-1),
    "transposed": transposed,
    "rolled by one": rolled,
    "last entry lost": last_entry_lost,
    "gradients swapped": swapped,
}


def caught(case) -> bool:
    try:
        ag.check_grads(case.fn, case.arrays(), float32_tolerance=None)
    except ag.GradientError:
        return True
    return False


def mutate(monkeypatch, cls: type[Function], change) -> list[bool]:
    """Mutate a Function's backward. The list says for each call whether that changed the gradients."""
    backward = cls.backward
    changed: list[bool] = []

    def wrong(ctx, g):
        result = backward(ctx, g)
        right = list(result) if isinstance(result, tuple) else [result]
        new = list(change(right))
        changed.append(not all(same(a, b) for a, b in zip(right, new, strict=True)))
        return tuple(new)

    monkeypatch.setattr(cls, "backward", staticmethod(wrong))
    return changed


def same(a, b) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_operation_has_a_case_that_catches(mutation):
    """For each Function, inject, run its cases, and require that each case whose gradient changed is caught."""
    survivors, injected = [], 0
    for case in CASES:
        if mutation == "gradients swapped" and len(case.inputs) == 1:
            continue  # both gradients go to the same input, and their sum is unchanged
        for cls in functions_used(case):
            with pytest.MonkeyPatch.context() as patch:
                changed = mutate(patch, cls, MUTATIONS[mutation])
                was_caught = caught(case)
                if any(changed):
                    injected += 1
                    if not was_caught:
                        survivors.append(f"{case}: {cls.name}")
    assert not survivors
    assert injected >= (20 if mutation == "gradients swapped" else 60)
    print(f"{mutation}: {injected} injected, all caught")


def test_missing_unbroadcast_is_caught(monkeypatch):
    monkeypatch.setattr(Context, "unbroadcast", lambda ctx, i, g: g if ctx.needs[i] else None)
    broadcasting = [c for c in CASES if c.variant == "broadcast"]
    assert len(broadcasting) >= 7
    for case in broadcasting:
        with pytest.raises(ag.GradientError, match="must be"):
            ag.check_grads(case.fn, case.arrays())


@pytest.mark.parametrize("factor", [7, 1.001, 0])
def test_softmax_scaled(monkeypatch, factor):
    """A mistake that the usual check misses, and this one catches."""
    mutate(monkeypatch, Softmax, scaled(factor))
    x = np.random.default_rng(0).standard_normal((3, 4))

    tensor = Tensor(x, requires_grad=True)
    ops.softmax(tensor).sum().backward()  # the all-ones cotangent
    numerical = np.zeros_like(x)  # the sum of a softmax is constant
    np.testing.assert_allclose(tensor.grad.numpy(), numerical, atol=1e-6)

    with pytest.raises(ag.GradientError) as error:
        ag.check_grads(ops.softmax, x)
    if factor:
        assert f"the analytic gradient is {factor} times the numerical one" in str(error.value)
    else:
        assert "the analytic gradient is zero" in str(error.value)


def test_a_backward_that_edits_its_arguments_is_caught():
    class EditsGradient(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            g *= 2
            return g

    class EditsInput(Function):
        @staticmethod
        def forward(ctx, x):
            x += 1e-9
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    for cls in (EditsGradient, EditsInput):
        with pytest.raises(ag.GradientError, match="edited in place"):
            ag.check_grads(cls.apply, np.ones(3))


def test_a_backward_with_a_state_is_caught():
    calls = []

    class Forgetful(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            return g * (2 + 1e-7 * len(calls))

    with pytest.raises(ag.GradientError, match="two runs"):
        ag.check_grads(Forgetful.apply, np.ones(3))


def test_a_gradient_for_a_zero_cotangent_is_caught():
    class Constant(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + 1e-9

    with pytest.raises(ag.GradientError, match="zero cotangent"):
        ag.check_grads(Constant.apply, np.ones(3))


def test_a_float32_only_mistake_is_caught():
    class Sloppy(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * (2.01 if g.dtype == np.float32 else 2.0)

    with pytest.raises(ag.GradientError, match="float32 gradient"):
        ag.check_grads(Sloppy.apply, np.ones(3))
