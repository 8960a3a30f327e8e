"""Checks of a learner's function of Tensors: its value, and the gradients that the learner's own engine computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import autograd as ag

from ..nn import Module
from .compare import cotangent, same
from .exercise import Wrong
from .learner import Learner

Arrays = dict[str, np.ndarray]


def check_composed(
    me: Learner, theirs: Callable[[dict[str, Any]], Any], ours: Callable[[dict[str, ag.Tensor]], ag.Tensor],
    inputs: Arrays, close: float | None = None,
) -> None:  # fmt: skip
    """Raise Wrong unless a function of named Tensors has the value and the gradients that the project's has."""
    tensors = {name: ag.Tensor(x, requires_grad=True) for name, x in inputs.items()}
    want = ours(tensors)
    gradients = ag.grad(want, list(tensors.values()), cotangent(want.shape, want.dtype))
    expected = {
        name: np.zeros(x.shape, x.dtype) if g is None else g.numpy()
        for (name, x), g in zip(tensors.items(), gradients, strict=True)
    }
    check_against(me, theirs, inputs, want.numpy(), expected, close)


def check_against(
    me: Learner, theirs: Callable[[dict[str, Any]], Any], inputs: Mapping[str, np.ndarray], want: np.ndarray,
    gradients: Mapping[str, np.ndarray], close: float | None = None,
) -> None:  # fmt: skip
    """The same, with the value and the gradients given."""
    make = me.get("tensor.Tensor")
    tensors = {name: make(x.copy(), requires_grad=True) for name, x in inputs.items()}
    got = theirs(tensors)
    if not isinstance(got, make):
        raise Wrong(f"the result is {'None' if got is None else f'a {type(got).__name__}'}, expected a Tensor")
    same("the output", got.data, want, close)
    got.backward(cotangent(want.shape, want.dtype))
    for name, g in gradients.items():
        if tensors[name].grad is None:
            raise Wrong(f"{name} got no gradient: is it part of the graph?")
        same(f"the gradient of {name}", tensors[name].grad, g, close)
        if not np.array_equal(tensors[name].data, inputs[name]):
            raise Wrong(f"the values of {name} were changed")


def random_weights(module: Module, seed: int = 0) -> Arrays:
    """Weights for a module of the project's, by their official names: all of them random, none 0 or 1."""
    rng = np.random.default_rng(seed)
    named = {name: (p.shape, "norm" in name or "gamma" in name) for name, p in module.named_parameters()}
    return {name: (0.5 if scale else 0.0) + 0.4 * rng.standard_normal(shape) for name, (shape, scale) in named.items()}


def set_weights(module: Module, weights: Arrays) -> None:
    """Set the weights of a module, which then computes in float64."""
    module.astype(np.float64).eval()
    for name, p in module.named_parameters():
        p.data[...] = weights[name]


def expected(module: Module, weights: Arrays, inputs: Arrays, *constants: Any) -> tuple[np.ndarray, Arrays]:
    """The value of a module for constants and inputs, and the gradients of its inputs and weights."""
    set_weights(module, weights)
    tensors = {name: ag.Tensor(x, requires_grad=True) for name, x in inputs.items()}
    leaves = tensors | dict(module.named_parameters())
    y = module(*constants, *tensors.values())
    found = ag.grad(y, list(leaves.values()), cotangent(y.shape))
    return y.numpy(), {name: g.numpy() for name, g in zip(leaves, found, strict=True) if g is not None}


def check_module(me: Learner, theirs: Callable[[dict[str, Any]], Any], module: Module, inputs: Arrays) -> None:
    """Raise Wrong unless a function of inputs and weights does what a module of the project's does."""
    weights = random_weights(module)
    want, gradients = expected(module, weights, inputs)
    check_against(me, theirs, inputs | weights, want, gradients)


def without(w: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: x for name, x in w.items() if name not in names}
