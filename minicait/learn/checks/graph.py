"""Checks of chapter 2. The graphs for 2.2 and 2.3 are made by hand, so that these need no other exercise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograd import ops

from ..compare import kind_of, same
from ..exercise import Wrong
from ..functions import check_function, table
from ..learner import Learner


def recording(me: Learner) -> None:
    make, base = me.get("tensor.Tensor"), me.get("tensor.Function")
    add, multiply = me.get("tensor.Add"), me.get("tensor.Multiply")
    for function, ours, name, sign in ((add, ops.add, "add", "+"), (multiply, ops.multiply, "multiply", "*")):
        cases = table(name, "same shape", "tall", prefix=f"a {sign} b of shapes ")
        check_function(me, function, ours, ("a", "b"), cases)

    class Power(base):  # type: ignore[misc, valid-type]
        @staticmethod
        def forward(ctx: Any, x: np.ndarray, exponent: int) -> np.ndarray:
            ctx.save(x, exponent)
            return np.asarray(x**exponent)

    def leaf(value: float, requires_grad: bool = True) -> Any:
        return make(np.array([value, 1.0]), requires_grad)

    a, b = leaf(2.0), leaf(3.0, requires_grad=False)
    for name, function, inputs, settings, want in (
        ("a + b", add, (a, b), {}, [5.0, 2.0]),
        ("b * a", multiply, (b, a), {}, [6.0, 1.0]),
        ("x ** 3, an operation of the check's own", Power, (a,), {"exponent": 3}, [8.0, 1.0]),
    ):
        me.case = name
        y = function.apply(*inputs, **settings)
        if not isinstance(y, make):
            raise Wrong(f"apply returned {kind_of(y)}, expected a Tensor")
        same("the result", y.data, np.array(want))
        _recorded(me, y, function, inputs)
    if y.node.saved[1:] != (3,):
        raise Wrong("what forward saved is not in the node: pass the node to forward as its ctx")
    me.case = "b * b, of a leaf without requires_grad"
    y = multiply.apply(b, b)
    if y.requires_grad:
        raise Wrong("the result requires a gradient, although no input does")
    if y.node is not None:
        raise Wrong("the result has a node, although no input requires a gradient")
    me.case = "(a + b) * a, with a used twice"
    y = multiply.apply(middle := add.apply(a, b), a)
    _recorded(me, y, multiply, (middle, a))
    if a.node is not None or a.grad is not None:
        raise Wrong("a leaf got a node or a gradient from an operation on it")


def _recorded(me: Learner, y: Any, function: Any, inputs: tuple[Any, ...]) -> None:
    if not y.requires_grad:
        raise Wrong("the result does not require a gradient, although an input does")
    if not isinstance(y.node, me.get("tensor.Context")):
        raise Wrong(f"the result's .node is {y.node!r}, expected a Context")
    if y.node.function is not function:
        raise Wrong(f"the node's .function is {y.node.function!r}, expected {function.__name__}")
    if len(y.node.inputs) != len(inputs) or any(i is not x for i, x in zip(y.node.inputs, inputs, strict=True)):
        raise Wrong("the node's .inputs are not the Tensors that apply was called with, in their order")


def _maker(me: Learner, function: Any = None, shape: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Makes Tensors that look as if an operation had made them, from their inputs and from what forward saved."""
    make, context, zeros = me.get("tensor.Tensor"), me.get("tensor.Context"), np.zeros(shape)

    def made(*inputs: Any, saved: tuple[Any, ...] = ()) -> Any:
        y = make(zeros, requires_grad=True)
        y.node = context(function, inputs)
        y.node.save(*saved)
        return y

    return made


def order(me: Learner) -> None:
    leaf, made = me.get("tensor.Tensor")(0.0, requires_grad=True), _maker(me)
    me.case = "consumers_first(x) of a leaf x"
    _ordered(me, leaf, 0)
    me.case = "consumers_first(y), y = x * x with a leaf x"
    y = made(leaf, leaf)
    _ordered(me, y, 1, y=y)
    me.case = "consumers_first(b), a = x + x, b = a * a with a leaf x"
    a = made(leaf, leaf)
    b = made(a, a)
    _ordered(me, b, 2, a=a, b=b)
    for last in ("d = b * c", "d = c * b"):
        me.case = f"consumers_first(d), a = x + x, b = a + x, c = a * b, {last} with a leaf x"
        b = made(a, leaf)
        c = made(a, b)
        d = made(b, c) if last == "d = b * c" else made(c, b)
        _ordered(me, d, 4, a=a, b=b, c=c, d=d)
    me.case = "60 diamonds on top of each other: 60 times y = x + x, x = y * x, with 2^60 paths"
    top = leaf
    for _ in range(60):
        top = made(made(top, top), top)
    _ordered(me, top, 120)
    me.case = "200 operations, each on 1 to 3 of the last 12 Tensors, at random"
    rng, tensors = np.random.default_rng(0), [leaf]
    for _ in range(200):
        chosen = rng.integers(max(0, len(tensors) - 12), len(tensors), size=rng.integers(1, 4))
        tensors.append(made(*(tensors[i] for i in chosen)))
    _ordered(me, tensors[-1], None)
    me.case = "a chain: 20,000 times x = f(x)"
    top = leaf
    for _ in range(20_000):
        top = made(top)
    try:
        _ordered(me, top, 20_000)
    except RecursionError:
        raise Wrong("the recursion is too deep for Python: use a loop with a list of your own") from None
    finally:
        while top.node is not None:  # or Python would free the chain recursively
            top, top.node = top.node.inputs[0], None


def _ordered(me: Learner, output: Any, size: int | None, **names: Any) -> None:
    """Raise Wrong unless consumers_first(output) is right. `names` are those of the Tensors, if there are few."""
    found = me.get("tensor.consumers_first")(output)
    if not isinstance(found, list):
        raise Wrong(f"the result is {kind_of(found)}, expected a list")
    place = {id(y): i for i, y in enumerate(found)}
    called = {id(y): name for name, y in names.items()}
    listed = ": " + ", ".join(called.get(id(y), "x") for y in found[:9]) if names and found else ""
    if len(place) < len(found):
        raise Wrong(f"the list has a Tensor twice, {len(found)} entries for {len(place)} Tensors{listed}")
    if any(y.node is None for y in found):
        raise Wrong(f"the list has a leaf{listed}")
    wanted, stack = {id(output)} if output.node is not None else set(), [output]
    while stack:
        y = stack.pop()
        for x in () if y.node is None else y.node.inputs:
            if x.node is not None and id(x) not in wanted:
                wanted.add(id(x))
                stack.append(x)
    assert size is None or len(wanted) == size
    if missing := wanted - place.keys():
        raise Wrong(f"the list has {len(wanted) - len(missing)} of {len(wanted)} Tensors{listed}")
    if len(found) > len(wanted):
        raise Wrong(f"the list has {len(found)} Tensors, {len(wanted)} of which the output was computed from{listed}")
    for y in found:
        for x in y.node.inputs:
            if x.node is not None and place[id(x)] < place[id(y)]:
                earlier, later = (called.get(id(t), f"the Tensor at [{place[id(t)]}]") for t in (x, y))
                raise Wrong(f"{earlier} is an input of {later}, so it must come after it in the list{listed}")


class _Weighted:
    """y = a x1 + b x2 + ..., with the weights saved."""

    @staticmethod
    def backward(ctx: Any, g: np.ndarray) -> Any:
        results = tuple(None if w is None else g if w == 1 else w * g for w in ctx.saved)
        return results if len(results) > 1 else results[0]


def backward(me: Learner) -> None:
    make = me.get("tensor.Tensor")

    def leaf(*shape: int, requires_grad: bool = True) -> Any:
        return make(np.zeros(shape), requires_grad)

    def weighted(inputs: list[Any], weights: list[Any]) -> Any:
        return _maker(me, _Weighted, inputs[0].shape)(*inputs, saved=tuple(weights))

    me.case = "y = 3 x, without an upstream gradient"
    x = leaf()
    weighted([x], [3.0]).backward()
    _leaf_has(x, np.array(3.0))
    me.case = "y = 3 x, a second call"
    weighted([x], [3.0]).backward()
    _leaf_has(x, np.array(6.0))
    me.case = "y = 3 x of shape (3,), without an upstream gradient"
    weighted([x := leaf(3)], [3.0]).backward()
    _leaf_has(x, np.full(3, 3.0))

    g = np.array([1.0, -2.0, 5.0])
    given = g.copy()
    me.case = "z = x + x"
    x = leaf(3)
    weighted([x, x], [1, 1]).backward(given)
    if not np.array_equal(given, g):
        raise Wrong("the upstream gradient g was changed: add into a new array")
    _leaf_has(x, 2 * g)
    me.case = "y = x + 2 x', where x' does not require a gradient"
    x, fixed = leaf(3), leaf(3, requires_grad=False)
    weighted([x, fixed], [1, 2.0]).backward(given)
    _leaf_has(x, g)
    if fixed.grad is not None:
        raise Wrong("a leaf without requires_grad got a gradient")
    me.case = "an operation that returns None for its second input"
    x, other = leaf(3), leaf(3)
    weighted([x, other], [2.0, None]).backward(given)
    _leaf_has(x, 2 * g)
    if other.grad is not None:
        raise Wrong("an input for which backward returned None got a gradient")
    me.case = "m = 2 a, an operation on x and m returns None for m: m has no gradient, skip it"
    x, a = leaf(3), leaf(3)
    weighted([x, weighted([a], [2.0])], [1, None]).backward(given)
    _leaf_has(x, g)
    if a.grad is not None:
        raise Wrong("a got a gradient, although backward returned None for m")
    me.case = "m = 2 a, an operation on x and m that returns None for m, and to its result 3 m is added"
    x, a = leaf(3), leaf(3)
    m = weighted([a], [2.0])
    weighted([weighted([x, m], [1, None]), m], [1, 3.0]).backward(given)
    _leaf_has(x, g)
    _leaf_has(a, 6 * g, "a")
    me.case = "a + b, then a + (a + b): both got the same array from backward"
    a, b = leaf(3), leaf(3)
    middle = weighted([a, b], [1, 1])
    weighted([middle, a], [1, 1]).backward(given)
    _leaf_has(a, 2 * g, "a")
    _leaf_has(b, g, "b")
    if middle.grad is not None:
        raise Wrong("the result of an operation keeps a .grad: only leaves do")
    b.grad *= 0
    if not np.array_equal(given, g) or not np.array_equal(a.grad, 2 * g):
        raise Wrong("the .grad of a leaf shares its memory with g or with another .grad: copy it")
    me.case = "a diamond: y = 2 x, z = y + 3 x"
    x = leaf(3)
    weighted([weighted([x], [2.0]), x], [1, 3.0]).backward(given)
    _leaf_has(x, 5 * g)
    me.case = "two diamonds: y = 2 x, z = x + 3 y, z + 5 y"
    x = leaf(3)
    y = weighted([x], [2.0])
    weighted([weighted([x, y], [1, 3.0]), y], [1, 5.0]).backward(given)
    _leaf_has(x, 17 * g)
    me.case = "60 diamonds on top of each other: 60 times x = x / 2 + x / 2"
    x = top = leaf()
    for _ in range(60):
        top = weighted([weighted([top], [0.5]), top], [1, 0.5])
    top.backward()
    _leaf_has(x, np.array(1.0))
    me.case = "a random graph of 200 operations"
    rng = np.random.default_rng(1)
    leaves = [leaf(3) for _ in range(4)]
    tensors, rows = [*leaves], [*np.eye(4)]  # a row: derivatives by the four leaves
    for _ in range(200):
        chosen = rng.integers(max(0, len(tensors) - 9), len(tensors), size=2)
        weights = [1, float(rng.choice([-0.5, 0.25]))]
        tensors.append(weighted([tensors[i] for i in chosen], weights))
        rows.append(sum(w * rows[i] for w, i in zip(weights, chosen, strict=True)))
    tensors[-1].backward(given)
    for i, x in enumerate(leaves):
        if rows[-1][i]:
            _leaf_has(x, rows[-1][i] * g, f"leaf {i}")
    me.case = "a leaf itself"
    x = leaf(3)
    x.backward(given)
    _leaf_has(x, g)
    me.case = "y = 3 x in float32, without an upstream gradient"
    x = make(np.zeros(3, np.float32), True)
    y = weighted([x], [3.0])
    y.data = np.zeros(3, np.float32)
    y.backward()
    _leaf_has(x, np.full(3, 3, np.float32))


def _leaf_has(x: Any, g: np.ndarray, name: str = "x") -> None:
    if x.grad is None:
        raise Wrong(f"{name}.grad is None")
    same(f"{name}.grad", x.grad, g)
