"""einsum: any subscripts without a letter twice in one operand, against NumPy and numerical gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from tests import strategies as some


@given(data=st.data(), explicit=st.booleans())
def test_any_subscripts(data, explicit):
    sizes = dict(zip("jAbk", data.draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)), strict=True))
    letters = st.lists(st.sampled_from([*sizes]), max_size=3, unique=True).map("".join)
    inputs = data.draw(st.lists(letters, min_size=1, max_size=3))
    subscripts = ",".join(inputs)
    if explicit:
        known = sorted({*subscripts} - {","})
        subscripts += "->" + "".join(data.draw(st.permutations(known)))[: data.draw(st.integers(0, len(known)))]
    xs = [data.draw(some.arrays(tuple(sizes[letter] for letter in each))) for each in inputs]
    np.testing.assert_allclose(ops.einsum(subscripts, *xs).numpy(), np.einsum(subscripts, *xs), rtol=1e-9, atol=1e-12)
    ag.check_grads(lambda *ts: ops.einsum(subscripts, *ts), xs, directions=1)


def test_only_what_other_operands_need_is_saved():
    a, b = (Tensor(np.ones((3, 3)), requires_grad=grad) for grad in (True, False))
    *_, saved_a, saved_b = ops.einsum("ij,jk->ik", a, b).node.saved
    assert saved_a is None and saved_b is b.data


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ii->i", [(2, 2)], "'ii' has a letter twice, and diagonals are not supported"),
        ("i...->i", [(2, 2)], "subscripts must be letters, commas and one '->', got 'i...->i'"),
        ("ij->i->j", [(2, 2)], "subscripts must be letters, commas and one '->'"),
        ("ij,j->i", [(2, 2)], "'ij,j->i' is for 2 operands, got 1"),
        ("ij->i", [(2,)], r"'ij' is for 2 axes, got an operand of shape \(2,\)"),
        ("ij->ii", [(2, 2)], "the result 'ii' must have letters of the operands, each once"),
        ("ij->k", [(2, 2)], "the result 'k' must have letters of the operands, each once"),
        ("i,i->i", [(1,), (2,)], "all axes 'i' must have one size, got 1 and 2"),
        ("i", [], "expected a string and operands, got 'i' and 0 operands"),
        (None, [(2,)], "expected a string and operands, got None and 1 operands"),
    ],
)
def test_errors(subscripts, shapes, message):
    with pytest.raises((ValueError, TypeError), match=f"einsum: {message}"):
        ops.einsum(subscripts, *(np.ones(shape) for shape in shapes))
