"""Checks of chapter 1."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

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
            _central(theirs, f, x, 1e-5, derivative(x))
    me.case = "f = x^3, x = 2, delta = 0.5"
    _central(functools.partial(theirs, delta=0.5), FUNCTIONS["x^3"][0], 2.0, 0.5, 12.25)


def _central(theirs: Any, f: Callable[[float], float], x: float, delta: float, want: float) -> None:
    """Raise Wrong unless f is called on both sides of x, and has this derivative."""
    asked: deque[float] = deque(maxlen=9)  # an endless loop does not fill the memory

    def watched(*at: float) -> float:
        asked.extend(at)
        return f(*at)

    result, points = theirs(watched, x), [x - delta, x + delta]
    called = sorted({*asked})
    if result is not None and called and (len(called) != 2 or not np.allclose(called, points, rtol=0, atol=1e-9)):
        at, expected = (" and ".join(f"{x:.10g}" for x in some) for some in (asked, points))
        raise Wrong(f"f was called at {at}, expected {expected}")
    slips = [("the distance of the two points is 2 delta", want * factor) for factor in (2, 2 * delta)]
    same("the derivative", result, want, close=1e-8, slips=slips)


def neuron_gradient(me: Learner) -> None:
    theirs, names = me.get("by_hand.neuron_gradient"), ("dL/dw", "dL/db", "dL/dx")
    for x, w, b, t in NEURONS:
        me.case = f"x = {x:g}, w = {w:g}, b = {b:g}, t = {t:g}"
        leaves = [ag.Tensor(np.array(v), requires_grad=True) for v in (w, b, x)]
        vw, vb, vx = leaves
        y = (vw * vx + vb).tanh()
        wanted = [g.numpy() for g in ag.grad((y - t) ** 2 * 0.5, leaves) if g is not None]
        found = theirs(x, w, b, t)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Wrong(f"expected the three numbers (dL/dw, dL/db, dL/dx), got {found!r}")
        for name, got, want in zip(names, found, wanted, strict=True):
            others = [other for other in zip(names, wanted, strict=True) if other[0] != name]
            slips = [(f"this is {other}; the order is {', '.join(names)}", value) for other, value in others]
            slips.append(("the factor 1 - y^2, from tanh, is missing", want / (1 - y.numpy() ** 2)))
            slips.append(("the 2 of the square and the 1/2 cancel", 2 * want))
            same(name, got, want, slips=slips)
