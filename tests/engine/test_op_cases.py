"""Gradients of every operation from the table of cases: numerical check, reference, memory layouts, completeness."""

import inspect

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor, ops
from autograd.cases import CASES, Case, roundings_apart
from tests.strategies import LAYOUTS, laid_out


def subclasses(cls: type[Function]) -> list[type[Function]]:
    return [sub for direct in cls.__subclasses__() for sub in (direct, *subclasses(direct))]


ALL_FUNCTIONS = [c for c in subclasses(Function) if c.__module__.startswith("autograd.") and c.__name__[0] != "_"]
FUNCTIONS = [cls for cls in ALL_FUNCTIONS if cls.backward is not Function.backward]
ENDS_OF_GRAPHS = {cls.name for cls in ALL_FUNCTIONS} - {cls.name for cls in FUNCTIONS}  # see test_logic.py
DIFFERENTIABLE = {*ops.__all__} - ENDS_OF_GRAPHS
FUSED = [cls for cls in FUNCTIONS if hasattr(cls, "reference")]


def functions_used(case: Case) -> set[type[Function]]:
    """The Functions in the graph that a case records."""
    tensors = [Tensor(x, requires_grad=True) for x in case.arrays()]
    stack, seen = [case.fn(*tensors).node], set()
    while stack:
        node = stack.pop()
        if isinstance(node, ag.Context):
            seen.add(node.function)
            stack.extend(node.parents)
    return seen


def test_every_operation_has_a_case():
    for size in ("wide", "tall"):
        assert {case.op for case in CASES if case.variant == size} == DIFFERENTIABLE
    assert {case.op for case in CASES if case.variant not in ("wide", "tall")} == DIFFERENTIABLE
    public = {name for name, value in vars(ops).items() if inspect.isfunction(value)}
    assert public == set(ops.__all__)


def test_every_function_is_reached_by_a_case():
    reached = set().union(*(functions_used(case) for case in CASES))
    assert reached >= {cls for cls in FUNCTIONS if cls.__name__ != "ToDevice"}  # needs two devices


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients(case, seed):
    ag.check_grads(case.fn, case.arrays(seed), seed=seed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_do_not_depend_on_the_memory_layout(case):
    arrays = case.arrays()
    want = values_and_gradients(case.fn, arrays)
    for layout in LAYOUTS:
        got = values_and_gradients(case.fn, [laid_out(x, layout) for x in arrays])
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def values_and_gradients(fn, arrays):
    tensors = [Tensor(x, requires_grad=True) for x in arrays]
    output = fn(*tensors)
    cotangent = np.random.default_rng(5).standard_normal(output.shape)
    return [output.numpy(), *(g.numpy() for g in ag.grad(output, tensors, cotangent))]


def test_fused_operations_carry_a_reference():
    names = {cls.__name__ for cls in FUSED}
    fused = {
        "Linear",
        "Softmax",
        "LogSoftmax",
        "LayerNorm",
        "Gelu",
        "Dropout",
        "CrossEntropy",
        "BceWithLogits",
        "KlDiv",
    }
    assert names >= fused


@pytest.mark.parametrize("cls", FUSED, ids=lambda cls: cls.name)
def test_fused_equals_its_reference(cls, monkeypatch):
    cases = [case for case in CASES if cls in functions_used(case)]
    assert cases
    fused = [values_and_gradients(case.fn, case.arrays()) for case in cases]
    monkeypatch.setattr(cls, "apply", cls.reference)
    for case, want in zip(cases, fused, strict=True):
        assert cls not in functions_used(case)
        got = values_and_gradients(case.fn, case.arrays())
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_is_close_to_float64(case):
    got, want = case.run("cpu", np.float32), case.run("cpu", np.float64, rounded_to=np.float32)
    assert {x.dtype for x in got} == {np.dtype(np.float32)}
    assert roundings_apart(got, want, np.float32) < 8 * case.slack(np.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float16_is_kept_and_close_to_float64(case):
    check_float16(case)


def check_float16(case: Case) -> None:
    """Compare values and gradients in float16 with float64 ones of the same inputs."""
    got, want = case.run("cpu", np.float16), case.run("cpu", np.float64, rounded_to=np.float16)
    largest = max(4, *(np.abs(x).max() for x in want))  # the cotangent reaches 4
    for a, b in zip(got, want, strict=True):
        assert a.dtype == np.float16
        np.testing.assert_allclose(a.astype(float), b, rtol=0, atol=6e-3 * np.abs(b).max() + 2e-4 * largest)
