"""What counts as the same, and the sentence if it is not."""

import array

import numpy as np
import pytest

from minicait.learn.compare import same
from minicait.learn.exercise import Wrong

SINGLE = np.float32(1.5)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (1.5, 1.5), (np.float64(1.5), 1.5), (np.array(1.5), 1.5), (1.5, SINGLE), (SINGLE, np.array(SINGLE)),
        (2, np.array(2)), (True, np.array(True)), (np.ones((2, 0)), np.ones((2, 0))),
    ],
)  # fmt: skip
def test_the_same(got, want):
    same("it", got, want)


@pytest.mark.parametrize(
    ("got", "want", "sentence"),
    [
        (None, 1.5, "it is None: is there a `return`?"),
        (1, 1.0, "it is int, expected float64"),
        (True, 1.0, "it is bool, expected float64"),
        (np.int64(1), 1.0, "it is int64, expected float64"),
        (np.array(1), 1.0, "it is int64, expected float64"),
        (SINGLE, 1.5, "it is float32, expected float64"),
        (1.5, np.array(1), "it is float64, expected int64"),
        (array.array("d"), 1.5, "it is an array, expected a number"),
        ([1.5], 1.5, "it is a list, expected a number"),
        ([1.5], np.array([1.5]), "it is a list, expected an array of shape (1,)"),
        (1.5, np.array([1.5]), "it is the number 1.5, expected an array of shape (1,)"),
        (np.float64(1.5), np.array([1.5]), "it is the number 1.5, expected an array of shape (1,)"),
        (np.array(1.5), np.array([1.5]), "it has shape (), expected (1,)"),
        (np.array([1.5]), 1.5, "it has shape (1,), expected ()"),
        (np.array(1.5, object), 1.5, "it is object, expected float64"),
        (1.5, 2.5, "it is wrong: yours 1.500, expected 2.500"),
        (float("nan"), 2.5, "it is wrong: yours nan, expected 2.5"),
    ],
)
def test_not_the_same(got, want, sentence):
    with pytest.raises(Wrong) as wrong:
        same("it", got, want)
    assert str(wrong.value) == sentence


def test_the_usual_cause_is_named_only_where_it_can_apply():
    with pytest.raises(
        Wrong, match=r"is float64, expected float32: something in it is float64, such as .*np\.ones.*np\.sqrt\(2\)"
    ):
        same("it", np.ones(2), np.ones(2, np.float32))
    with pytest.raises(Wrong, match=r"is float32, expected float64$"):
        same("it", np.ones(2, np.float32), np.ones(2))


def test_the_sentence_about_a_slip():
    slips = [("half of it", 1.25), ("not the sum", np.ones(2)), ("too large", np.inf)]

    def said(got, want):
        with pytest.raises(Wrong) as wrong:
            same("it", got, want, slips=slips)
        return str(wrong.value)

    assert said(1.25, 2.5) == "it is wrong: yours 1.250, expected 2.500; half of it"
    assert said(np.ones(2), np.ones(2) * 3).endswith("expected 3.000; not the sum")
    assert said(np.ones(3), np.ones(3) * 3).endswith("expected 3.000")
    assert said(np.array([3, np.nan]), np.ones(2) * 3).endswith("; too large")
    assert said(1.5, 2.5).endswith("expected 2.500")
    assert said(1.25 + 1e-7, 1.25) == "it is wrong: yours 1.2500001, expected 1.2500000"
    same("it", 1.25, 1.25, slips=slips)
