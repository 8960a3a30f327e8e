"""Random graphs, compared with an oracle: reverse mode over plain scalars in thirty lines.

hypothesis picks the operations and their inputs, so diamonds, dead ends, values used many times, detached parts and
repeated backwards all occur, in combinations nobody would write down.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

import autograd as ag
from autograd import Tensor, ops


class Number:
    """A scalar with its derivative with respect to every parent, as in a textbook; shares nothing with the engine."""

    def __init__(self, value: float, parents: tuple[tuple[Number, float], ...] = ()) -> None:
        self.value = value
        self.parents = parents

    def gradients(self) -> dict[int, float]:
        """d(self)/d(number) by id, in a recursively found topological order."""
        order: list[Number] = []
        seen: set[int] = set()

        def visit(number: Number) -> None:
            if id(number) not in seen:
                seen.add(id(number))
                for parent, _ in number.parents:
                    visit(parent)
                order.append(number)

        visit(self)
        result = {id(self): 1.0}
        for number in reversed(order):
            for parent, slope in number.parents:
                result[id(parent)] = result.get(id(parent), 0.0) + slope * result[id(number)]
        return result


def numbers(values: np.ndarray) -> list[Number]:
    return [Number(float(v)) for v in values]


class RandomGraph(RuleBasedStateMachine):
    """Each node is a Tensor of shape (2,) and its two Numbers."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.leaves: list[tuple[Tensor, list[Number]]] = []
        self.expected: dict[int, np.ndarray] = {}  # expected .grad, by id of the leaf

    def make(self, tensor, twins):
        np.testing.assert_allclose(tensor.numpy(), [n.value for n in twins], rtol=1e-9, atol=1e-12)
        return tensor, twins

    @initialize(target=nodes, seed=st.integers(0, 1000))
    def begin(self, seed):
        rng = np.random.default_rng(seed)
        for _ in range(3):
            values = rng.uniform(-1, 1, 2)
            self.leaves.append((Tensor(values, requires_grad=True), numbers(values)))
        return multiple(*self.leaves)

    @rule(target=nodes, x=nodes, kind=st.sampled_from(["tanh", "sigmoid", "negative", "scale"]))
    def unary(self, x, kind):
        tensor, twins = x
        if kind == "tanh":
            return self.make(tensor.tanh(), [Number(t := math.tanh(n.value), ((n, 1 - t * t),)) for n in twins])
        if kind == "sigmoid":
            values = [1 / (1 + math.exp(-n.value)) for n in twins]
            twins = [Number(v, ((n, v * (1 - v)),)) for n, v in zip(twins, values, strict=True)]
            return self.make(tensor.sigmoid(), twins)
        factor = -1.0 if kind == "negative" else 0.7
        return self.make(
            -tensor if kind == "negative" else tensor * 0.7, [Number(factor * n.value, ((n, factor),)) for n in twins]
        )

    @rule(target=nodes, x=nodes, y=nodes, kind=st.sampled_from(["add", "subtract", "multiply"]))
    def binary(self, x, y, kind):
        pairs = list(zip(x[1], y[1], strict=True))
        slopes = {"add": lambda a, b: (1, 1), "subtract": lambda a, b: (1, -1), "multiply": lambda a, b: (b, a)}[kind]
        apply = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b}[kind]
        twins = []
        for a, b in pairs:
            da, db = slopes(a.value, b.value)
            twins.append(Number(apply(a.value, b.value), ((a, da), (b, db))))
        # keep values in a range where they compare well
        return self.make(*self.bounded(getattr(ops, kind)(x[0], y[0]), twins))

    def bounded(self, tensor, twins):
        if max(abs(n.value) for n in twins) < 4:
            return tensor, twins
        return tensor * 0.1, [Number(0.1 * n.value, ((n, 0.1),)) for n in twins]

    @rule(target=nodes, x=nodes)
    def crossed(self, x):
        """Indexing and concatenation: swap the two values."""
        tensor, (first, second) = x
        joined = ops.concat([tensor[1:], tensor[:1]])
        return self.make(joined, [Number(second.value, ((second, 1.0),)), Number(first.value, ((first, 1.0),))])

    @rule(target=nodes, x=nodes)
    def averaged(self, x):
        """A reduction, broadcast back."""
        tensor, (a, b) = x
        mean = (a.value + b.value) / 2
        twins = [Number(mean, ((a, 0.5), (b, 0.5))) for _ in range(2)]
        return self.make(tensor.mean(keepdims=True).broadcast_to(2), twins)

    @rule(target=nodes, x=nodes)
    def detached(self, x):
        return self.make(x[0].detach(), [Number(n.value) for n in x[1]])

    @rule(target=nodes, x=nodes, y=nodes)
    def checkpointed(self, x, y):
        twins = []
        for a, b in zip(x[1], y[1], strict=True):
            t = math.tanh(a.value * b.value)
            twins.append(Number(t, ((a, (1 - t * t) * b.value), (b, (1 - t * t) * a.value))))
        return self.make(ag.checkpoint(lambda p, q: (p * q).tanh(), x[0], y[0]), twins)

    @rule(x=nodes, cotangent=st.tuples(st.integers(-2, 2), st.integers(-2, 2)), through_grad=st.booleans())
    def differentiate(self, x, cotangent, through_grad):
        tensor, twins = x
        if not tensor.requires_grad:
            return
        weighted = [n.gradients() for n in twins]
        expected = [
            np.array([sum(c * g.get(id(n), 0.0) for c, g in zip(cotangent, weighted, strict=True)) for n in numbers])
            for _, numbers in self.leaves
        ]
        tensors = [leaf for leaf, _ in self.leaves]
        v = np.array(cotangent, float)
        if through_grad:
            for found, want in zip(ag.grad(tensor, tensors, v, retain_graph=True), expected, strict=True):
                np.testing.assert_allclose(0 if found is None else found.numpy(), want, rtol=1e-9, atol=1e-12)
        else:
            tensor.backward(v, retain_graph=True)
            for leaf, want in zip(tensors, expected, strict=True):
                self.expected[id(leaf)] = self.expected.get(id(leaf), np.zeros(2)) + want
        for leaf in tensors:
            got = np.zeros(2) if leaf.grad is None else leaf.grad.numpy()
            np.testing.assert_allclose(got, self.expected.get(id(leaf), np.zeros(2)), rtol=1e-9, atol=1e-9)


TestRandomGraph = RandomGraph.TestCase
TestRandomGraph.settings = settings(stateful_step_count=40)
