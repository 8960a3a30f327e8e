"""Many arrays as one: a model's weights, their gradients, and what an optimiser keeps for each of them.

What is done to every value alike then takes a sweep over one array, instead of a few calls for each of hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate

from autograd import Tensor
from autograd.backend import Array, array_module

from ..nn import Module

Make = Callable[[int], Array]  # a new array of so many values


def is_decayed(name: str, shape: tuple[int, ...]) -> bool:
    """The reference's rule: biases, norms and LayerScale (all 1-d), positions and the class token are not decayed."""
    return len(shape) > 1 and name.rpartition(".")[2] not in ("pos_embed", "cls_token")


class Flat(dict[str, Array]):
    """Arrays by name, each a part of `whole`. Those that weight decay is for come first there, `decayed` values in all.

    The arrangement follows from the names and shapes, so two of the same can be worked on together.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], make: Make) -> None:
        order = sorted(shapes, key=lambda name: not is_decayed(name, shapes[name]))
        sizes = [math.prod(shapes[name]) for name in order]
        self.whole = make(sum(sizes))
        self.decayed = sum(size for name, size in zip(order, sizes, strict=True) if is_decayed(name, shapes[name]))
        parts = {
            name: self.whole[end - size : end].reshape(shapes[name])
            for name, size, end in zip(order, sizes, accumulate(sizes), strict=True)
        }
        super().__init__((name, parts[name]) for name in shapes)

    def __setitem__(self, name: str, array: Array) -> None:
        if array is not self.get(name):  # as it is after flat[name] += ...
            raise TypeError(f"{name} is part of one array; write into it, flat[name][...] = ...")

    def wholes(self, *others: Mapping[str, Array]) -> list[Array] | None:
        """Its own whole and those of others, if they are arranged alike."""
        alike = [o.whole for o in others if isinstance(o, Flat) and list(o) == list(self)]
        return [self.whole, *alike] if len(alike) == len(others) else None


def zeros_like(weights: Mapping[str, Array]) -> dict[str, Array]:
    """A zero for each of the weights, in arrays that are arranged as theirs."""
    first = next(iter(weights.values()))
    zeros = array_module(first).zeros
    if any(w.dtype != first.dtype for w in weights.values()):
        return {name: zeros(w.shape, w.dtype) for name, w in weights.items()}
    return Flat({name: w.shape for name, w in weights.items()}, lambda size: zeros(size, first.dtype))


def flatten(model: Module, make: Make | None = None, parameters: Mapping[str, Tensor] | None = None) -> Flat | None:
    """The weights of a model as one array, which they become unless they are; None if they have several dtypes.

    With `make`, they move to the memory that it gives. Who has the model's parameters by name can give them, too.
    """
    parameters = parameters or dict(model.named_parameters())
    flat = model.flat
    if make is None and flat is not None and all(p.data is flat.get(name) for name, p in parameters.items()):
        return flat
    if len({(p.dtype, p.device) for p in parameters.values()}) != 1:
        return None
    first = next(iter(parameters.values())).data
    empty = array_module(first).empty
    flat = Flat({name: p.shape for name, p in parameters.items()}, make or (lambda size: empty(size, first.dtype)))
    for name, p in parameters.items():
        flat[name][...] = p.data
        p.data = flat[name]
    model.flat = flat
    return flat
