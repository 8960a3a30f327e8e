"""Operations that end the graph: their results are booleans or indices, equal to NumPy's, and need no gradient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from tests import stand_in_cupy
from tests import strategies as some
from tests.engine.test_op_cases import ENDS_OF_GRAPHS

OF_BOOLEANS = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_not": np.logical_not}
REDUCTIONS = {"any": np.any, "all": np.all}
NUMPYS = {**OF_BOOLEANS, **REDUCTIONS, "argmax": np.argmax}


def test_all_of_them_are_tested_here():
    assert set(NUMPYS) == ENDS_OF_GRAPHS <= set(ops.__all__)


def arguments(name, x):
    """Arguments for an operation, from an array of floats."""
    booleans = Tensor(x) > 0
    return [booleans] * (1 + name.endswith(("and", "or"))) if name in OF_BOOLEANS else [x]


@pytest.mark.parametrize("name", sorted(NUMPYS))
def test_the_result_has_no_gradient(name):
    x = Tensor(np.random.default_rng(0).standard_normal((3, 4)), requires_grad=True)
    y = getattr(ops, name)(*arguments(name, x))
    assert y.dtype.kind in "bi" and y.node is None and not y.requires_grad
    with pytest.raises(RuntimeError, match="depends on nothing that requires grad"):
        y.backward()
    (g,) = ag.grad((x * y.astype(x.dtype)).sum(), [x])  # a constant in what follows
    np.testing.assert_array_equal(g, np.broadcast_to(y, x.shape))


@pytest.mark.parametrize("name", sorted(NUMPYS))
def test_no_operation_assumes_numpy(name, monkeypatch):
    x = np.random.default_rng(0).standard_normal((3, 4))
    want = getattr(ops, name)(*arguments(name, Tensor(x)))
    with stand_in_cupy.installed(monkeypatch):
        y = getattr(ops, name)(*arguments(name, Tensor(x).to("cuda")))
        assert y.device == "cuda:0" and y.dtype == want.dtype
        np.testing.assert_array_equal(y.numpy(), want)


@given(data=st.data())
def test_and_or_not(data):
    a, b = (data.draw(some.arrays(shape)) > 0 for shape in data.draw(some.broadcastable()))
    for first, second in ((Tensor(a), Tensor(b)), (Tensor(a), b), (a, Tensor(b))):
        np.testing.assert_array_equal((first & second).numpy(), a & b)
        np.testing.assert_array_equal((first | second).numpy(), a | b)
    np.testing.assert_array_equal((~Tensor(a)).numpy(), ~a)
    np.testing.assert_array_equal(ops.logical_and(a, b).numpy(), a & b)


def test_a_plain_boolean_or_list_may_be_on_either_side():
    x = Tensor([-1.0, 0.5, 2.0])
    inside = (x > 0) & (x < 1)
    assert inside.numpy().tolist() == [False, True, False]
    assert (True & inside).numpy().tolist() == (inside | [False, True, False]).numpy().tolist() == [False, True, False]
    with pytest.raises(TypeError, match=r"comparisons need parentheses, \(x > 0\) & \(x < 1\)"):
        x > 0 & x < 1  # noqa: B015


@pytest.mark.parametrize("name", REDUCTIONS)
@given(data=st.data(), keepdims=st.booleans(), booleans=st.booleans())
def test_any_and_all(name, data, keepdims, booleans):
    shape = data.draw(some.shapes())
    x, axis = data.draw(some.arrays(shape)).round(), data.draw(some.axes(len(shape)))
    x = x > 0 if booleans else x
    want = REDUCTIONS[name](x, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(getattr(ops, name)(x, axis, keepdims).numpy(), want)
    np.testing.assert_array_equal(getattr(Tensor(x), name)(axis, keepdims).numpy(), want)


@given(data=st.data(), keepdims=st.booleans(), tied=st.booleans())
def test_argmax(data, keepdims, tied):
    shape = data.draw(some.shapes(min_size=1))
    x = data.draw(some.arrays(shape))
    x = x.round() if tied else x
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)) if shape else st.none())
    np.testing.assert_array_equal(ops.argmax(x, axis, keepdims).numpy(), np.argmax(x, axis, keepdims=keepdims))
