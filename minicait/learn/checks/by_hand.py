"""Checks of chapter 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import autograd as ag

from ..compare import same
from ..exercise import Wrong
from ..learner import Learner

FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "sin": (math.sin, math.cos),
    "x^3": (lambda x: x**3, lambda x: 3 * x * x),
    "exp": (math.exp, math.exp),
    "5": (lambda x: 5.0, lambda x: 0.0),
}

NEURONS = [  # x, w, b, t; numerical derivatives miss the digits of the last one
    (2.0, 0.5, -0.6, 1.0), (-1.5, 0.8, 0.3, -0.2), (0.0, 1.0, 0.4, 0.0), (3.0, 20.0, 0.0, 1.0), (40.0, 0.01, 0.0, -1.0),
]  # fmt: skip


def numerical_derivative(me: Learner) -> None:
    theirs = me.get("by_hand.numerical_derivative")
    for name, (f, derivative) in FUNCTIONS.items():
        for x in (-2.0, 0.0, 0.7, 3.0):
            me.case = f"f = {name}, x = {x:g}"
            same("the derivative", theirs(f, x), derivative(x), close=1e-8)
    asked: list[float] = []

    def cube(x: float) -> float:
        asked.append(x)
        return x**3

    me.case = "f = x^3, x = 2, delta = 0.5"
    result = theirs(cube, 2.0, 0.5)
    if sorted({*asked}) != [1.5, 2.5]:
        raise Wrong(f"f was called at {', '.join(f'{x:g}' for x in asked) or 'no point'}, expected 1.5 and 2.5")
    same("the derivative", result, 12.25)


def neuron_gradient(me: Learner) -> None:
    theirs = me.get("by_hand.neuron_gradient")
    for x, w, b, t in NEURONS:
        me.case = f"x = {x:g}, w = {w:g}, b = {b:g}, t = {t:g}"
        leaves = [ag.Tensor(np.array(v), requires_grad=True) for v in (w, b, x)]
        vw, vb, vx = leaves
        wanted = [g.numpy() for g in ag.grad(((vw * vx + vb).tanh() - t) ** 2 * 0.5, leaves) if g is not None]
        found = theirs(x, w, b, t)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Wrong(f"expected the three numbers (dL/dw, dL/db, dL/dx), got {found!r}")
        for name, got, want in zip(("dL/dw", "dL/db", "dL/dx"), found, wanted, strict=True):
            same(name, got, want)
