"""Checks of chapter 3: broadcasting and matmul."""

from __future__ import annotations

import numpy as np

from autograd import ops
from autograd.function import unbroadcast

from ..compare import same, unchanged
from ..functions import EXAMPLE, check_function, normal, table
from ..learner import Learner

SHAPES = [  # of an input, and of what it was broadcast to
    ((4,), (3, 4)), ((3, 1), (3, 4)), ((3, 1), (2, 3, 4)), ((), (2, 3)), ((1, 1), (5, 1)), ((2, 1, 4), (2, 3, 4)),
    ((3, 4), (3, 4)), ((1,), (0,)), ((1, 4), (0, 4)),
    ((3, 1), (3, 3)), ((1, 3), (3, 3)), ((3,), (3, 3)), ((), (3, 3)),  # sizes that do not tell the axes apart
    ((2, 1, 2), (2, 2, 2)), ((2, 1), (2, 2, 2)), ((1, 2, 1), (2, 2, 2)), ((1, 3), (1, 3)), ((1,), (3, 1)),
]  # fmt: skip


def unbroadcasting(me: Learner) -> None:
    theirs = me.get("tensor.unbroadcast")
    rng = np.random.default_rng(0)
    me.case = EXAMPLE
    same("the result", theirs(np.ones((2, 3, 4)), (3, 1)), np.full((3, 1), 8.0))
    for shape, large in SHAPES:
        me.case = f"from {large} to {shape}"
        g = rng.standard_normal(large)
        given = g.copy()
        same("the result", theirs(given, shape), unbroadcast(g, shape))
        unchanged("unbroadcast", ["g"], [given], [g])
    for name, ours in (("Add", ops.add), ("Multiply", ops.multiply)):
        label = f"{name}.backward for shapes "
        cases = [*table(name.lower(), "broadcast", prefix=label), normal(f"{label}(3, 1), ()", (3, 1), ())]
        check_function(me, me.get(f"tensor.{name}"), ours, ("a", "b"), cases)


def matmul(me: Learner) -> None:
    cases = [
        normal("(3, 4) @ (4, 2)", (3, 4), (4, 2)),
        normal("(2, 3, 4) @ (2, 4, 5)", (2, 3, 4), (2, 4, 5)),
        normal("(2, 3, 4) @ (4, 5): one matrix for all", (2, 3, 4), (4, 5)),
        normal("(3, 4) @ (2, 5, 4, 3)", (3, 4), (2, 5, 4, 3)),
        normal("(1, 2, 3, 4) @ (5, 1, 4, 2)", (1, 2, 3, 4), (5, 1, 4, 2)),
        normal("(1, 1) @ (1, 1)", (1, 1), (1, 1)),
        normal("no rows: (2, 0, 4) @ (4, 3)", (2, 0, 4), (4, 3)),
        *table("matmul", "broadcast batches", "wide", "many", between=" @ "),
    ]
    check_function(me, me.get("tensor.MatMul"), ops.matmul, ("a", "b"), cases)
