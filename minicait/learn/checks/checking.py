"""The check of chapter 4's gradient check: it must pass what is right, and catch every mistake."""

from __future__ import annotations

import numpy as np

from ..exercise import Wrong
from ..learner import Learner
from . import mistakes
from .mistakes import CONSTANT, MANNERS, OPERATIONS, SQUARE, VALUES, A, X


def gradient_check(me: Learner) -> str:
    theirs, caught = me.get("checking.gradient_is_right"), 0
    for name, op in (OPERATIONS | CONSTANT).items():
        f, backward = mistakes.value_of(op), mistakes.backward_of(op)
        me.case = name
        for seed in range(2):
            if _verdict(theirs(f, backward, X.copy(), seed)) is False:
                raise Wrong("a right gradient was called wrong")
        if name in CONSTANT:
            continue
        right = backward(X, np.ones(f(X).shape) + np.arange(f(X).size).reshape(f(X).shape))
        for mistake, change in VALUES.items():
            if np.array_equal(change(right), right):
                continue
            if _verdict(theirs(f, mistakes.spoiled(backward, change), X.copy())) is True:
                raise Wrong(f"a gradient that is {mistake} was called right")
            caught += 1
        for mistake, manner in MANNERS.items():
            if mistake == "edits v" and f(X).ndim == 0:
                continue  # v may be a NumPy scalar, which nothing can edit
            if _verdict(theirs(f, manner(backward), X.copy())) is True:
                raise Wrong(f"a backward that {mistake} was called right")
            caught += 1
    me.case = SQUARE
    if _verdict(theirs(mistakes.value_of(OPERATIONS[SQUARE]), lambda x, v: A @ v, X.copy())) is True:
        raise Wrong("a gradient with J instead of J^T was called right: are u and v independent?")
    caught += 1
    return f"it caught {caught} of {caught} mistakes"


def _verdict(result: object) -> bool:
    if not isinstance(result, bool | np.bool_):
        raise Wrong(f"the result is {result!r}, expected True or False")
    return bool(result)
