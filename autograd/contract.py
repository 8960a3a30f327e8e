"""The contract of a backward, whatever its operation: the part of `check_grads` that needs no derivative.

A backward is a linear map of the upstream gradient g. It gives the same result for the same g, however often it runs
and however g lies in memory; its result scales with g; and it edits neither g nor what forward saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from . import engine
from .anomaly import checksum
from .backend import Array, array_module, as_array, to_device
from .function import Context, Function
from .tensor import Tensor


class ContractError(RuntimeError):
    """A backward breaks its contract. The message names the operation."""


@contextmanager
def enforced(output: Tensor) -> Iterator[None]:
    """Inside the block, a backward pass from `output` runs every backward in many ways that must not matter."""
    nodes = [] if output.node is None else list(engine._consumers_first(output.node))
    for node in nodes:
        node.function = _Enforced(node.function)  # type: ignore[assignment]
    try:
        yield
    finally:
        for node in nodes:
            node.function = node.function.function  # type: ignore[attr-defined]


class _Enforced:
    """Stands in for the Function of a node."""

    def __init__(self, function: type[Function]) -> None:
        self.function = function
        self.name = function.name

    def backward(self, node: Context, g: Array) -> Any:
        self.saved = checksum(node.saved)
        want = self.call(node, g)
        if all(np.isfinite(x).all() for x in (to_device(g, "cpu"), *want)):
            for variant in _variants(g):
                expected = want if variant.plain is g else self.call(node, variant.plain)
                if not _agree(self.call(node, variant.g), expected, variant.factor, g):
                    raise ContractError(f"{self.name}: backward is wrong {variant.what}")
            for what, part in _parts(g):
                parts = zip(self.call(node, part), self.call(node, as_array(g - part)), strict=True)
                if not _agree([a + b for a, b in parts], want, 1, part):
                    raise ContractError(f"{self.name}: backward is wrong for {what}: it is not linear")
        return self.function.backward(node, g)

    def call(self, node: Context, g: Array) -> list[np.ndarray]:
        """Copies of the gradients that backward returns, which may not edit what it is given; None counts as zero."""
        upstream = checksum(g)
        results = self.function.backward(node, g)
        if checksum(node.saved) != self.saved:
            raise ContractError(f"{self.name}: backward edited an array that forward saved")
        if checksum(g) != upstream:
            raise ContractError(f"{self.name}: backward edited the upstream gradient in place")
        results = results if isinstance(results, tuple) else (results,)
        return [np.zeros(()) if x is None else to_device(as_array(x), "cpu").copy() for x in results]


class Variant(NamedTuple):
    """Another form of an upstream gradient: g = factor * plain."""

    what: str
    g: Array
    factor: float
    plain: Array


def _variants(g: Array) -> Iterator[Variant]:
    """Upstream gradients to try. Factors are powers of two, so that a linear map does not even round differently."""
    xp = array_module(g)
    yield Variant("the second time: it keeps a state", g, 1, g)
    yield Variant("for a zero upstream gradient: its result is not zero", xp.zeros_like(g), 0, g)
    for factor in (-(2.0**20), 2.0**-20) if g.dtype != np.float16 else (-16.0, 1 / 16):
        scaled = as_array(g * g.dtype.type(factor))
        yield Variant(f"for one {factor:g} times as large: it is not linear", scaled, factor, g)
    if g.size < 2:
        return
    for what, other in _layouts(g):
        yield Variant(f"for a {what} upstream gradient", other, 1, g)
    for axes in {*((axis,) for axis in range(g.ndim)), tuple(range(g.ndim))}:
        first = g[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(g.ndim))]
        constant = xp.broadcast_to(first, g.shape)
        yield Variant(f"for an upstream gradient that is broadcast along axes {axes}", constant, 1, constant.copy())


def _layouts(g: Array) -> Iterator[tuple[str, Array]]:
    """The same values in other places, with NaN in the gaps."""
    xp = array_module(g)
    yield "transposed", xp.asfortranarray(g)
    if g.ndim > 2:
        yield "transposed", xp.ascontiguousarray(g.swapaxes(-1, -2)).swapaxes(-1, -2)
    *before, last = g.shape
    backwards = (slice(None, None, -1),) * len(before)
    for what, size, part in (
        ("sliced", last + 1, (..., slice(1, None))),
        ("strided", 2 * last, (..., slice(None, None, 2))),
        ("reversed", 2 * last, (*backwards, slice(None, None, -2))),
    ):
        view = xp.full((*before, size), np.nan, g.dtype)[part]
        view[...] = g
        yield what, view


def _parts(g: Array) -> Iterator[tuple[str, Array]]:
    """Parts of g, to add up the results for them and for the rest."""
    xp = array_module(g)
    flat = xp.arange(g.size).reshape(g.shape)
    yield "positive and negative upstream gradients", as_array(xp.abs(g))
    yield "an upstream gradient of ones", xp.ones_like(g)
    yield "an upstream gradient with zeros", xp.where(flat % 2, g, 0)
    yield "an upstream gradient with one value", xp.where(flat == 0, g, 0)


def _agree(got: list[np.ndarray], want: list[np.ndarray], factor: float, g: Array) -> bool:
    """True if all gradients are `factor` times those wanted, but for rounding."""
    largest = max(float(np.abs(x).max(initial=0)) for x in (to_device(g, "cpu"), *want))
    allowed = 4096 * float(np.finfo(g.dtype).eps) * largest if factor else 0
    return len(got) == len(want) and all(
        np.abs(a / factor - b if factor else a).max(initial=0) <= allowed for a, b in zip(got, want, strict=True)
    )
