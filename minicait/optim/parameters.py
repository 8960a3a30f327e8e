"""All parameters of a model as one array: an update is then one sweep, not a few calls for each of hundreds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

from autograd.backend import Array, array_module, to_device

from ..nn import Module, Parameter
from .sweep import sweep

Allocate = Callable[[int], Array]  # a new array of so many values


def is_decayed(name: str, shape: tuple[int, ...], no_decay: frozenset[str] = frozenset()) -> bool:
    """The reference's rule: weight decay is for arrays of two or more axes, except for those in `no_decay`."""
    return len(shape) > 1 and name.rpartition(".")[2] not in no_decay


@dataclass(frozen=True)
class Layout:
    """Positions of named arrays in a flat one. Arrays with weight decay come first, `decayed` values in all."""

    shapes: Mapping[str, tuple[int, ...]]
    slices: Mapping[str, slice]
    size: int
    decayed: int

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]], no_decay: frozenset[str] = frozenset()) -> Layout:
        decays = {name: is_decayed(name, shape, no_decay) for name, shape in shapes.items()}
        order = sorted(shapes, key=lambda name: not decays[name])
        sizes = [math.prod(shapes[name]) for name in order]
        ends = accumulate(sizes)
        slices = {name: slice(end - size, end) for name, size, end in zip(order, sizes, ends, strict=True)}
        decayed = sum(math.prod(shapes[name]) for name in order if decays[name])
        return Layout(dict(shapes), {name: slices[name] for name in shapes}, sum(sizes), decayed)


class FlatArrays(dict[str, Array]):
    """Named arrays that are views into one, `array`."""

    def __init__(self, layout: Layout, array: Array) -> None:
        super().__init__()
        self.layout = layout
        self._view(array)

    def _view(self, array: Array) -> None:
        self.array = array
        shapes, slices = self.layout.shapes.items(), self.layout.slices
        self.update({name: array[slices[name]].reshape(shape) for name, shape in shapes})

    def __setitem__(self, name: str, value: Array) -> None:
        if value is not self.get(name):  # as it is after flat[name] += ...
            raise TypeError(f"{name} is a view into a flat array; write into it, flat[name][...] = ...")

    def copy(self) -> FlatArrays:
        return FlatArrays(self.layout, self.array.copy())

    def on(self, device: str) -> FlatArrays:
        """The arrays on a device: these if they are there already, else copies, made at once."""
        array = to_device(self.array, device)
        return self if array is self.array else FlatArrays(self.layout, array)

    def add(self, other: FlatArrays, threads: int = 1) -> None:
        sweep(_add, self.array, other.array, threads=threads)

    def copy_from(self, other: FlatArrays, threads: int = 1) -> None:
        sweep(_copy, self.array, other.array, threads=threads)

    def move(self, allocate: Allocate | None = None) -> None:
        """Move them into a new array, by default in ordinary memory."""
        new = array_module(self.array).empty_like(self.array) if allocate is None else allocate(self.array.size)
        new[...] = self.array
        self._view(new)


def _add(start: int, into: Array, other: Array) -> None:
    into += other


def _copy(start: int, into: Array, other: Array) -> None:
    into[...] = other


class FlatParameters:
    """The parameters of a model in one array: each `p.data` is a view into it. `flat_parameters` makes them."""

    def __init__(self, parameters: Mapping[str, Parameter], no_decay: frozenset[str]) -> None:
        self.parameters = dict(parameters)
        kinds = {(p.dtype.name, p.device) for p in parameters.values()}
        if len(kinds) != 1:
            found = ", ".join(sorted(" on ".join(kind) for kind in kinds)) or "no parameters"
            raise ValueError(f"FlatParameters: all parameters must have one dtype on one device, got {found}")
        self.layout = Layout.of({name: p.shape for name, p in parameters.items()}, no_decay)
        first = next(iter(parameters.values())).data
        self.dtype, self.device = first.dtype, next(iter(kinds))[1]
        self.weights = FlatArrays(self.layout, array_module(first).empty(self.layout.size, first.dtype))
        self.attach()

    @property
    def array(self) -> Array:
        return self.weights.array

    def move(self, allocate: Allocate | None = None) -> None:
        """Move all parameters into a new array, by default in ordinary memory."""
        self.attach()
        self.weights.move(allocate)
        for name, p in self.parameters.items():
            p.data = self.weights[name]

    def attach(self) -> None:
        """Copy arrays that took a parameter's place into the flat one, so that every parameter is a view again."""
        for name, p in self.parameters.items():
            view = self.weights[name]
            if p.data is not view:
                if not self.fits(p):
                    raise ValueError(f"{name} changed to {p.dtype} on {p.device}; create a new optimiser for the model")
                view[...] = p.data
                p.data = view

    def fits(self, p: Parameter) -> bool:
        return p.dtype == self.dtype and p.device == self.device

    def zeros(self) -> FlatArrays:
        """An array of zeros for each parameter, in the same layout."""
        return FlatArrays(self.layout, array_module(self.array).zeros(self.layout.size, self.dtype))


_known: WeakKeyDictionary[Module, FlatParameters] = WeakKeyDictionary()


def flat_parameters(model: Module) -> FlatParameters:
    """The model's parameters as one array: the same object for its optimiser, its average and its workers."""
    parameters = dict(model.named_parameters())
    known = _known.get(model)
    if known is not None and _same(known.parameters, parameters) and all(map(known.fits, parameters.values())):
        known.attach()
        return known
    _known[model] = FlatParameters(parameters, getattr(model, "no_decay", frozenset()))
    return _known[model]


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return list(a) == list(b) and all(a[name] is b[name] for name in a)
