"""The contract of a backward, whatever its operation: the part of `check_grads` that needs no derivative.

A backward is a linear map of the upstream gradient g. It gives the same result for the same g, however often it runs
and however g lies in memory; its result scales with g; and it edits neither g nor what forward saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
        want = self.call(node, g)
        if all(np.isfinite(x).all() for x in (to_device(g, "cpu"), *want)):
            for how, other, factor, same_values in _variants(g):
                expected = want if same_values is g else self.call(node, same_values)
                if not _agree(self.call(node, other), expected, factor, g):
                    raise ContractError(f"{self.name}: backward is wrong {how}")
        return self.function.backward(node, g)

    def call(self, node: Context, g: Array) -> list[np.ndarray]:
        """Copies of the gradients that backward returns, which may not edit what it is given."""
        saved, upstream = checksum(node.saved), checksum(g)
        results = self.function.backward(node, g)
        if checksum(node.saved) != saved:
            raise ContractError(f"{self.name}: backward edited an array that forward saved")
        if checksum(g) != upstream:
            raise ContractError(f"{self.name}: backward edited the upstream gradient in place")
        results = results if isinstance(results, tuple) else (results,)
        return [to_device(as_array(x), "cpu").copy() for x in results if x is not None]


def _variants(g: Array) -> Iterator[tuple[str, Array, float, Array]]:
    """Upstream gradients to try: each with what it is, the factor of its result, and one of the same values / factor.

    The factors are powers of two, so that a linear map does not even round differently.
    """
    xp = array_module(g)
    yield "the second time: it keeps a state", g, 1, g
    yield "for a zero upstream gradient: its result is not zero", xp.zeros_like(g), 0, g
    for factor in (-(2.0**20), 2.0**-20) if g.dtype != np.float16 else (-16.0, 1 / 16):
        yield f"for one {factor:g} times as large: it is not linear", g * g.dtype.type(factor), factor, g
    if g.size < 2:
        return
    yield "for a transposed upstream gradient", xp.asfortranarray(g), 1, g
    strided = xp.full([2 * n for n in g.shape], np.nan, g.dtype)[(slice(None, None, -2),) * g.ndim]
    strided[...] = g
    yield "for a strided upstream gradient", strided, 1, g
    for axis in {0, g.ndim - 1}:
        constant = xp.broadcast_to(g.take([0], axis), g.shape)
        yield f"for an upstream gradient that is broadcast along axis {axis}", constant, 1, constant.copy()


def _agree(got: list[np.ndarray], want: list[np.ndarray], factor: float, g: Array) -> bool:
    """True if all gradients are `factor` times those wanted, but for rounding."""
    largest = max(float(np.abs(x).max(initial=0)) for x in (to_device(g, "cpu"), *want))
    allowed = 4096 * float(np.finfo(g.dtype).eps) * largest if factor else 0
    return all(
        a.shape == b.shape and np.abs(a / factor - b if factor else a).max(initial=0) <= allowed
        for a, b in zip(got, want, strict=True)
    )
