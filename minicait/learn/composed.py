"""Checks of a learner's function of Tensors: its value, and the gradients that the learner's own engine computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import autograd as ag

from ..nn import Module
from .compare import cotangent, kind_of, same
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
    """The same, with the value and the gradients given, in float64; then once more in float32."""
    case = me.case
    for dtype in (np.float64, np.float32):
        me.case = case + (", float32" if dtype == np.float32 else "")
        cast = [{name: x.astype(dtype) for name, x in arrays.items()} for arrays in (inputs, gradients)]
        _compare(me, theirs, cast[0], want.astype(dtype), cast[1], close)


def _compare(
    me: Learner, theirs: Callable[[dict[str, Any]], Any], inputs: Arrays, want: np.ndarray, gradients: Arrays,
    close: float | None,
) -> None:  # fmt: skip
    make = me.get("tensor.Tensor")
    tensors = {name: make(x.copy(), requires_grad=True) for name, x in inputs.items()}
    got = a_tensor(me, theirs(tensors))
    same("the output", got.data, want, close)
    got.backward(cotangent(want.shape, want.dtype))
    not_cut({name: tensors[name] for name in gradients})
    for name, g in gradients.items():
        same(f"the gradient of {name}", tensors[name].grad, g, close)
        if not np.array_equal(tensors[name].data, inputs[name]):
            raise Wrong(f"the values of {name} were changed")


def not_cut(tensors: Mapping[str, Any]) -> None:
    """Raise Wrong if backward has reached only some of these leaves, or none."""
    cut = [name for name, x in tensors.items() if x.grad is None]
    if not cut:
        return
    none = len(cut) == len(tensors) > 1
    raise Wrong(
        f"{'no input got a' if none else ', '.join(cut) + ' got no'} gradient: somewhere between "
        f"{'it' if len(cut) == 1 else 'them'} and the result, .data or a new Tensor was used instead of the Tensor"
    )


def a_tensor(me: Learner, result: Any) -> Any:
    """The result of a function, which has to be a Tensor of the learner's."""
    make = me.get("tensor.Tensor")
    if isinstance(result, np.ndarray) and result.dtype == object:
        raise Wrong(
            "the result is a NumPy array of Tensors: a function of NumPy's was given Tensors, use your operations"
        )
    if not isinstance(result, make):
        raise Wrong(f"the result is {kind_of(result)}, expected a Tensor")
    return result


def like(array: np.ndarray, w: Mapping[str, Any]) -> np.ndarray:
    """A constant with the dtype of the Tensors, so that it does not widen them."""
    return array.astype(next(iter(w.values())).data.dtype)


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
